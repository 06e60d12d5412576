"""Trainers of one job and the oracles, fed the same gradients round by round.

Comes from: test_matrix.py, matrix_trainer.py. Goes to: cluster.Trainers, oracle.Oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import ballast.torch as bt
from e2e.cluster import Cluster, Trainers
from e2e.oracle import Oracle, differing_bits, kind_of_oracle, scale, slot_order_sum

Shapes = dict[str, tuple[int, ...]]
# Of all tensors alike, or by name.
DTypes = torch.dtype | dict[str, torch.dtype]
# (slot, tensor name) -> gradient of this round, or None.
Gradient = Callable[[int, str], "torch.Tensor | None"]


def numel(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def dtype_of(dtypes: DTypes, name: str) -> torch.dtype:
    return dtypes[name] if isinstance(dtypes, dict) else dtypes


def initial_weights(shapes: Shapes, dtypes: DTypes) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: (torch.randn(shape, generator=generator) / 8).to(dtype_of(dtypes, name))
        for name, shape in shapes.items()
    }


class Noise:
    """Reproducible gradients of many magnitudes, cut out of one pool at ever other places.

    They begin at any element, so most are misaligned; some elements are zero, minus zero or
    denormal.
    """

    def __init__(self, shapes: Shapes, dtypes: DTypes = torch.float32) -> None:
        self._at, offset = {}, 0
        for name, shape in shapes.items():
            self._at[name] = (offset, shape, dtype_of(dtypes, name))
            offset += numel(shape)
        self._slack = 100_003
        generator = torch.Generator().manual_seed(2)
        pool = torch.randn(offset + self._slack, generator=generator)
        pool *= 10.0 ** (4 * torch.rand(pool.shape, generator=generator) - 4)
        pool[::101] = 0.0
        pool[50::101] = -0.0
        pool[70::101] = 1e-40
        self._pools = {dtype: pool.to(dtype) for _, _, dtype in self._at.values()}

    def of(self, round: int, slot: int, name: str) -> torch.Tensor:
        offset, shape, dtype = self._at[name]
        start = offset + (round * 7919 + slot * 30011) % self._slack
        return self._pools[dtype][start : start + numel(shape)].view(shape)

    def at(self, round: int) -> Gradient:
        """The gradients of a round in which every trainer has all of them."""
        return lambda slot, name: self.of(round, slot, name)


class Lockstep:
    """W trainers in threads, both oracles in the calling thread."""

    def __init__(
        self,
        cluster: Cluster,
        world: int,
        groups: Sequence[dict[str, Any]],
        dtypes: DTypes = torch.float32,
        kind: str = "AdamW",
        fixed: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """groups: torch parameter groups whose "params" are {name: shape}.

        kind: the class in bt and in torch.optim. fixed: arguments for both. options: for bt's.
        """
        fixed = fixed or {}
        self._dtypes = dtypes
        self._loss_scale = options.get("loss_scale", 1.0)
        named = [_with_tensors(group, dtypes) for group in groups]
        self.replicas: list[dict[str, torch.nn.Parameter]] = [{} for _ in range(world)]
        per_slot = [[self._replica(slot, group) for group in named] for slot in range(world)]
        self.trainers = Trainers(cluster, per_slot, kind=getattr(bt, kind), **fixed, **options)
        self.oracle = Oracle(named, kind_of_oracle(kind), **fixed)

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Of all trainers and oracles, for whatever must happen to them alike."""
        return [*self.trainers.optimizers, *self.oracle.optimizers]

    def add_group(self, group: dict[str, Any]) -> None:
        named = _with_tensors(group, self._dtypes)
        for slot, opt in enumerate(self.trainers.optimizers):
            opt.add_param_group(self._replica(slot, named))
        self.oracle.add_group(named)

    def round(self, gradient: Gradient) -> dict[str, Any]:
        """One round of everybody; a skipped one steps no oracle. Returns its report."""
        world = len(self.replicas)
        for slot, replica in enumerate(self.replicas):
            for name, p in replica.items():
                p.grad = gradient(slot, name)
        report = self.trainers.step()
        self.sums = [
            slot_order_sum([replica[name].grad for replica in self.replicas])
            for name in self.oracle.names
        ]
        if report["applied"]:
            s = scale(world, report["clip_coef"], self._loss_scale)
            self.oracle.step([None if t is None else t * s for t in self.sums])
        return report

    def upload(self, weights: dict[str, torch.Tensor]) -> None:
        """Everybody's weights become these, by upload_weights() and torch's p.copy_()."""
        with torch.no_grad():
            for replica in self.replicas:
                for name, weight in weights.items():
                    replica[name].copy_(weight)
            self.oracle.copy_(weights)
        self.trainers.each(lambda opt: opt.upload_weights())

    def mean_norm(self) -> float:
        """2-norm of the unscaled mean gradient of the last round, in fp64."""
        flat = torch.cat([t.double().flatten() for t in self.sums if t is not None])
        return float(flat.norm()) / (len(self.replicas) * self._loss_scale)

    def check(self) -> None:
        """Everything equal, bit for bit: every replica's weights, masters, moments, steps."""
        for name, master in zip(self.oracle.names, self.oracle.masters(), strict=True):
            weight = master.to(dtype_of(self._dtypes, name))
            for slot, replica in enumerate(self.replicas):
                assert differing_bits(replica[name], weight) == 0, (slot, name)
        differing = self.oracle.differing_bits(self.trainers.optimizers[-1].export_state())
        assert not any(differing.values()), differing

    def finish(self) -> None:
        self.check()
        self.trainers.close()

    def _replica(self, slot: int, group: dict[str, Any]) -> dict[str, Any]:
        params = [(name, torch.nn.Parameter(w.clone())) for name, w in group["params"]]
        self.replicas[slot].update(params)
        return {**group, "params": params}


def _with_tensors(group: dict[str, Any], dtypes: DTypes) -> dict[str, Any]:
    return {**group, "params": list(initial_weights(group["params"], dtypes).items())}
