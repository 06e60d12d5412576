"""opt.load_export(): its sources, its refusals, and that a refusal changes nothing.

The bits that real servers make of it are in tests/e2e/test_load_export.py.
"""

import copy

import pytest
import torch
from torch import nn

import ballast
import ballast.torch as bt

ARRAYS = ("master", "exp_avg", "exp_avg_sq")


def model(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).to(dtype)


def stepped(module, optimizer, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.ones(1, 4, dtype=module[0].weight.dtype)
        module(x).float().square().sum().backward()
        optimizer.step()
    return optimizer


def torch_state(module=None, **options):
    module = module or model()
    return stepped(module, torch.optim.AdamW(module.parameters(), **options)).state_dict()


def planes(fake):
    return [call[1] for call in fake.last.calls if call[0] == "plane"]


def same_state(a, b):
    for i in a["state"]:
        for key in (*ARRAYS, "step"):
            assert torch.equal(a["state"][i][key], b["state"][i][key]), (i, key)


def test_a_torch_state_becomes_the_services(fake):
    source = torch_state(lr=0.125, betas=(0.5, 0.75))
    module = model()
    opt = bt.AdamW(module.parameters())
    opt.load_export(source)
    assert (opt.round, opt.opt_step, planes(fake)) == (3, 3, [2, 4, 6])
    state = opt.export_state()["state"]
    for i, parameter in enumerate(module.parameters()):
        assert torch.equal(state[i]["master"], parameter)
        for key in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(state[i][key], source["state"][i][key])
    group = opt.param_groups[0]
    assert (group["lr"], group["betas"]) == (0.125, (0.5, 0.75))
    assert group["params"] == list(module.parameters())


def test_step_counts_come_with_the_last_plane_only(fake):
    opt = bt.AdamW(model().parameters())
    opt.load_export(torch_state())
    steps = [call[2] for call in fake.last.calls if call[0] == "plane"]
    assert steps == [[], [], [3, 3, 3, 3]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_export_comes_back_bit_for_bit(fake, dtype):
    module = model(dtype)
    first = stepped(module, bt.AdamW(module.parameters(), model=module, lr=0.1))
    source = first.export_state()
    other = model(dtype)
    second = bt.AdamW(other.parameters(), model=other, job="second")
    with torch.no_grad():
        other[0].weight.zero_()
    second.load_export(source)
    same_state(source, second.export_state())
    assert planes(fake) == ([2, 4, 6] if dtype == torch.float32 else [2, 3, 4, 5, 6, 7])
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters()))
    assert second.param_groups[0]["lr"] == 0.1


def test_parameters_are_found_by_name_where_the_source_has_names(fake):
    module = model()
    source = stepped(module, bt.AdamW(module.named_parameters())).export_state()
    other = model()
    reversed_order = bt.AdamW(list(other.named_parameters())[::-1], job="second")
    reversed_order.load_export(source)
    ours = reversed_order.export_state()
    by_name = {name: ours["state"][i] for i, name in ours["names"].items()}
    for i, name in source["names"].items():
        assert torch.equal(by_name[name]["exp_avg"], source["state"][i]["exp_avg"])


def test_parameters_without_state_begin_anew_and_frozen_ones_are_left_alone(fake):
    source = torch_state()
    del source["state"][1]
    module = model()
    module[1].weight.requires_grad_(False)
    opt = bt.AdamW(module.parameters())
    opt.load_export(source)
    state = opt.export_state()["state"]
    assert sorted(state) == [0, 1, 3]
    assert state[1]["step"] == 0 and not state[1]["exp_avg"].any()
    assert torch.equal(state[3]["exp_avg"], source["state"][3]["exp_avg"])


def test_a_group_that_the_source_lacks_begins_anew(fake):
    late = nn.Parameter(torch.ones(3))
    opt = bt.AdamW(model().parameters())
    opt.add_param_group({"params": [late], "lr": 7.0})
    opt.load_export(torch_state(lr=0.5))
    assert [g["lr"] for g in opt.param_groups] == [0.5, 7.0]
    assert opt.export_state()["state"][4]["step"] == 0


def test_a_running_job_takes_it_between_two_steps_with_weights_that_were_edited(fake):
    module, twin = model(), model()
    opt = stepped(module, bt.AdamW(module.parameters(), max_grad_norm=None), 2)
    theirs = torch.optim.AdamW(twin.parameters(), foreach=False)
    source = stepped(twin, theirs, 4).state_dict()
    with torch.no_grad():
        for a, b in zip(module.parameters(), twin.parameters()):
            a.copy_(b)
    opt.load_export(copy.deepcopy(source))
    stepped(module, opt, 2)
    stepped(twin, theirs, 2)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), twin.parameters()))


def test_strided_and_empty_parameters_and_16_bit_moments(fake):
    strided = nn.Parameter(torch.randn(4, 6).t())
    empty = nn.Parameter(torch.zeros(0, 3))
    moments = [torch.randn(6, 4).to(torch.bfloat16).t().contiguous().t(), torch.zeros(0, 3)]
    source = {
        "state": {
            i: {"step": 4, "exp_avg": m, "exp_avg_sq": m.abs()} for i, m in enumerate(moments)
        },
        "param_groups": [{"params": [0, 1]}],
    }
    before = strided.detach().clone()
    opt = bt.AdamW([strided, empty])
    opt.load_export(source)
    state = opt.export_state()["state"]
    assert torch.equal(state[0]["exp_avg"], moments[0].float()) and state[0]["step"] == 4
    assert torch.equal(strided, before)


def broken(change):
    source = torch_state()
    change(source)
    return source


def with_state(i, **values):
    return lambda source: source["state"][i].update(values)


BAD = {
    "no dict": (lambda: [1], ballast.BadArgument, "got a list"),
    "no groups": (lambda: {"state": {}}, ballast.BadArgument, '"param_groups"'),
    "a handle": (
        lambda: bt.AdamW(model().parameters(), job="x").state_dict(),
        ballast.BadArgument,
        "a handle, which holds no tensors",
    ),
    "groups": (
        lambda: broken(lambda s: s["param_groups"].append({"params": [4]})),
        ballast.BadArgument,
        "2 parameter groups, this optimizer 1",
    ),
    "count": (
        lambda: broken(lambda s: s["param_groups"][0]["params"].pop()),
        ballast.BadArgument,
        "3 parameters in the source and 4",
    ),
    "shape": (
        lambda: broken(with_state(1, exp_avg=torch.zeros(5))),
        ballast.BadArgument,
        r"parameter '0.bias': exp_avg has shape \(5,\).*the parameter's is \(4,\)",
    ),
    "dtype": (
        lambda: broken(with_state(1, exp_avg_sq=torch.zeros(4, dtype=torch.float64))),
        ballast.BadArgument,
        "parameter '0.bias': exp_avg_sq is torch.float64",
    ),
    "no tensor": (lambda: broken(with_state(0, exp_avg=1.0)), ballast.BadArgument, "is a float"),
    "half a step": (
        lambda: broken(with_state(2, step=torch.tensor(1.5))),
        ballast.BadArgument,
        r"'1.weight': step is tensor\(1.5000\); it must be a whole number",
    ),
    "negative": (lambda: broken(with_state(2, step=-1)), ballast.BadArgument, "step is -1"),
    "nan": (lambda: broken(with_state(2, step=float("nan"))), ballast.BadArgument, "step is nan"),
    "sgd": (
        lambda: broken(lambda s: s["state"].update({0: {"momentum_buffer": torch.zeros(4, 4)}})),
        ballast.BadArgument,
        "has 'momentum_buffer' in the source, but no 'step' and no 'exp_avg'",
    ),
    "amsgrad": (lambda: torch_state(amsgrad=True), ballast.Unsupported, "amsgrad"),
    "amsgrad state": (
        lambda: broken(with_state(0, max_exp_avg_sq=torch.zeros(4, 4))),
        ballast.Unsupported,
        "'0.weight' has max_exp_avg_sq",
    ),
    "negative lr": (
        lambda: broken(lambda s: s["param_groups"][0].update(lr=-1.0)),
        ballast.BadHyperparam,
        r"param_groups\[0\] of the source: lr=-1.0: must be at least 0",
    ),
    "lr that is nan": (
        lambda: broken(lambda s: s["param_groups"][0].update(lr=float("nan"))),
        ballast.BadHyperparam,
        r"param_groups\[0\] of the source: lr=nan: must be",
    ),
    "betas of 1": (
        lambda: broken(lambda s: s["param_groups"][0].update(betas=(1.0, 0.9))),
        ballast.BadHyperparam,
        r"betas\[0\]=1.0: must be",
    ),
    "hyper": (
        lambda: broken(lambda s: s["param_groups"][0].update(lr="fast")),
        ballast.BadHyperparam,
        "lr='fast'",
    ),
    "unknown": (
        lambda: broken(lambda s: s["state"].update({9: s["state"][0]})),
        ballast.BadArgument,
        "state of parameter 9, which this optimizer does not have",
    ),
    "unknown name": (
        lambda: broken(lambda s: s.update(names={0: "0.weight", 1: "b", 2: "c", 3: "d"})),
        ballast.BadArgument,
        "state of parameter 'b', which this optimizer does not have",
    ),
}


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize("case", BAD)
def test_a_source_that_does_not_fit_is_refused_and_changes_nothing(fake, case, attached):
    make, error, match = BAD[case]
    source = make()
    module = model()
    opt = bt.AdamW(module.named_parameters(), lr=0.1)
    if attached:
        stepped(module, opt)
        before = opt.export_state()
    with pytest.raises(error, match=match):
        opt.load_export(source)
    assert opt.param_groups[0]["lr"] == 0.1
    if attached:
        assert planes(fake) == []
        same_state(before, opt.export_state())
    else:
        assert opt.round == 0 and opt.job_id == 0


def test_a_closed_optimizer_takes_nothing(fake):
    opt = bt.AdamW(model().parameters())
    opt.close()
    with pytest.raises(ballast.Closed):
        opt.load_export(torch_state())
