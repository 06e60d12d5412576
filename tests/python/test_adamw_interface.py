"""ballast.torch.AdamW as an object: names, options, errors and their tracebacks, copies."""

import copy
import inspect
import pydoc
import traceback
import typing

import pytest
import torch
from torch import nn

import ballast
import ballast.torch as bt
from training import batch, model, run


def test_names_come_from_pairs_model_or_position(fake):
    def names(optimizer):
        optimizer.step()
        return [t[0] for t in fake.last.tensors]

    m = model()
    assert names(bt.AdamW(m.named_parameters())) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert names(bt.AdamW(m.parameters(), model=m))[0] == "0.weight"
    assert names(bt.AdamW(m.parameters())) == ["g0.p0", "g0.p1", "g0.p2", "g0.p3"]
    grouped = [{"params": [("a", m[0].weight)]}, {"params": [("b", m[2].weight)]}]
    assert names(bt.AdamW(grouped)) == ["a", "b"]


def test_equal_names_are_refused(fake):
    m = model()
    with pytest.raises(ballast.BadArgument, match="two parameters are named 'w'"):
        bt.AdamW([("w", m[0].weight), ("w", m[2].weight)]).step()


def test_step_hooks_of_torch_run(fake):
    opt = bt.AdamW(model().parameters())
    seen = []
    opt.register_step_pre_hook(lambda *_: seen.append("pre"))
    opt.register_step_post_hook(lambda *_: seen.append("post"))
    opt.step()
    assert seen == ["pre", "post"]


@pytest.mark.parametrize("option", ["capturable", "differentiable"])
def test_options_that_change_the_arithmetic_are_refused_by_name(fake, option):
    with pytest.raises(ballast.Unsupported, match=option):
        bt.AdamW(model().parameters(), **{option: True})
    opt = bt.AdamW(model().parameters(), **{option: False})
    with pytest.raises(ballast.Unsupported, match=rf"param_groups\[1\]: {option}"):
        opt.add_param_group({"params": [nn.Parameter(torch.zeros(1))], option: True})
    assert len(opt.param_groups) == 1
    opt.param_groups[0][option] = True
    with pytest.raises(ballast.Unsupported, match=option):
        opt.step()


@pytest.mark.parametrize("value", [None, True, False])
def test_foreach_and_fused_change_nothing(fake, value):
    m = model()
    opt = bt.AdamW(m.parameters(), foreach=value, fused=value)
    run(m, opt, 1)
    opt.zero_grad(set_to_none=False)
    assert all(not p.grad.any() for p in m.parameters())


@pytest.mark.parametrize(
    "arguments, match",
    [
        ({"lr": -1.0}, "lr=-1"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"lr": "fast"}, "lr='fast'"),
        ({"betas": (1.0, 0.9)}, r"betas\[0\]=1.0"),
        ({"betas": (0.9,)}, "two numbers"),
        ({"eps": -1e-8}, "eps"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"lr": torch.zeros(2)}, "2 elements"),
        ({"lr": 10**400}, "lr=1000.*must be a number"),
        ({"lr": torch.tensor(1j)}, "lr=tensor.*must be a number"),
        ({"betas": 5}, "betas=5: must be two numbers"),
        ({"betas": None}, "betas=None: must be two numbers"),
        ({"endpoints": 5}, "endpoints=5: must be"),
        ({"tile_elements": 2**40}, "tile_elements=1099511627776: must be.*at most 16777216"),
        ({"model": "gpt"}, "model='gpt': must be a torch.nn.Module"),
    ],
)
def test_wrong_hyperparameters_are_value_errors_as_in_torch(fake, arguments, match):
    with pytest.raises(ValueError, match=match):
        bt.AdamW(model().parameters(), **arguments)


def test_params_that_are_no_iterable_are_type_errors_as_in_torch(fake):
    with pytest.raises(TypeError, match=r"params is a Sequential; .* pass model.parameters\(\)"):
        bt.AdamW(model())
    with pytest.raises(TypeError, match="params is a int; it must be an iterable of tensors"):
        bt.AdamW(5)
    with pytest.raises(TypeError, match='"params" of a parameter group is a int'):
        bt.AdamW([{"params": 5}])


def test_an_unknown_keyword_is_refused_as_python_does_it(fake):
    for keyword in ("environ", "worldsize"):
        said = rf"^AdamW\.__init__\(\) got an unexpected keyword argument '{keyword}'$"
        with pytest.raises(TypeError, match=said):
            bt.AdamW(model().parameters(), **{keyword: {}})


def test_an_unknown_keyword_of_a_subclass_is_refused_in_the_name_of_the_optimizer(fake):
    class Mine(bt.AdamW):
        pass

    with pytest.raises(TypeError, match=r"^AdamW\.__init__\(\) got .* 'worldsize'$"):
        Mine(model().parameters(), worldsize=2)


def test_the_signature_and_the_help_show_every_job_option_with_its_default():
    defaults = {
        "endpoints": None, "job": None, "world_size": None, "rank": None, "max_grad_norm": None,
        "loss_scale": 1.0, "nonfinite": "skip", "max_consecutive_skips": 100, "init": "equal",
        "extent_elements": None, "tile_elements": None, "attach_timeout": None, "durability": None,
        "reconnect_timeout": None, "resume": None, "variable_world": False, "min_world": None,
        "device": None, "accumulation_steps": 1, "lr_schedule": None, "profile": "exact",
        "pinned_bytes": 1 << 25, "gradients": "local", "tls_ca": None, "tls_cert": None,
        "tls_key": None, "token_file": None,
    }  # fmt: skip
    for call in (bt.AdamW, bt.AdamW.__init__):
        parameters = inspect.signature(call).parameters
        assert {name: parameters[name].default for name in defaults} == defaults
        kinds = {parameter.kind for parameter in parameters.values()}
        assert kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    told = pydoc.render_doc(bt.AdamW, renderer=pydoc.plaintext)
    assert "max_consecutive_skips: int | None = 100" in told
    assert "lr: float | torch.Tensor = 0.001" in told


def test_a_subclass_shows_the_signature_of_its_own_constructor():
    class Mine(bt.AdamW):
        def __init__(self, params, warmth):
            super().__init__(params)

    assert list(inspect.signature(Mine).parameters) == ["params", "warmth"]


def test_the_types_of_the_constructor_can_be_evaluated():
    hints = typing.get_type_hints(bt.AdamW.__init__)
    assert hints["lr"] == float | torch.Tensor
    options = typing.get_type_hints(typing.get_args(hints["job_options"])[0])
    assert options["max_consecutive_skips"] == int | None


@pytest.mark.parametrize("name", [5, None, "\ud800"])
def test_a_name_that_is_no_text_is_refused(fake, name):
    with pytest.raises(ballast.BadArgument, match=r"a parameter is named .*: must be Unicode text"):
        bt.AdamW([(name, model()[0].weight)]).step()
    assert not fake.attached


def test_settings_reach_the_core(fake):
    opt = bt.AdamW(
        model().parameters(), job="mine", world_size=3, rank=2, max_grad_norm=1.5, loss_scale=128,
        init="broadcast", extent_elements=128, tile_elements=64, attach_timeout=7,
        endpoints="x:1,y:2", durability="power", reconnect_timeout=30, nonfinite="halt",
        max_consecutive_skips=None,
    )  # fmt: skip
    opt.attach()
    assert fake.last.options == {
        "endpoints": ("x:1", "y:2"), "security": ("", "", "", ""),
        "job": "mine", "world_size": 3, "rank": 2, "max_grad_norm": 1.5,
        "loss_scale": 128.0, "tile_elements": 64, "extent_elements": 128, "init": "broadcast",
        "attach_timeout": 7.0, "time_scale": 1.0, "durability": "power",
        "reconnect_timeout": 30.0, "resume": "never", "nonfinite": "halt",
        "max_consecutive_skips": 0, "variable_world": False, "min_world": 1, "device": "auto",
        "profile": "exact", "gradients": "local", "schedule": None, "optimizer": "AdamW",
        "optimizer_options": {"amsgrad": 0.0, "maximize": 0.0}, "pauses": fake.queue, "gpu": None,
    }  # fmt: skip
    assert (opt.job, opt.world_size, opt.rank) == ("mine", 3, 2)


def test_a_grad_scaler_works_alone_and_is_refused_in_company(fake):
    m = model()
    opt = bt.AdamW(m.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(m(batch(0)).square().mean()).backward()
    scaler.step(opt)
    scaler.update()
    assert opt.round == 1

    several = bt.AdamW(model().parameters(), world_size=2, rank=0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    several.param_groups[0]["params"][0].grad = torch.ones(8, 5)
    scaler.scale(torch.ones(()))
    for _ in range(2):
        with pytest.raises(ballast.Unsupported, match="GradScaler.*loss_scale="):
            scaler.step(several)
    several.step()
    assert several.round == 1


def test_the_traceback_of_an_error_ends_at_the_scripts_call(fake):
    opt = bt.AdamW(model().parameters())
    for call in (opt.attach, opt.step, opt.export_state):
        fake.attach_error = ballast.OverBudget("no room")
        with pytest.raises(ballast.BallastError) as told:
            call()
        frames = traceback.extract_tb(told.value.__traceback__)
        own = [frame.name for frame in frames if "/client/python/ballast/" in frame.filename]
        assert own == ["bordered"], frames
        assert told.value.__context__ is None


def test_the_traceback_keeps_the_scripts_lines_below_its_call(fake):
    m = model()
    opt = bt.AdamW(m.parameters())

    def closure():
        raise ballast.OverBudget("inside the closure")

    with pytest.raises(ballast.OverBudget) as told:
        opt.step(closure)
    frames = traceback.extract_tb(told.value.__traceback__)
    assert frames[-1].name == "closure", frames
    assert [frame.name for frame in frames if "/client/python/ballast/" in frame.filename] == [
        "bordered"
    ]


def test_the_traceback_of_a_wrong_argument_ends_at_the_scripts_call(fake):
    for call in (
        lambda: bt.AdamW(model().parameters(), lr=-1),
        lambda: bt.wrap(torch.optim.RMSprop(model().parameters())),
    ):
        with pytest.raises(ballast.BallastError) as told:
            call()
        frames = traceback.extract_tb(told.value.__traceback__)
        own = [frame.name for frame in frames if "/client/python/ballast/" in frame.filename]
        assert own == ["bordered"], frames


def test_an_attach_that_fails_can_be_tried_again(fake):
    m = model()
    opt = bt.AdamW(m.parameters())
    fake.attach_error = ballast.AttachTimeout("slots 1 and 3 are missing")
    with pytest.raises(ballast.AttachTimeout, match="slots 1 and 3"):
        run(m, opt, 1)
    fake.attach_error = None
    run(m, opt, 1)
    assert opt.round == 1


def test_broadcast_weights_arrive_before_the_first_round(fake):
    strided = nn.Parameter(torch.zeros(4, 3).t())
    plain = nn.Parameter(torch.zeros(5))
    opt = bt.AdamW([strided, plain], world_size=2, rank=1, init="broadcast")
    plain.grad = torch.full((5,), float("nan"))
    with pytest.raises(ballast.BadArgument, match="attach.. before the first forward pass"):
        opt.step()
    opt.attach()
    opt.step()
    assert opt.step_was_skipped
    assert torch.equal(strided, torch.full((3, 4), 0.5))
    assert torch.equal(plain, torch.full((5,), 0.5))
    plain.grad = None
    opt.step()
    assert opt.round == 2


def test_after_an_error_the_next_step_gives_the_services_error(fake):
    m = model()
    opt = bt.AdamW(m.parameters())
    run(m, opt, 1)
    fake.last.wait_error = ballast.TrainerLost("slot 1 is gone", slot=1)
    for _ in range(2):
        with pytest.raises(ballast.TrainerLost) as caught:
            opt.step()
        assert caught.value.slot == 1


def test_the_optimizer_cannot_be_copied_or_pickled(fake):
    opt = bt.AdamW(model().parameters())
    with pytest.raises(TypeError, match="export_state"):
        copy.deepcopy(opt)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((None,), "name=None"),
        ((b"warm",), "name=b'warm'"),
        (("warm", -1), "keep=-1"),
        (("warm", 1.5), "keep=1.5"),
        (("warm", True), "keep=True"),
        (("warm", 2**32), "keep=4294967296"),
    ],
)
def test_a_snapshot_that_cannot_be_asked_for_is_a_bad_argument(fake, arguments, named):
    ours = model()
    opt = bt.AdamW(ours.parameters())
    run(ours, opt, 1)
    with pytest.raises(ballast.BadArgument, match=named):
        opt.snapshot(*arguments)
    assert opt.snapshot("warm", 2) == 1
    assert [call for call in fake.last.calls if call[0] == "snapshot"] == [("snapshot", "warm", 2)]
