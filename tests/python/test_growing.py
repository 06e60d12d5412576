"""Parameters that leave their group and others that take their place, as in models that grow."""

import pytest
import torch
from torch import nn

import ballast
import ballast.torch as bt

LEFT = "in no parameter group any more.*docs/optimizers.md#parameters-that-grow"
ARRAYS = ("exp_avg", "exp_avg_sq")


def points(optimizer, **options):
    torch.manual_seed(0)
    p, other = nn.Parameter(torch.randn(10, 3)), nn.Parameter(torch.randn(4))
    groups = [{"params": [("xyz", p)], "lr": 0.1}, {"params": [("other", other)], "lr": 0.01}]
    return optimizer(groups, **options)


def step(opt, i):
    opt.zero_grad()
    for group in opt.param_groups:
        for p in group["params"]:
            generator = torch.Generator().manual_seed(i)
            p.grad = torch.randn(p.shape, generator=generator)
    opt.step()


def grown(p):
    generator = torch.Generator().manual_seed(len(p))
    return nn.Parameter(torch.cat((p.detach(), torch.randn(5, 3, generator=generator))))


def extended(state):
    return {key: torch.cat((state[key], torch.zeros(5, 3))) for key in ARRAYS}


def same(a, b):
    mine, theirs = a.param_groups, b.param_groups
    return all(
        torch.equal(p, q) for g, h in zip(mine, theirs) for p, q in zip(g["params"], h["params"])
    )


def test_a_parameter_in_the_place_of_another_begins_anew_as_in_torch(fake):
    opt, theirs = points(bt.Adam), points(torch.optim.Adam, foreach=False)
    for i in range(9):
        if i % 3 == 2:
            theirs.state.pop(theirs.param_groups[0]["params"][0])
            for o in (opt, theirs):
                group = o.param_groups[0]
                group["params"][0] = grown(group["params"][0])
            with pytest.warns(UserWarning, match=f"'xyz' is {LEFT}") as warned:
                step(opt, i)
            assert [w.filename for w in warned] == [__file__]
        else:
            step(opt, i)
        step(theirs, i)
    assert same(opt, theirs) and opt.opt_step == 9
    assert [t[0] for t in fake.last.tensors] == ["xyz", "other", "xyz#2", "xyz#3", "xyz#4"]
    state, expected = opt.export_state(), theirs.state_dict()
    assert state["names"] == {0: "xyz", 1: "other"}
    assert state["state"][0]["step"] == expected["state"][0]["step"] == 1
    assert opt.state_dict()["param_groups"] is not None and len(opt.state) == 2


def test_a_parameter_grows_with_its_moments(fake):
    """The documented way, and the one of torch's users."""
    opt, theirs = points(bt.Adam), points(torch.optim.Adam, foreach=False)
    for i in range(6):
        if i == 3:
            state = opt.export_state()
            old = state["state"][0]
            added = grown(opt.param_groups[0]["params"][0])
            state["state"][0] = {"step": old["step"], **extended(old)}
            opt.param_groups[0]["params"][0] = added
            with pytest.warns(UserWarning, match=LEFT):
                opt.load_export(state)
            group = theirs.param_groups[0]
            kept = theirs.state.pop(group["params"][0])
            group["params"][0] = grown(group["params"][0])
            theirs.state[group["params"][0]] = {"step": kept["step"], **extended(kept)}
        step(opt, i)
        step(theirs, i)
    assert same(opt, theirs)


def test_what_has_left_is_not_touched_and_may_change(fake):
    opt = points(bt.Adam, accumulation_steps=2)
    step(opt, 0)
    step(opt, 1)
    p = opt.param_groups[0]["params"].pop()
    p.grad = torch.ones(10, 3)
    with pytest.warns(UserWarning, match=LEFT):
        step(opt, 2)
    with torch.no_grad():
        p.add_(1.0)
    p.data.add_(1.0)
    kept = p.detach().clone()
    step(opt, 3)
    step(opt, 4)
    step(opt, 5)
    assert torch.equal(p, kept) and torch.equal(p.grad, torch.ones(10, 3)) and opt.round == 3
    assert [call[2][0] for call in fake.last.calls][1:] == [0, 0]  # no gradient is lent
    opt.param_groups[0]["params"].append(p)
    with pytest.raises(ballast.BadArgument, match="'xyz' .* or is there again.*start a new job"):
        step(opt, 6)


@pytest.mark.parametrize("options", [{"resume": "auto", "durability": "power"}, {"world_size": 2}])
def test_a_job_of_several_trainers_or_that_resumes_keeps_its_parameters(fake, options):
    opt = points(bt.Adam, **{"rank": 0, **options})
    opt.attach()
    step(opt, 0)
    opt.param_groups[0]["params"][0] = nn.Parameter(torch.zeros(12, 3))
    with pytest.raises(ballast.BadArgument, match="'xyz' is not in opt.param_groups.0. any more"):
        opt.step()
