"""opt.load_export() of SGD's state: a parameter may have no momentum_buffer yet, as in torch.

The bits that real servers make of it are in tests/e2e/test_optimizers.py.
"""

import pytest
import torch

import ballast.torch as bt


def sgd(value, job, cls=bt.SGD, **options):
    """Parameters a and b of one value, and their optimizer."""
    a, b = (torch.nn.Parameter(torch.full((3,), value)) for _ in range(2))
    named = [("a", a), ("b", b)] if cls is bt.SGD else [a, b]
    return a, b, cls(named, lr=0.125, **({"job": job} if cls is bt.SGD else {}), **options)


def step(optimizer, *parameters):
    optimizer.zero_grad()
    for p in parameters:
        p.grad = torch.ones_like(p)
    optimizer.step()


def test_a_weight_that_had_no_gradient_yet_is_loaded(fake):
    a, _, first = sgd(5.0, "first", momentum=0.5)
    step(first, a)
    source = first.export_state()
    assert source["state"][1]["momentum_buffer"] is None
    c, d, second = sgd(1.0, "second", momentum=0.5)
    second.load_export(source)
    assert torch.equal(c, a) and torch.equal(d, torch.full((3,), 5.0))
    state = second.export_state()["state"]
    assert torch.equal(state[0]["momentum_buffer"], source["state"][0]["momentum_buffer"])
    assert state[1]["momentum_buffer"] is None and state[1]["step"] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_job_with_momentum_takes_the_masters_of_one_without(fake, dtype):
    a = torch.nn.Parameter(torch.ones(3, dtype=dtype))
    first = bt.SGD([("a", a)], lr=1e-3, job="first")
    for _ in range(3):
        step(first, a)
    source = first.export_state()
    source["param_groups"][0]["momentum"] = 0.5
    b = torch.nn.Parameter(torch.zeros(3, dtype=dtype))
    second = bt.SGD([("a", b)], lr=1e-3, momentum=0.5, job="second")
    second.load_export(source)
    state = second.export_state()["state"][0]
    assert torch.equal(state["master"], source["state"][0]["master"]) and torch.equal(a, b)
    assert state["step"] == 0 and state["momentum_buffer"] is None
    if dtype == torch.bfloat16:  # The parameter itself cannot hold this.
        assert not torch.equal(state["master"], b.float())


def test_it_steps_as_torch_does_from_state_without_buffers(fake):
    a, b, theirs = sgd(5.0, "", torch.optim.SGD, momentum=0.5, dampening=0.25)
    step(theirs, a)
    c, d, ours = sgd(5.0, "ours", momentum=0.5, dampening=0.25)
    with torch.no_grad():
        c.copy_(a)
    ours.load_export(theirs.state_dict())
    for _ in range(2):
        step(theirs, a, b)
        step(ours, c, d)
    assert torch.equal(a, c) and torch.equal(b, d)


def two_groups(job, cls=bt.SGD, second=0.0):
    a, b = (torch.nn.Parameter(torch.full((3,), 5.0)) for _ in range(2))
    groups = [{"params": [a], "momentum": 0.5}, {"params": [b], "momentum": second}]
    more = {"job": job} if cls is bt.SGD else {"foreach": False}
    return a, b, cls(groups, lr=0.125, dampening=0.25, **more)


def states(opt):
    state = opt.export_state()["state"] if isinstance(opt, bt.SGD) else opt.state_dict()["state"]
    buffers = [state.get(i, {}).get("momentum_buffer") for i in range(2)]
    return [None if b is None else b.tolist() for b in buffers]


@pytest.mark.parametrize("way", ["same job", "other job", "torch"])
def test_a_group_without_momentum_exports_no_buffers_and_may_take_it_up(fake, way):
    a, b, theirs = two_groups("", torch.optim.SGD)
    c, d, ours = two_groups("ours")
    for _ in range(3):
        step(theirs, a, b)
        step(ours, c, d)
    assert states(ours) == states(theirs) and states(ours)[1] is None
    source = ours.export_state()
    if way == "other job":
        c, d, ours = two_groups("other")
    if way == "torch":
        c, d, ours = two_groups("", torch.optim.SGD)
        with torch.no_grad():
            c.copy_(a), d.copy_(b)
        ours.load_state_dict(source)
    else:
        ours.load_export(source)
    for opt in (theirs, ours):
        opt.param_groups[1]["momentum"] = 0.5
    for _ in range(2):
        step(theirs, a, b)
        step(ours, c, d)
    assert states(ours) == states(theirs)
    assert torch.equal(a, c) and torch.equal(b, d)


def test_a_wrapped_optimizer_comes_back_without_the_buffers_that_it_lacked(fake):
    a, b, theirs = two_groups("", torch.optim.SGD)
    step(theirs, a, b)
    opt = bt.wrap(theirs, job="wrapped")
    step(opt, a, b)
    assert states(opt)[0] is not None and states(opt)[1] is None


def test_a_buffer_is_kept_through_steps_without_momentum(fake):
    a, b, theirs = two_groups("", torch.optim.SGD, 0.5)
    c, d, ours = two_groups("ours", second=0.5)
    for momentum in (0.5, 0.0, 0.5):
        for opt in (theirs, ours):
            opt.param_groups[1]["momentum"] = momentum
        if momentum and ours.round > 1:
            ours.load_export(ours.export_state())
            ours.param_groups[1]["momentum"] = momentum
        step(theirs, a, b)
        step(ours, c, d)
        assert states(ours) == states(theirs)
    assert torch.equal(a, c) and torch.equal(b, d)
