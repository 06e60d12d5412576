"""opt.state of an optimizer whose state is in the service: says what there is, and holds nothing.

Comes from: ballast.torch.job_view. Goes to: torch.optim, torch.distributed.checkpoint.
Libraries look into opt.state, and take an empty one for that of a new optimizer. Reading a value,
or writing one, is refused by name: an empty dict, or a copy whose changes are lost, would train
wrongly without a word.
Thread safety: as torch.optim.Optimizer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, NoReturn

import torch

from ballast.errors import Unsupported

# (parameter -> its name and the keys of its state, or None where the job has none of it)
Known = Callable[[torch.Tensor], "tuple[str, tuple[str, ...]] | None"]

_INSTEAD = (
    "opt.export_state() gives copies of all of it, and opt.load_export() replaces it "
    "(docs/checkpoints.md)"
)
# Calls of torch that make a state by a step with gradients of zeros.
_MAKERS = ("_init_optim_state", "init_state")
_DCP = "torch.distributed.checkpoint.state_dict"
_DEEP = 24  # frames between a call of theirs and ours, wrappers of other libraries among them


class ParameterState:
    """opt.state[p]: has the keys of torch's, and no values. Empty for a parameter not in the job.

    No Mapping: libraries that move the tensors of all mappings to a device leave it unchanged.
    """

    def __init__(self, parameter: torch.Tensor, known: Known) -> None:
        self._parameter = parameter
        self._known = known

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __contains__(self, key: object) -> bool:
        return key in self.keys()

    def __repr__(self) -> str:
        known = self._known(self._parameter)
        return "{}" if known is None else f"<{', '.join(known[1])} of {known[0]!r} in the service>"

    def __getitem__(self, key: str) -> Any:
        if self._known(self._parameter) is None:
            raise KeyError(key)
        self._refuse(f"[{key!r}]")

    def __setitem__(self, key: str, value: Any) -> None:
        self._refuse(f"[{key!r}] = ...")

    def __delitem__(self, key: str) -> None:
        self._refuse(f"[{key!r}]")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse(f".{name}()")

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._refuse(" as a copy")

    def keys(self) -> tuple[str, ...]:
        known = self._known(self._parameter)
        return () if known is None else known[1]

    def get(self, key: str, default: Any = None) -> Any:
        return default if self._known(self._parameter) is None else self[key]

    def _refuse(self, what: str) -> NoReturn:
        known = self._known(self._parameter)
        name = "a parameter" if known is None else f"parameter {known[0]!r}"
        raise Unsupported(f"opt.state[p]{what} of {name}: the state is in the service; {_INSTEAD}")


class ServiceState(MutableMapping):
    """opt.state: the parameters in the job, each with a ParameterState.

    present: the job's parameters.
    """

    def __init__(self, present: Callable[[], list[torch.Tensor]], known: Known) -> None:
        self._present = present
        self._known = known

    def __bool__(self) -> bool:
        # Also before the first step: DCP makes the state of an optimizer without by a step.
        return True

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self._present())

    def __len__(self) -> int:
        return len(self._present())

    def __contains__(self, parameter: object) -> bool:
        return any(each is parameter for each in self._present())

    def __getitem__(self, parameter: torch.Tensor) -> ParameterState:
        return ParameterState(parameter, self._known)

    def get(self, parameter: torch.Tensor, default: Any = None) -> Any:
        return self[parameter] if parameter in self else default

    def __setitem__(self, parameter: torch.Tensor, value: Any) -> None:
        if isinstance(value, ParameterState) and value._parameter is parameter:
            return
        raise Unsupported(f"opt.state[p] = ...: the state is in the service; {_INSTEAD}")

    def __delitem__(self, parameter: torch.Tensor) -> None:
        if parameter not in self:
            raise KeyError(parameter)
        raise Unsupported(f"del opt.state[p]: the state is in the service; {_INSTEAD}")

    def __repr__(self) -> str:
        return f"<state of {len(self)} parameters in the service>"


def refuse_replaced(state: Any, attached: bool) -> None:
    """Unsupported for `opt.state = state`, unless nothing is lost by it."""
    if attached or state:
        raise Unsupported(f"opt.state = ...: the state is in the service; {_INSTEAD}")


def asked_by_dcp() -> bool:
    """Whether torch.distributed.checkpoint's get_optimizer_state_dict() makes this call."""
    return _called_by(_DCP, ("_get_optim_state_dict",))


def refuse_made_up_step() -> None:
    """Unsupported when torch.distributed steps, only to make the state of the optimizer."""
    if _called_by("torch.distributed.", _MAKERS):
        raise Unsupported(
            "torch.distributed makes an optimizer's state by a step with gradients of zeros; here "
            f"that would be a round of the job. The state is in the service; {_INSTEAD}"
        )


def _called_by(module: str, names: tuple[str, ...]) -> bool:
    frame = sys._getframe(2)
    for _ in range(_DEEP):
        if frame is None:
            return False
        of = frame.f_globals.get("__name__", "")
        if frame.f_code.co_name in names and of.startswith(module):
            return True
        frame = frame.f_back
    return False
