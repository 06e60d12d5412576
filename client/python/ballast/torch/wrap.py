"""Turns a torch optimizer that a library has built into a Ballast one.

Comes from: user code. Goes to: ballast.torch.adamw.
"""

from __future__ import annotations

from typing import Any

import torch

from ballast.errors import BadArgument, Unsupported, at_border, warn
from ballast.torch.adamw import AdamW

_DEFAULTS = ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach", "capturable",
             "differentiable", "fused")  # fmt: skip
# Whose decay it is; no argument of AdamW, but groups that are added later must know it.
_DECAY = "decoupled_weight_decay"


@at_border
def wrap(optimizer: torch.optim.Optimizer, **options: Any) -> AdamW:
    """A ballast.torch.AdamW with the groups, names and hyper-parameters of a torch optimizer.

    optimizer: a torch.optim.AdamW, or a torch.optim.Adam without weight decay (the same formula);
    it must not be used afterwards. If it has stepped, its moments and step counts are taken along:
    the first step(), or attach(), loads them as load_export() does, on all trainers, unless the job
    has taken steps already (resume), whose state then counts. options: the keyword arguments of
    ballast.torch.AdamW that concern the job (endpoints, job, max_grad_norm, ...). Learning-rate
    schedulers belong on the result: one that holds the torch optimizer changes nothing here.
    Raises Unsupported, by name, for other optimizers or options, and BadArgument for options that
    the wrapped optimizer has already and for state that is not AdamW's. Groups that are added to
    the result of a wrapped Adam are refused with a weight decay, too, as those it has are.
    """
    kind = type(optimizer)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind not in (torch.optim.AdamW, torch.optim.Adam):
        raise Unsupported(
            f"wrap() of {name} is not supported; torch.optim.AdamW is, and torch.optim.Adam "
            "without weight decay"
        )
    if any("initial_lr" in group for group in optimizer.param_groups):
        warn(
            "a learning-rate scheduler was built on the wrapped optimizer; build it on the result "
            "of wrap() instead, or it will have no effect"
        )
    defaults = {key: optimizer.defaults[key] for key in _DEFAULTS if key in optimizer.defaults}
    taken = [key for key in ("params", *defaults) if key in options]
    if taken:
        raise BadArgument(
            f"wrap() takes {', '.join(taken)} from the wrapped optimizer; leave it out, or change "
            "it in param_groups of the result"
        )
    groups = [{**group, "params": list(group["params"])} for group in optimizer.param_groups]
    wrapped = AdamW(groups, **defaults, **options)
    wrapped.defaults[_DECAY] = optimizer.defaults.get(_DECAY, True)
    if any(len(state) for state in optimizer.state.values()):
        wrapped._carry(optimizer.state_dict())
    return wrapped
