"""optimizer.optimizer, as scripts know it from DeepSpeed: a view of an engine's optimizer.

Comes from: ballast.deepspeed.building. Goes to: the optimizer, and through it the servers. Thread
safety: as the optimizer.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import torch

import ballast.torch as bt
from ballast.errors import BadArgument, Unsupported, at_border
from ballast.torch.service_optimizer import ServiceOptimizer

_SET_STATE = (
    "optimizer.optimizer.state is a read-only copy of the servers' state: load_export() of the "
    "engine's optimizer sets it"
)


def _refused(name: str) -> Any:
    """A method for hooks of the step(), which is not this class's and would not run them."""

    @at_border
    def register(self: BasicOptimizer, *_: Any, **__: Any) -> NoReturn:
        raise Unsupported(
            f"optimizer.optimizer.{name}(): the servers step, and the hook would not run; "
            "register it on engine.optimizer"
        )

    return register


def _passed_on(name: str) -> Any:
    """A method for hooks of the state dict, which is that of the engine's optimizer."""

    def register(self: BasicOptimizer, *args: Any, **more: Any) -> Any:
        return getattr(self.stepped(), name)(*args, **more)

    return register


class BasicOptimizer(torch.optim.Optimizer):
    """The groups and the state of an engine's optimizer, without its rounds.

    param_groups: the engine's optimizer's own list; rates written there count. It lives as
    long as that optimizer does. Schedules of torch may be built on it.
    """

    def __init__(self, optimizer: ServiceOptimizer) -> None:
        # Not super().__init__(), which would make groups.
        self._of = weakref.ref(optimizer)
        self._opt_called = True  # Schedules warn when their optimizer has not stepped.
        self.__setstate__({"defaults": dict(optimizer.defaults)})

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.stepped().param_groups

    @property
    @at_border
    def state(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:  # type: ignore[override]
        """{parameter: {"step", "exp_avg", ...}} as after the last round; {} before the first one.

        Each read downloads all of it, 4 bytes per parameter and array. The result is read-only:
        torch refuses edits of these tensors (RuntimeError), and Python those of the mappings.
        """
        optimizer = self.stepped()
        if optimizer.opt_step == 0:
            return MappingProxyType({})
        with torch.inference_mode():
            exported = optimizer.export_state()["state"]
        order = [p for group in optimizer.param_groups for p in group["params"]]
        for arrays in exported.values():
            arrays.pop("master")
        return MappingProxyType({order[i]: MappingProxyType(a) for i, a in exported.items()})

    @state.setter
    @at_border
    def state(self, _: Any) -> NoReturn:
        raise Unsupported(_SET_STATE)

    @property
    def adam_w_mode(self) -> bool:
        """Of AdamW and Adam: whether weight decay is decoupled."""
        optimizer = self.stepped()
        if not isinstance(optimizer, (bt.AdamW, bt.Adam)):
            raise AttributeError(f"{type(optimizer).__name__} has no adam_w_mode")
        return isinstance(optimizer, bt.AdamW)

    @at_border
    def step(self, closure: Any = None) -> NoReturn:  # type: ignore[override]
        raise Unsupported("optimizer.optimizer.step(): the servers step; call engine.step()")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.stepped().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        return self.stepped().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.stepped().load_state_dict(state_dict)

    register_step_pre_hook = _refused("register_step_pre_hook")
    register_step_post_hook = _refused("register_step_post_hook")
    register_state_dict_pre_hook = _passed_on("register_state_dict_pre_hook")
    register_state_dict_post_hook = _passed_on("register_state_dict_post_hook")
    register_load_state_dict_pre_hook = _passed_on("register_load_state_dict_pre_hook")
    register_load_state_dict_post_hook = _passed_on("register_load_state_dict_post_hook")

    __reduce_ex__ = ServiceOptimizer.__reduce_ex__

    @at_border
    def stepped(self) -> ServiceOptimizer:
        """The engine's optimizer. BadArgument when it is gone."""
        optimizer = self._of()
        if optimizer is None:
            raise BadArgument("optimizer.optimizer outlives its engine: keep the engine")
        return optimizer


def give(optimizer: ServiceOptimizer) -> ServiceOptimizer:
    """The optimizer, which has a BasicOptimizer as its `optimizer` from now on."""
    vars(optimizer)["optimizer"] = BasicOptimizer(optimizer)
    return optimizer


class Known(type):
    """isinstance() also of an optimizer that the service steps, and of its `optimizer`.

    The class says in `_service` which ones; classes of scripts that derive from it do not count.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        stepped = instance._of() if isinstance(instance, BasicOptimizer) else instance
        return isinstance(stepped, cls.__dict__.get("_service", ())) or (
            super().__instancecheck__(instance)
        )
