"""A small job whose rounds follow from its weights, and the comparison of its state.

Comes from: tests of snapshots, forks, exports and imports. Goes to: cluster.Trainers.
"""

from __future__ import annotations

from pathlib import Path

import torch

from e2e.cluster import Cluster, Trainers, fresh_job

SIZES = (900, 33, 2000, 1, 641)


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(size, generator=generator)) for size in SIZES]


class Run:
    """A job whose gradients follow from weights and round: any world of 1, 2 or 4 gives the same
    mean, since all of its trainers have the same."""

    def __init__(self, cluster: Cluster, job: str, world: int, **options) -> None:
        self.replicas = [parameters() for _ in range(world)]
        self.trainers = Trainers(
            cluster, self.replicas, job=job, durability="process", lr=0.01, **options
        )
        if "resume" in options:
            self.trainers.each(lambda opt: opt.attach())

    @property
    def round(self) -> int:
        return self.trainers.optimizers[0].round

    def step(self, rounds: int, seed: int = 0) -> None:
        for _ in range(rounds):
            generator = torch.Generator().manual_seed(1000 * seed + self.round)
            noise = [torch.randn(p.numel(), generator=generator) for p in self.replicas[0]]
            for replica in self.replicas:
                for p, n in zip(replica, noise, strict=True):
                    p.grad = n + 0.1 * p.detach()
            self.trainers.step()

    def grow(self) -> None:
        """Adds a group."""
        for replica, opt in zip(self.replicas, self.trainers.optimizers, strict=True):
            late = torch.nn.Parameter(torch.ones(700))
            replica.append(late)
            opt.add_param_group({"params": [late], "lr": 0.03})

    def state(self) -> list[torch.Tensor]:
        """Masters, moments and step counts."""
        exported = self.trainers.each(lambda opt: opt.export_state())[0]
        return [
            value
            for entry in exported["state"].values()
            for value in (entry["master"], entry["exp_avg"], entry["exp_avg_sq"], entry["step"])
        ]

    def close(self) -> None:
        self.trainers.close()


def assert_equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert len(ours) == len(theirs) > 0
    for a, b in zip(ours, theirs, strict=True):
        a, b = torch.as_tensor(a), torch.as_tensor(b)
        assert torch.equal(a.view(-1).view(torch.uint8), b.view(-1).view(torch.uint8))


def assert_as_undisturbed(
    state: list[torch.Tensor], binary: Path, servers: int, folder: Path, rounds: int
) -> None:
    """`state`: Run.state() of a job of two trainers after `rounds`. Compared with that of a job on
    servers of its own, in plaintext and in `folder`, which is made, that nothing disturbs."""
    folder.mkdir()
    plain = Cluster(binary, servers, folder)
    try:
        plain.wait_until_serving()
        reference = Run(plain, fresh_job(), 2)
        reference.step(rounds)
        assert_equal(state, reference.state())
        reference.close()
    finally:
        plain.stop()
