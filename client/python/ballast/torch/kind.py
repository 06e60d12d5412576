"""The differences between kinds of optimizers: their numbers, options and state arrays.

Comes from: ballast.torch.adamw and modules like it, one Kind each. Goes to: service_optimizer,
rounds, load, files, export, which know no kind by name. Pure functions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ballast.errors import BadArgument, BadHyperparam, Unsupported

MASTER = "master"  # The state array that every kind has: the weights in fp32.
# Keys of groups that tell kinds apart; any other key may be of a library or a script.
_TELLING = (
    "betas", "eps", "amsgrad", "momentum", "dampening", "nesterov", "lr_decay",
    "initial_accumulator_value", "max_coeff", "min_coeff",
)  # fmt: skip
ONLY_WEIGHTS = 'to load the weights alone, keep "params" of groups and "master" of states'


@dataclasses.dataclass(frozen=True)
class Number:
    """A hyper-parameter that travels with every round: at least 0 and below `top`.

    key: of a param group. item: its place, where the group's value is a pair.
    """

    key: str
    item: int | None = None
    top: float = math.inf

    @property
    def shown(self) -> str:
        return self.key if self.item is None else f"{self.key}[{self.item}]"


@dataclasses.dataclass(frozen=True)
class Array:
    """A state array, by torch's name.

    needs: the option without which a job has no such array. initial: the option with its elements'
    first value, which is 0 without one. may_lack: a parameter with state may have none of
    it yet.
    """

    name: str
    needs: str = ""
    initial: str = ""
    may_lack: bool = False


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of optimizer, as a row of common/job/optimizer.h and as torch shows it. Immutable.

    name: of its class in ballast.torch and, if in_torch, in torch.optim. service: its name in the
    service, where different. numbers: in the wire's order. fixed: keys of torch's groups for
    options of the job, so that all groups have one value. state: the arrays after the master.
    refused: keys of torch's groups that this version lacks. quirk: the option of the service that
    profile="deepspeed" switches on, if any.
    """

    name: str
    numbers: tuple[Number, ...]
    fixed: tuple[str, ...] = ()
    state: tuple[Array, ...] = ()
    refused: tuple[str, ...] = ()
    service: str = ""
    in_torch: bool = True
    quirk: str = ""

    def checked_defaults(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the constructor as `Optimizer.defaults`; BadHyperparam as torch does."""
        given = {number.key: defaults[number.key] for number in self.numbers}
        self.check_ranges(self.read(given, 0))
        pairs = {n.key: tuple(defaults[n.key]) for n in self.numbers if n.item is not None}
        return {**defaults, **pairs}

    def refuse_options(self, group: Mapping[str, Any], where: str) -> None:
        """Unsupported, naming `where` and the option, for options that this version lacks."""
        for option in self.refused:
            if group.get(option):
                raise Unsupported(
                    f"{where}: {option}={group[option]!r} is not supported by "
                    f"ballast.torch.{self.name}"
                )

    def refuse_group(
        self, group: Mapping[str, Any], others: Sequence[Mapping[str, Any]], where: str
    ) -> None:
        """As refuse_options(), and for fixed options that the first of `others` has not."""
        self.refuse_options(group, where)
        if others:
            self.refuse_changes([group], self.fixed_values(others[0]), where)

    def refuse_other_kind(
        self, group: Mapping[str, Any], ours: Mapping[str, Any], where: str
    ) -> None:
        """BadArgument, naming `where`, for a saved group of another kind.

        ours: the group to receive its values.
        """
        own = {*(number.key for number in self.numbers), *self.fixed, *ours}
        foreign = [key for key in _TELLING if key in group and key not in own]
        if foreign:
            raise BadArgument(
                f"{where} has {', '.join(foreign)}, which {self.name} has not: it is of another "
                f"kind of optimizer. Give the state of {self.name}; {ONLY_WEIGHTS}"
            )

    def read(self, group: Mapping[str, Any], index: int) -> tuple[float, ...]:
        """The present hyper-parameters of param_groups[index], in the wire's order.

        The servers check ranges (BAD_HYPERPARAM), equally for all slots. Raises BadHyperparam for
        anything but a number, and Unsupported as refuse_options().
        """
        where = f"param_groups[{index}]"
        self.refuse_options(group, where)
        return tuple(_value(group, number, where) for number in self.numbers)

    def check_ranges(self, values: tuple[float, ...], where: str = "") -> None:
        """BadHyperparam, with `where` in front, unless read()'s numbers are in their ranges."""
        for number, value in zip(self.numbers, values):
            if not 0.0 <= value < number.top:
                raise BadHyperparam(
                    f"{where}{number.shown}={value!r}: must be at least 0 and below {number.top}"
                )

    def options(self, groups: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """The fixed options of a job of these groups. Unsupported where groups differ."""
        options = self.fixed_values(groups[0])
        self.refuse_changes(groups, options)
        return options

    def fixed_values(self, group: Mapping[str, Any]) -> dict[str, float]:
        """One group's values of the job's options."""
        return {key: float(group.get(key) or 0) for key in self.fixed}

    def refuse_changes(
        self,
        groups: Sequence[Mapping[str, Any]],
        options: Mapping[str, float],
        where: str = "",
    ) -> None:
        """Unsupported, naming the group, or `where`, for a fixed option unlike the job's."""
        for i, group in enumerate(groups):
            for key, value in self.fixed_values(group).items():
                if value != options[key]:
                    raise Unsupported(
                        f"{where or f'param_groups[{i}]'}: {key}={group.get(key)!r} is not "
                        f"supported where the job has {options[key]:g}: all groups have one {key}, "
                        "from the first step on"
                    )

    def refuse_new_values(
        self, before: tuple[float, ...], now: tuple[float, ...], index: int
    ) -> None:
        """Unsupported, naming param_groups[index], where torch would now begin with a new array.

        before, now: read()'s numbers of the last step and of the next one.
        """

    def arrays(self, options: Mapping[str, float]) -> tuple[str, ...]:
        """The names of a job's state arrays in the service's order, MASTER first."""
        return (MASTER, *(a.name for a in self.state if not a.needs or options[a.needs]))

    def needed(self, arrays: tuple[str, ...]) -> tuple[str, ...]:
        """Those of a job's arrays that each parameter with state has; the master may be missing."""
        may_lack = {MASTER, *(a.name for a in self.state if a.may_lack)}
        return tuple(name for name in arrays if name not in may_lack)

    def initial_values(self, options: Mapping[str, float]) -> dict[str, float]:
        """The first values of arrays that do not begin at 0."""
        return {a.name: options[a.initial] for a in self.state if a.initial}

    def saved_state(
        self, saved: Mapping[str, Any], arrays: tuple[str, ...], where: str
    ) -> Mapping[str, Any]:
        """A parameter's state as torch saves it, with a "step"; empty for one without state.

        arrays: of the job. Raises Unsupported, naming `where`, for arrays that the job lacks.
        """
        for array in self.state:
            if array.name not in arrays and saved.get(array.name) is not None:
                raise Unsupported(
                    f"{where} has {array.name}: {array.needs} is not supported where this "
                    "optimizer was built without it"
                )
        return saved

    def refuse_more_arrays(
        self,
        names: Iterable[str],
        arrays: tuple[str, ...],
        where: str,
        otherwise: str = ONLY_WEIGHTS,
    ) -> None:
        """BadArgument, naming `where`, for state `names` outside the job's `arrays`.

        otherwise: the advice where no option of this kind brings the array.
        """
        more = sorted(set(names) - {"step", *arrays})
        if more:
            needed = next((a.needs for a in self.state if a.name == more[0]), "")
            advice = f"build this optimizer with {needed}" if needed else otherwise
            raise BadArgument(
                f"{where} has {', '.join(more)}, which this {self.name} has not; {advice}"
            )

    def torch_state(
        self, step: int, arrays: dict[str, torch.Tensor], group: Mapping[str, Any]
    ) -> dict[str, Any]:
        """A parameter's state as state_dict() of the kind in torch.optim has it, and MASTER.

        group: the parameter's, with its present values.
        """
        return {"step": torch.tensor(float(step), dtype=torch.float32, device="cpu"), **arrays}


def scalar(value: Any, what: str) -> float:
    """A Python float of a number or one-element tensor. BadHyperparam names `what` otherwise."""
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        raise BadHyperparam(f"{what}: a tensor of {value.numel()} elements; must have one")
    try:
        if isinstance(value, (bool, str)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: odd tensors
        raise BadHyperparam(f"{what}={value!r}: must be a number") from None


def _value(group: Mapping[str, Any], number: Number, where: str) -> float:
    value = group[number.key]
    if number.item is not None:
        try:
            first, second = value
        except (TypeError, ValueError):
            raise BadHyperparam(
                f"{where}: {number.key}={value!r}: must be two numbers"
            ) from None
        value = (first, second)[number.item]
    return scalar(value, f"{where}: {number.shown}")
