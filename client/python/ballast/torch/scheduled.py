"""The learning rates and betas that a schedule in the service decides, as param_groups show them.

Comes from: ballast.torch.rounds. Goes to: param_groups of the optimizer. The service turns each
group's own values, which the script gave to the optimizer, into those of a round; the own values
travel with every round, and param_groups show what the last round used.
Thread safety: used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ballast.errors import BadArgument, BadHyperparam, Unsupported
from ballast.schedule_rates import Rates, rates
from ballast.schedules import Schedule
from ballast.torch.kind import Kind, scalar

# The key that torch's schedulers leave in the groups of their optimizer.
SCHEDULER_MARK = "initial_lr"
INDEX_MAX = 2**53  # kStepCountMax of the service


class ScheduledRates:
    """The own values of each group, and the last round's. Without schedule: nothing.

    A group's own values are its values at the first take() that sees it.
    """

    def __init__(self, schedule: Schedule | None, kind: Kind) -> None:
        """BadHyperparam for a schedule of betas with a kind without betas."""
        self._schedule = schedule
        self._keys = () if schedule is None else ("lr", "betas") if schedule.sets_betas else ("lr",)
        if "betas" in self._keys and all(number.key != "betas" for number in kind.numbers):
            raise BadHyperparam(
                f"cycle_momentum is True, but {kind.name} has no beta1 to cycle; give "
                "cycle_momentum=False"
            )
        self._own: list[dict[str, Any]] = []
        self._shown: list[dict[str, Any]] = []

    def check_index(self, index: int | None) -> None:
        """BadArgument for an invalid position of the schedule. None: it is to stay."""
        if index is None:
            return
        if self._schedule is None:
            raise BadArgument(
                f"schedule_index={index!r}: the optimizer has no lr_schedule; leave it out"
            )
        if isinstance(index, bool) or not isinstance(index, int) or not -1 <= index <= INDEX_MAX:
            raise BadArgument(
                f"schedule_index={index!r}: must be a whole number from -1, the beginning, to "
                f"{INDEX_MAX}"
            )

    def refuse_more(self, count: int) -> None:
        """BadHyperparam when `count` groups are more than the schedule's lists have values."""
        if self._schedule is not None and 0 < self._schedule.groups < count:
            self._refuse_count(count)

    def take(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Takes the own values of new groups.

        groups: param_groups. Unsupported, naming the group, when anything but the schedule has set
        a value that the schedule decides; BadHyperparam when its lists have another length.
        """
        if self._schedule is None:
            return
        if self._schedule.groups not in (0, len(groups)):
            self._refuse_count(len(groups))
        for i, group in enumerate(groups):
            self._refuse_other_drivers(group, i)
            if i == len(self._own):
                self._own.append({key: group[key] for key in self._keys})
                self._shown.append(dict(self._own[i]))

    def own(self, groups: Sequence[Mapping[str, Any]], index: int) -> Mapping[str, Any]:
        """param_groups[index] with its own values, after take()."""
        if self._schedule is None:
            return groups[index]
        return {**groups[index], **self._own[index]}

    def show(
        self, groups: Sequence[dict[str, Any]], torch_groups: Sequence[int], used: Sequence[Rates]
    ) -> None:
        """Puts the last round's values into param_groups.

        torch_groups: of each service group. used: per service group; a new one may lack.
        """
        if self._schedule is None:
            return
        for g, (lr, beta1, beta2) in zip(torch_groups, used):
            values = {"lr": lr, "betas": (beta1, beta2)}
            self._shown[g] = {key: values[key] for key in self._keys}
        self.restore(groups)

    def show_next(self, groups: Sequence[dict[str, Any]], index: int, profile: str) -> None:
        """Puts the next round's values into param_groups, in place of the last one's.

        index: the schedule's position. profile: of the job. Raises as take().
        """
        self.take(groups)
        assert self._schedule is not None
        for g, own in enumerate(self._own):
            lr, *_ = _numbers(own["lr"], f"param_groups[{g}]: lr")
            betas = _numbers(own.get("betas", (0.0, 0.0)), f"param_groups[{g}]: betas")
            lr, *betas = rates(self._schedule, index, g, (lr, *betas), profile)
            values = {"lr": lr, "betas": tuple(betas)}
            self._shown[g] = {key: values[key] for key in self._keys}
        self.restore(groups)

    def loaded(self, groups: Sequence[dict[str, Any]]) -> None:
        """As restore(), after something was loaded into param_groups.

        The mark of a torch scheduler, which take() would refuse, is not taken over: the scheduler
        that set it stays with the saved optimizer.
        """
        if self._schedule is not None:
            for group in groups:
                group.pop(SCHEDULER_MARK, None)
        self.restore(groups)

    def restore(self, groups: Sequence[dict[str, Any]]) -> None:
        """Puts back what param_groups showed."""
        for group, shown in zip(groups, self._shown):
            group.update(shown)

    def _refuse_count(self, count: int) -> NoReturn:
        assert self._schedule is not None
        lists = [n for n, value in self._schedule.arguments().items() if isinstance(value, list)]
        raise BadHyperparam(
            f"lr_schedule={self._schedule.name}: expected {count} values for {', '.join(lists)}, "
            f"got {self._schedule.groups}; give one number for all groups or one per group"
        )

    def _refuse_other_drivers(self, group: Mapping[str, Any], index: int) -> None:
        where = f"param_groups[{index}]"
        name = self._schedule.name if self._schedule is not None else ""
        if SCHEDULER_MARK in group:
            raise Unsupported(
                f"{where} belongs to a scheduler of torch, but lr_schedule={name} decides its "
                "learning rate; leave one of the two out"
            )
        if index >= len(self._shown):
            return
        for key, shown in self._shown[index].items():
            if _numbers(group[key], f"{where}: {key}") != _numbers(shown, f"{where}: {key}"):
                raise Unsupported(
                    f"{where}: {key} was changed from {shown!r} to {group[key]!r}, but "
                    f"lr_schedule={name} decides it; leave lr_schedule out to set it in the script"
                )


def _numbers(value: Any, what: str) -> tuple[float, ...]:
    values = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(scalar(one, what) for one in values)
