"""opt.state holds nothing, says so by name, and no library begins or steps a job through it."""

import copy

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp
from torch.utils._pytree import tree_map

import ballast
import ballast.torch as bt


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2, bias=False))


def trained(steps, kind=bt.AdamW, **options):
    module = model()
    opt = kind(module.named_parameters(), lr=0.1, **options)
    for _ in range(steps):
        opt.zero_grad()
        module(torch.ones(2, 4)).square().mean().backward()
        opt.step()
    opt.zero_grad()
    return module, opt


def calls(fake):
    return [call[0] for core in fake.attached for call in core.calls]


GETTERS = {
    "get_optimizer_state_dict": lambda m, o: dcp.get_optimizer_state_dict(m, o),
    "get_state_dict": lambda m, o: dcp.get_state_dict(m, o)[1],
    "flattened": lambda m, o: dcp.get_optimizer_state_dict(
        m, o, options=dcp.StateDictOptions(flatten_optimizer_state_dict=True)
    ),
    "full": lambda m, o: dcp.get_optimizer_state_dict(
        m, o, options=dcp.StateDictOptions(full_state_dict=True, cpu_offload=True)
    ),
}


@pytest.mark.parametrize("getter", GETTERS)
@pytest.mark.parametrize("kind", [bt.AdamW, bt.SGD])
def test_dcp_gets_the_state_and_takes_no_round(fake, getter, kind):
    options = {"momentum": 0.5} if kind is bt.SGD else {}
    module, opt = trained(3, kind, **options)
    array = "momentum_buffer" if kind is bt.SGD else "exp_avg"
    got = GETTERS[getter](module, opt)
    exported = opt.export_state()
    for i, name in exported["names"].items():
        key = f"state.{name}.{array}"
        theirs = got[key] if getter == "flattened" else got["state"][name][array]
        assert torch.equal(theirs, exported["state"][i][array])
    assert calls(fake) == ["step"] * 3
    assert opt.param_groups[0]["lr"] == 0.1


def test_what_dcp_has_got_comes_back_with_load_export_and_not_with_a_setter(fake):
    module, opt = trained(3)
    got = dcp.get_optimizer_state_dict(module, opt)
    expected = opt.export_state()["state"]
    other, new = trained(0, job="other")
    for setter in (
        lambda: dcp.set_optimizer_state_dict(other, new, copy.deepcopy(got)),
        lambda: dcp.set_state_dict(
            other, new, model_state_dict=other.state_dict(), optim_state_dict=copy.deepcopy(got)
        ),
    ):
        with pytest.raises(ballast.Unsupported, match=r"opt.load_export\(state_dict\)"):
            setter()
    assert len(fake.attached) == 1
    new.load_export(got)
    loaded = new.export_state()["state"]
    assert all(torch.equal(loaded[i]["exp_avg"], expected[i]["exp_avg"]) for i in expected)


@pytest.mark.parametrize("getter", GETTERS)
def test_before_the_first_step_dcp_is_refused_and_nothing_begins(fake, getter):
    module, opt = trained(0)
    with pytest.raises(ballast.BadArgument, match="needs a running job"):
        GETTERS[getter](module, opt)
    assert not fake.attached and all(p.grad is None for p in module.parameters())


def test_a_step_that_torch_makes_up_is_refused(fake):
    from torch.distributed.optim.named_optimizer import _NamedOptimizer

    class Named(_NamedOptimizer):
        def __init__(self, module, opt):
            self.named_parameters, self._optimizer = dict(module.named_parameters()), opt

        def step(self, closure=None):
            return self._optimizer.step(closure)

    for steps in (0, 1):
        module, opt = trained(steps, job=f"after-{steps}")
        with pytest.raises(ballast.Unsupported, match="a round of the job"):
            Named(module, opt).init_state()
    assert calls(fake) == ["step"]


def test_what_only_looks_at_an_optimizer_begins_nothing(fake):
    _, opt = trained(0)
    seen = []
    opt.register_state_dict_post_hook(lambda o, packed: seen.append(dict(o.state)))
    opt.register_step_post_hook(lambda o, *_: seen.append(o.state_dict()))
    for make in (
        lambda: torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 0.5),
        lambda: torch.optim.lr_scheduler.OneCycleLR(opt, 1.0, total_steps=5),
        lambda: torch.optim.lr_scheduler.ReduceLROnPlateau(opt),
    ):
        scheduler = make()
        scheduler.load_state_dict(scheduler.state_dict())
    assert opt.state_dict()["state"] == {} and seen == [{}]
    repr(opt), len(opt.state), list(opt.state.items()), bool(opt.state)
    assert not fake.attached


def test_a_parameter_has_the_keys_of_its_state_and_refuses_the_values(fake):
    module, opt = trained(2)
    weight, free = module[0].weight, nn.Parameter(torch.ones(1))
    state = opt.state[weight]
    assert list(state) == ["step", "exp_avg", "exp_avg_sq"] and len(state) == 3
    assert "exp_avg" in state and weight in opt.state and len(opt.state) == 3
    assert "'0.weight' in the service" in repr(state)
    for ask in (
        lambda: state["exp_avg"],
        lambda: state.get("exp_avg"),
        lambda: state["exp_avg"].zero_(),
        lambda: state.items(),
        lambda: state.update(exp_avg=0),
        lambda: state.__setitem__("exp_avg", 0),
        lambda: state.pop("exp_avg"),
        lambda: copy.deepcopy(state),
        lambda: opt.state.pop(weight),
        lambda: opt.state.__setitem__(free, {"step": 1}),
        lambda: opt.state.__delitem__(weight),
        lambda: opt.state.clear(),
        lambda: setattr(opt, "state", {}),
    ):
        with pytest.raises(ballast.Unsupported, match=r"the state is in the service; .*export_st"):
            ask()
    assert calls(fake) == ["step"] * 2


def test_before_the_first_step_there_is_no_state(fake):
    module, opt = trained(0)
    state = opt.state[module[0].weight]
    assert len(state) == 0 and list(opt.state) == [] and state.get("step") is None
    assert opt.state.get(module[0].weight) is None and repr(state) == "{}"
    with pytest.raises(KeyError):
        state["step"]
    opt.state = {}  # A script that starts over.
    for write in (
        lambda: state.__setitem__("step", 1),
        lambda: setattr(opt, "state", {module[0].weight: {"step": 1}}),
    ):
        with pytest.raises(ballast.Unsupported, match=r"opt.load_export\(\) replaces it"):
            write()


def test_a_library_that_moves_tensors_to_a_device_moves_none(fake):
    _, opt = trained(1)
    for parameter, value in opt.state.items():  # as Lightning does it
        opt.state[parameter] = tree_map(lambda leaf: leaf, value)
    assert calls(fake) == ["step"]
