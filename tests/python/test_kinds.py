"""The kernels of torch's optimizers against torch itself: 300 steps, no bit differs.

torch runs its loop (foreach=False) with a correctly rounded sqrt, oracle (b) of docs/numerics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ballast
import ballast.torch as bt
import pytest
import torch
from e2e.oracle import rounded_sqrt
from kinds import ADAGRAD, ADAM, ADAMW, SGD, Kind, ServiceTensor

STEPS = 300
LATE_GROUP_AT = 100
SIZES = ((1003, 64), (7, 1), (130,))  # per group; the last group is added late

Schedule = Callable[[int, int], dict[str, float]]  # (group, step) -> hyper-parameters


def sgd(group: int, step: int, **fixed: float) -> dict[str, float]:
    decay = 0.01 * group
    return {"lr": 0.1 / (1 + group) / step**0.5, "weight_decay": decay, **fixed}


def sgd_momentum(group: int, step: int) -> dict[str, float]:
    return sgd(group, step, momentum=0.9 - 0.1 * group - 0.2 / step)


def sgd_dampening(group: int, step: int) -> dict[str, float]:
    return {**sgd_momentum(group, step), "dampening": 0.3 + 0.1 / step}


def adam(group: int, step: int) -> dict[str, float]:
    return {
        "lr": 1e-3 / (1 + group) / step**0.5,
        "beta1": 0.9 - 0.1 * group,
        "beta2": 0.999 if group else 0.95 + 0.01 / step,
        "eps": 1e-8,
        "weight_decay": 0.1 * group,
    }


def adam_far(group: int, step: int) -> dict[str, float]:
    """The other form of torch's lerp, and its border."""
    return {**adam(group, step), "beta1": (0.4, 0.5, 0.0)[group], "eps": 1e-30}


def adagrad(group: int, step: int) -> dict[str, float]:
    return {"lr": 0.1 / (1 + group), "lr_decay": 0.0, "weight_decay": 0.01 * group, "eps": 1e-10}


def adagrad_decay(group: int, step: int) -> dict[str, float]:
    return {**adagrad(group, step), "lr_decay": 1e-2 * (1 + group)}


ADAGRAD_OPTIONS = {"initial_accumulator_value": 0.1, "maximize": True}
CASES: dict[str, tuple[Kind, type, Schedule, dict[str, Any]]] = {
    "sgd": (SGD, torch.optim.SGD, sgd, {}),
    "sgd-maximize": (SGD, torch.optim.SGD, sgd, {"maximize": True}),
    "sgd-momentum": (SGD, torch.optim.SGD, sgd_momentum, {"has_momentum": True}),
    "sgd-dampening": (SGD, torch.optim.SGD, sgd_dampening, {"has_momentum": True}),
    "sgd-nesterov": (
        SGD,
        torch.optim.SGD,
        sgd_momentum,
        {"has_momentum": True, "nesterov": True, "maximize": True},
    ),
    "adamw": (ADAMW, torch.optim.AdamW, adam, {}),
    "adamw-far": (ADAMW, torch.optim.AdamW, adam_far, {"maximize": True}),
    "adamw-amsgrad": (ADAMW, torch.optim.AdamW, adam, {"amsgrad": True}),
    "adam": (ADAM, torch.optim.Adam, adam, {}),
    "adam-far": (ADAM, torch.optim.Adam, adam_far, {"amsgrad": True}),
    "adam-amsgrad": (ADAM, torch.optim.Adam, adam, {"amsgrad": True, "maximize": True}),
    "adagrad": (ADAGRAD, torch.optim.Adagrad, adagrad, {}),
    "adagrad-decay": (ADAGRAD, torch.optim.Adagrad, adagrad_decay, ADAGRAD_OPTIONS),
}


def torch_names(hyper: Mapping[str, float]) -> dict[str, Any]:
    """The same hyper-parameters as keys of a torch parameter group."""
    named: dict[str, Any] = dict(hyper)
    if "beta1" in named:
        named["betas"] = (named.pop("beta1"), named.pop("beta2"))
    return named


class Pair:
    """torch's optimizer and the service's tensors, of the same initial weights."""

    def __init__(self, name: str) -> None:
        self.kind, cls, self.schedule, options = CASES[name]
        self.options = {key: 0.0 for key in self.kind.options} | options
        constructor = {key: value for key, value in options.items() if key != "has_momentum"}
        self.groups: list[list[tuple[torch.nn.Parameter, ServiceTensor]]] = []
        self.torch_groups = [self._new_group(sizes) for sizes in SIZES[:-1]]
        defaults = torch_names(self.schedule(0, 1)) | constructor
        self.optimizer = cls(self.torch_groups, foreach=False, **defaults)

    def _new_group(self, sizes: tuple[int, ...]) -> dict[str, Any]:
        tensors = []
        for size in sizes:
            weight = torch.randn(size) * 0.1
            initial = float(self.options.get("initial_accumulator_value", 0.0))
            ours = ServiceTensor(self.kind, self.options, weight.clone(), initial)
            tensors.append((torch.nn.Parameter(weight.clone()), ours))
        self.groups.append(tensors)
        hyper = torch_names(self.schedule(len(self.groups) - 1, 1))
        return {"params": [parameter for parameter, _ in tensors], **hyper}

    def add_group(self) -> None:
        self.optimizer.add_param_group(self._new_group(SIZES[-1]))

    def step(self, step: int) -> None:
        for number, tensors in enumerate(self.groups):
            hyper = self.schedule(number, step)
            self.optimizer.param_groups[number].update(torch_names(hyper))
            for place, (parameter, ours) in enumerate(tensors):
                absent = (step + number + place) % 5 == 2
                parameter.grad = None if absent else torch.randn(parameter.shape) * 1e-2
                if not absent:
                    ours.step({key: 0.0 for key in self.kind.hyper} | hyper, parameter.grad)
        with rounded_sqrt():
            self.optimizer.step()

    def differing(self) -> int:
        """Elements of p and of every array whose bits differ."""
        count = 0
        for tensors in self.groups:
            for parameter, ours in tensors:
                state = self.optimizer.state[parameter]
                pairs = [(parameter.detach(), ours.master)]
                for name, array in zip(self.kind.arrays, ours.arrays):
                    unborn = torch.full_like(array, ours.initial)  # torch's comes with a gradient
                    pairs.append((state.get(name, unborn), array))
                for theirs, mine in pairs:
                    count += int((theirs.view(torch.int32) != mine.view(torch.int32)).sum())
        return count


@pytest.mark.parametrize("name", CASES)
def test_three_hundred_steps_of_groups_gaps_and_a_late_group_equal_torch(name: str) -> None:
    torch.manual_seed(20)
    pair = Pair(name)
    for step in range(1, STEPS + 1):
        if step == LATE_GROUP_AT:
            pair.add_group()
        pair.step(step)
        assert pair.differing() == 0, f"step {step}"


@pytest.mark.parametrize("value", [-1.0, float("nan"), 1e300, "x", True])
def test_adagrads_initial_value_is_a_number_of_fp32(value):
    with pytest.raises(ballast.BadHyperparam, match="initial_accumulator_value=.*from 0 to 3.4e38"):
        bt.Adagrad([torch.nn.Parameter(torch.ones(2))], initial_accumulator_value=value)


def test_lambs_upper_limit_is_not_below_its_lower_one():
    weights = [torch.nn.Parameter(torch.ones(1))]
    seat = {"endpoints": "127.0.0.1:1", "job": "lamb", "world_size": 1, "rank": 0}
    bt.LAMB(weights, max_coeff=2, min_coeff=2, **seat)
    with pytest.raises(ballast.BadHyperparam, match="^max_coeff=0.5: must be at least min_coeff=2"):
        bt.LAMB(weights, max_coeff=0.5, min_coeff=2, **seat)
