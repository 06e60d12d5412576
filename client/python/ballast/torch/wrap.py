"""Turns a torch optimizer that a library has built into a Ballast one.

Comes from: user code. Goes to: ballast.torch.adamw and modules like it.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ballast.errors import BadArgument, Unsupported, at_border, warn
from ballast.torch.adagrad import Adagrad
from ballast.torch.adam import Adam
from ballast.torch.adamw import AdamW
from ballast.torch.scheduled import SCHEDULER_MARK
from ballast.torch.service_optimizer import ServiceOptimizer
from ballast.torch.sgd import SGD

_CLASSES: dict[type, type[ServiceOptimizer]] = {
    torch.optim.AdamW: AdamW,
    torch.optim.Adam: Adam,
    torch.optim.SGD: SGD,
    torch.optim.Adagrad: Adagrad,
}
# Python's own methods that change an optimizer's behaviour.
_ACTING = ("__getattribute__", "__setattr__", "__setstate__")


LOCAL = "of_a_local_step"  # Marks hooks that only concern steps in the trainer.


def also_takes(kind: type[torch.optim.Optimizer], ours: type[ServiceOptimizer]) -> None:
    """wrap() takes optimizers of the class `kind`, whose groups and state are those of `ours`."""
    _CLASSES[kind] = ours


@at_border
def wrap(optimizer: torch.optim.Optimizer, **options: Any) -> ServiceOptimizer:
    """A Ballast optimizer with the groups, names and hyper-parameters of a torch optimizer.

    optimizer: a torch.optim.AdamW, Adam, SGD or Adagrad, or of a subclass that computes as they do;
    it must not be used afterwards. If it has stepped, its state is taken along: the first step(),
    or attach(), loads it as load_export() does, on all trainers, unless the job has taken steps
    already (resume), whose state then counts.
    options: the keyword arguments of ballast.torch.AdamW that concern the job (endpoints, job,
    max_grad_norm, ...). Learning-rate schedulers belong on the result: one that holds the torch
    optimizer changes nothing here. With lr_schedule the service starts from the rates that the
    groups have now.
    Raises Unsupported, by name, for other optimizers, a method of a subclass that may step
    otherwise, and other options; BadArgument for options that the wrapped optimizer has already,
    for state of another kind, and for hooks of its step(), which would not run.
    """
    kind = next((c for c in type(optimizer).__mro__ if c in _CLASSES), type(optimizer))
    ours = _CLASSES.get(kind)
    if kind is torch.optim.Adam and optimizer.defaults.get("decoupled_weight_decay"):
        ours = AdamW
    if ours is None:
        raise Unsupported(
            f"wrap() of {kind.__module__}.{kind.__qualname__} is not supported; torch.optim.AdamW, "
            "Adam, SGD and Adagrad are"
        )
    _refuse_changed_steps(optimizer, kind)
    if any(SCHEDULER_MARK in group for group in optimizer.param_groups):
        warn(
            "a learning-rate scheduler was built on the wrapped optimizer; build it on the result "
            "of wrap() instead, or it will have no effect"
        )
    arguments = inspect.signature(ours).parameters
    defaults = {key: value for key, value in optimizer.defaults.items() if key in arguments}
    taken = [key for key in ("params", *defaults) if key in options]
    if taken:
        raise BadArgument(
            f"wrap() takes {', '.join(taken)} from the wrapped optimizer; leave it out, or change "
            "it in param_groups of the result"
        )
    groups = [{**group, "params": list(group["params"])} for group in optimizer.param_groups]
    if options.get("lr_schedule") is not None:
        for group in groups:
            group.pop(SCHEDULER_MARK, None)
    wrapped = ours(groups, **defaults, **options)
    # torch's Adagrad has state before its first step.
    if any(state and state.get("step", 1) != 0 for state in optimizer.state.values()):
        wrapped._carry(optimizer.state_dict())
    return wrapped


def _refuse_changed_steps(optimizer: torch.optim.Optimizer, kind: type) -> None:
    """Unsupported, naming the class and method, where steps may differ from those of `kind`."""
    for each in type(optimizer).__mro__:
        if each in kind.__mro__:
            continue
        for name, value in vars(each).items():
            if (name.startswith("__") and name not in _ACTING) or not hasattr(kind, name):
                continue
            # torch puts a wrapper around step into the class of the first object.
            if _unwrapped(value) is not _unwrapped(getattr(kind, name)):
                raise Unsupported(
                    f"wrap() of {each.__module__}.{each.__qualname__} is not supported: its "
                    f"{name}() is not that of {kind.__name__}, and the service steps as "
                    f"{kind.__name__} does"
                )
    step = vars(optimizer).get("step")
    if step is not None and not hasattr(step, "_wrapped_by_lr_sched"):
        raise Unsupported(
            f"wrap(): step() of this {type(optimizer).__name__} was replaced, and the service "
            f"steps as {kind.__name__} does"
        )
    before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    if not all(getattr(hook, LOCAL, False) for hook in (*before.values(), *after.values())):
        raise BadArgument(
            "wrap(): the optimizer has hooks of step(), which would not run; register them on the "
            "result instead"
        )


def _unwrapped(value: Any) -> Any:
    return inspect.unwrap(value) if callable(value) else value
