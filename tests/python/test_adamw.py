"""ballast.torch.AdamW against torch.optim.AdamW: same loop, same bits, over the fake core."""

import copy
import traceback

import pytest
import torch
from torch import nn

import ballast
import ballast.torch as bt


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(i):
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(i))


def twins(make_ours, make_torch):
    """(ours, our optimizer), (torch's, its optimizer) on equal models."""
    ours = model()
    theirs = copy.deepcopy(ours)
    return (ours, make_ours(ours)), (theirs, make_torch(theirs))


def run(module, optimizer, steps, scheduler=None):
    for i in range(steps):
        optimizer.zero_grad()
        module(batch(i)).square().mean().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def assert_equal(a, b):
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(x, y)


def test_the_three_line_use_gives_torchs_bits(fake):
    ours, theirs = twins(
        lambda m: bt.AdamW(m.parameters(), lr=3e-2),
        lambda m: torch.optim.AdamW(m.parameters(), lr=3e-2, foreach=False),
    )
    run(*ours, 10)
    run(*theirs, 10)
    assert_equal(ours[0], theirs[0])
    assert ours[1].round == ours[1].opt_step == 10
    assert ours[1].last_report["round"] == 10
    assert ours[1].job_id == 2**64 - 1


def test_nothing_is_attached_before_the_first_step(fake):
    opt = bt.AdamW(model().parameters())
    opt.zero_grad()
    opt.state_dict()
    assert not fake.attached
    assert opt.last_report is None and opt.grad_norm is None and opt.counters == {}
    assert not opt.step_was_skipped


SCHEDULES = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.5),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: 1 / (t + 1)),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=12),
    "cyclic": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 1e-3, 1e-1, 3, cycle_momentum=True),
    "sequential": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=3),
            torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        ],
        [3],
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_any_torch_scheduler_works(fake, name):
    ours, theirs = twins(
        lambda m: bt.AdamW(m.parameters(), lr=1e-2),
        lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, foreach=False),
    )
    run(*ours, 10, SCHEDULES[name](ours[1]))
    run(*theirs, 10, SCHEDULES[name](theirs[1]))
    assert_equal(ours[0], theirs[0])
    lrs = {hyper[0][0] for kind, hyper, _ in fake.last.calls if kind == "step"}
    assert len(lrs) > 1


def test_groups_have_their_own_hyperparameters(fake):
    def groups(m):
        return [
            {"params": m[0].parameters(), "lr": 1e-1, "betas": (0.5, 0.9)},
            {"params": m[2].parameters(), "weight_decay": 0.3, "eps": 1e-4},
        ]

    ours, theirs = twins(
        lambda m: bt.AdamW(groups(m), lr=1e-2),
        lambda m: torch.optim.AdamW(groups(m), lr=1e-2, foreach=False),
    )
    run(*ours, 5)
    run(*theirs, 5)
    assert_equal(ours[0], theirs[0])
    assert fake.last.calls[0][1] == [(1e-1, 0.5, 0.9, 1e-8, 1e-2), (1e-2, 0.9, 0.999, 1e-4, 0.3)]


def test_tensor_hyperparameters_are_sent_as_numbers(fake):
    opt = bt.AdamW(model().parameters(), lr=torch.tensor(0.25), betas=(torch.tensor(0.5), 0.75))
    opt.step()
    assert fake.last.calls[0][1] == [(0.25, 0.5, 0.75, 1e-8, 1e-2)]


def test_a_closure_runs_with_gradients_and_its_loss_is_returned(fake):
    ours, theirs = twins(
        lambda m: bt.AdamW(m.parameters()),
        lambda m: torch.optim.AdamW(m.parameters(), foreach=False),
    )
    for module, optimizer in (ours, theirs):

        def closure(module=module, optimizer=optimizer):
            optimizer.zero_grad()
            loss = module(batch(0)).square().mean()
            loss.backward()
            return loss

        with torch.no_grad():
            losses = [optimizer.step(closure) for _ in range(3)]
        assert losses[0] > losses[2]
    assert_equal(ours[0], theirs[0])


def test_gradients_accumulate_over_two_backward_calls(fake):
    ours, theirs = twins(
        lambda m: bt.AdamW(m.parameters()),
        lambda m: torch.optim.AdamW(m.parameters(), foreach=False),
    )
    for module, optimizer in (ours, theirs):
        for i in (0, 2):
            optimizer.zero_grad()
            module(batch(i)).square().mean().backward()
            module(batch(i + 1)).square().mean().backward()
            optimizer.step()
    assert_equal(ours[0], theirs[0])


@pytest.mark.parametrize("set_to_none", [True, False])
def test_parameters_without_gradient_rest_and_keep_their_step(fake, set_to_none):
    ours, theirs = twins(
        lambda m: bt.AdamW(m.named_parameters(), lr=1e-1),
        lambda m: torch.optim.AdamW(m.named_parameters(), lr=1e-1, foreach=False),
    )
    for module, optimizer in (ours, theirs):
        for i in range(6):
            optimizer.zero_grad(set_to_none=set_to_none)
            layers = module if i % 2 else module[:2]
            layers(batch(i)).square().mean().backward()
            optimizer.step()
    assert_equal(ours[0], theirs[0])
    steps = [int(s["step"]) for s in ours[1].export_state()["state"].values()]
    assert steps == [6, 6, 3, 3] if set_to_none else [6, 6, 5, 5]


def test_a_group_added_before_attach_is_part_of_it(fake):
    m = model()
    opt = bt.AdamW(m[0].parameters())
    opt.add_param_group({"params": m[2].parameters(), "lr": 0.5})
    opt.step()
    assert [t[0] for t in fake.last.tensors] == ["g0.p0", "g0.p1", "g1.p0", "g1.p1"]
    assert [t[3] for t in fake.last.tensors] == [0, 0, 1, 1]


def test_a_group_added_later_joins_at_the_next_step(fake):
    ours, theirs = twins(
        lambda m: bt.AdamW(m[0].parameters(), lr=1e-1),
        lambda m: torch.optim.AdamW(m[0].parameters(), lr=1e-1, foreach=False),
    )
    for module, optimizer in (ours, theirs):
        run(module, optimizer, 3)
        optimizer.add_param_group({"params": module[2].parameters(), "lr": 1e-2})
        module.zero_grad()
        run(module, optimizer, 3)
    assert_equal(ours[0], theirs[0])
    extends = [call for call in fake.last.calls if call[0] == "extend"]
    assert [[t[0] for t in call[1]] for call in extends] == [["g1.p0", "g1.p1"]]
    assert ours[1].state_dict()["param_groups"][1]["params"] == [2, 3]


@pytest.mark.parametrize("edit", ["emptied", "swapped", "moved", "popped"])
def test_a_group_that_loses_parameters_after_the_first_step_is_refused(fake, edit):
    module = model()
    first, last = module[0], module[2]
    groups = [{"params": list(first.parameters())}, {"params": list(last.parameters())}]
    opt = bt.AdamW(groups)
    run(module, opt, 1)
    kept = [group["params"] for group in opt.param_groups]
    popped = []
    if edit == "emptied":
        opt.param_groups[0]["params"] = []
    elif edit == "swapped":
        opt.param_groups[0]["params"] = [kept[0][0], nn.Parameter(torch.zeros(8))]
    elif edit == "moved":
        opt.param_groups[0]["params"] = kept[0][:1]
        opt.param_groups[1]["params"] = kept[1] + kept[0][1:]
    else:
        popped = [opt.param_groups.pop()]
    before = copy.deepcopy(module)
    for call in (opt.step, opt.upload_weights):
        with pytest.raises(ballast.BadArgument, match=r"not in opt\.param_groups\[[01]\] any more"):
            call()
    assert_equal(module, before)
    assert opt.round == 1
    opt.param_groups += popped
    for group, params in zip(opt.param_groups, kept, strict=True):
        group["params"] = params
    run(module, opt, 1)
    assert opt.round == 2


def test_frozen_parameters_stay_out_until_they_are_trained(fake):
    ours, theirs = twins(
        lambda m: bt.AdamW(m.named_parameters(), lr=1e-1),
        lambda m: torch.optim.AdamW(m.named_parameters(), lr=1e-1, foreach=False),
    )
    for module, optimizer in (ours, theirs):
        module[0].requires_grad_(False)
        run(module, optimizer, 3)
        module[0].requires_grad_(True)
        optimizer.param_groups[0]["lr"] = 3e-2
        run(module, optimizer, 3)
    assert_equal(ours[0], theirs[0])
    assert [t[0] for t in fake.last.tensors] == ["2.weight", "2.bias", "0.weight", "0.bias"]
    assert [t[3] for t in fake.last.tensors] == [0, 0, 1, 1]
    # Both service groups follow the one torch group.
    assert [h[0] for h in fake.last.calls[-1][1]] == [3e-2, 3e-2]


def test_with_everything_frozen_there_is_no_job(fake):
    m = model().requires_grad_(False)
    with pytest.raises(ballast.BadSpec, match="requires a gradient"):
        bt.AdamW(m.parameters()).step()


def test_clipping_reports_the_norm_and_the_coefficient(fake):
    m = model()
    opt = bt.AdamW(m.parameters(), max_grad_norm=1e-3)
    run(m, opt, 1)
    norm = torch.cat([p.grad.flatten() for p in m.parameters()]).double().norm().item()
    assert opt.grad_norm == pytest.approx(norm)
    assert opt.clip_coef == pytest.approx(1e-3 / norm, rel=1e-3)


def test_torchs_clip_before_step_works(fake):
    ours, theirs = twins(
        lambda m: bt.AdamW(m.parameters()),
        lambda m: torch.optim.AdamW(m.parameters(), foreach=False),
    )
    for module, optimizer in (ours, theirs):
        for i in range(4):
            optimizer.zero_grad()
            module(batch(i)).square().mean().backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1e-2)
            optimizer.step()
    assert_equal(ours[0], theirs[0])


def test_a_round_with_nan_is_skipped_and_says_so(fake):
    m = model()
    opt = bt.AdamW(m.parameters())
    run(m, opt, 1)
    before = copy.deepcopy(m)
    versions = [p._version for p in m.parameters()]
    m[0].weight.grad[0, 0] = float("nan")
    opt.step()
    assert opt.step_was_skipped
    assert (opt.round, opt.opt_step) == (2, 1)
    assert_equal(m, before)
    assert versions == [p._version for p in m.parameters()]
    run(m, opt, 1)
    assert not opt.step_was_skipped


def test_a_halted_round_raises_leaves_everything_and_the_next_step_works(fake):
    m = model()
    opt = bt.AdamW(m.parameters(), nonfinite="halt")
    run(m, opt, 1)
    before = copy.deepcopy(m)
    report = opt.last_report
    versions = [p._version for p in m.parameters()]
    m[0].weight.grad[0, 0] = float("nan")
    fake.last.wait_error = ballast.NonfiniteGradient("tensor named here", round=2, slot=1)
    with pytest.raises(FloatingPointError, match="tensor named here"):
        opt.step()
    assert_equal(m, before)
    assert versions == [p._version for p in m.parameters()]
    assert opt.last_report == report
    fake.last.wait_error = None
    run(m, opt, 1)
    assert not opt.step_was_skipped
    opt.close()
    assert fake.last.calls[-1] == ("leave",)  # The job is not over.


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


@pytest.mark.parametrize("option", ["amsgrad", "maximize", "capturable", "differentiable"])
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
        "endpoints": ["x:1", "y:2"], "job": "mine", "world": 3, "slot": 2, "max_grad_norm": 1.5,
        "loss_scale": 128.0, "tile_elements": 64, "extent_elements": 128, "init": "broadcast",
        "attach_timeout_s": 7.0, "time_scale": 1.0, "durability": "power",
        "reconnect_timeout_s": 30.0, "resume": "never", "pauses": fake.queue,
        "nonfinite": "halt", "max_consecutive_skips": 0, "variable_world": False, "min_world": 1,
        "device": "auto",
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
        lambda: bt.wrap(torch.optim.AdamW(model().parameters(), amsgrad=True)),
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
