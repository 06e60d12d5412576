"""SGD's buffers through real servers: who has none yet, before and after a load, as in torch."""

from __future__ import annotations

import pytest
import torch

import ballast.torch as bt
from e2e.cluster import HANG_S, Cluster, fresh_job

SIZE = 300
GRADIENTS = [torch.randn(SIZE, generator=torch.Generator().manual_seed(i)) for i in range(8)]


class Twins:
    """One run with torch and one with Ballast: a group with momentum and one without at first."""

    def __init__(self, cluster: Cluster, second: float = 0.0) -> None:
        self.endpoints = cluster.endpoints
        self.count = 0
        self.theirs, self.torch = self._build(torch.optim.SGD, second, foreach=False)
        self.begin(second)

    def begin(self, second: float) -> None:
        """A new job of Ballast, in place of the one before."""
        self.ours, self.ballast = self._build(
            bt.SGD, second, endpoints=self.endpoints, job=fresh_job(), attach_timeout=HANG_S,
            durability="process",
        )  # fmt: skip

    def _build(self, cls, second, **options):
        a, b = (torch.nn.Parameter(torch.ones(SIZE)) for _ in range(2))
        groups = [
            {"params": [("a", a)], "momentum": 0.5},
            {"params": [("b", b)], "momentum": second},
        ]
        return (a, b), cls(groups, lr=0.125, dampening=0.25, **options)

    def momentum(self, value: float) -> None:
        for opt in (self.torch, self.ballast):
            opt.param_groups[1]["momentum"] = value

    def step(self, rounds: int) -> None:
        for _ in range(rounds):
            for p in (*self.theirs, *self.ours):
                p.grad = GRADIENTS[self.count % len(GRADIENTS)].clone()
            self.count += 1
            self.torch.step()
            self.ballast.step()

    def expect_same(self) -> None:
        assert all(torch.equal(a, b) for a, b in zip(self.theirs, self.ours))
        exported, state = self.ballast.export_state()["state"], self.torch.state_dict()["state"]
        for i in range(2):
            ours = exported[i]["momentum_buffer"]
            theirs = state.get(i, {}).get("momentum_buffer")
            assert (ours is None) == (theirs is None)
            assert ours is None or torch.equal(ours, theirs)


@pytest.mark.parametrize("anew", [False, True], ids=["same job", "new job"])
@pytest.mark.parametrize("before", [0.0, 0.5])
def test_a_group_takes_momentum_up_after_a_load_with_torchs_bits(clusters, before, anew):
    twins = Twins(clusters(1), before)
    twins.step(2)
    twins.momentum(0.0)
    twins.step(2)
    twins.expect_same()
    source = twins.ballast.export_state()
    if anew:
        twins.ballast.close()
        twins.begin(before)
    twins.ballast.load_export(source)
    twins.momentum(0.5)
    twins.expect_same()
    twins.step(3)
    twins.expect_same()
    twins.ballast.close()


def test_a_job_with_momentum_begins_with_the_masters_of_one_without(clusters):
    cluster = clusters(1)
    a = torch.nn.Parameter(torch.ones(SIZE, dtype=torch.bfloat16))
    options = {"lr": 1e-3, "endpoints": cluster.endpoints, "attach_timeout": HANG_S}
    first = bt.SGD([("a", a)], job=fresh_job(), durability="process", **options)
    for gradient in GRADIENTS:
        a.grad = gradient.bfloat16()
        first.step()
    source = first.export_state()
    source["param_groups"][0]["momentum"] = 0.5
    first.close()
    b = torch.nn.Parameter(torch.zeros(SIZE, dtype=torch.bfloat16))
    second = bt.SGD([("a", b)], momentum=0.5, job=fresh_job(), durability="process", **options)
    second.load_export(source)
    state = second.export_state()["state"][0]
    assert torch.equal(state["master"], source["state"][0]["master"])
    assert torch.equal(a, b) and state["momentum_buffer"] is None
    second.close()
