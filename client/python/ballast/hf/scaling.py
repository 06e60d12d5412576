"""The loss scale of the service under Trainer: gradients are multiplied where they enter the model.

Comes from: ballast.hf.factory. Goes to: the model, as a hook on its forward pass. Trainer calls
backward() on the loss itself, and logs that loss, so the loss keeps its value: the hook multiplies
the gradient that arrives at it. Accelerate makes no GradScaler, because its precision is "no".
Thread safety: as the model.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch

from ballast.errors import BadArgument
from ballast.hf.resuming import ResumingOptimizer

# The hook of a model that a second optimizer takes over: its gradients are multiplied once.
_installed: weakref.WeakKeyDictionary[torch.nn.Module, Any] = weakref.WeakKeyDictionary()


def install(model: torch.nn.Module, optimizer: ResumingOptimizer) -> None:
    """Has each training pass of `model` scaled by optimizer.loss_scale, which the service moves.

    A pass raises BadArgument where ballast.hf.Callback() is missing: Trainer would clip what is
    scaled, and schedule by itself. A step raises BadArgument before it sends anything where passes
    were scaled and no gradient came through one: the loss was made of another output.
    """
    remove(model)
    hook = _Hook(optimizer)
    _installed[model] = (
        model.register_forward_hook(hook), optimizer.register_step_pre_hook(hook.check)
    )  # fmt: skip


def remove(model: torch.nn.Module) -> None:
    """No hook of ours is left on `model`."""
    for handle in _installed.pop(model, ()):
        handle.remove()


class _Hook:
    def __init__(self, optimizer: ResumingOptimizer) -> None:
        self._optimizer = optimizer
        # Since the last step: passes whose gradient is to be multiplied, and gradients that were.
        self._passes = 0
        self._gradients = 0

    def __call__(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        end = _end(output)
        if end is None or not end.requires_grad or self._optimizer.closed:
            return
        if not self._optimizer.managed:
            raise BadArgument(
                "fp16 and a scheduler section of the ds_config need "
                "Trainer(..., callbacks=[ballast.hf.Callback()])"
            )
        factor = self._optimizer.loss_scale
        if factor == 1.0:
            return
        self._passes += 1

        def multiplied(grad: torch.Tensor) -> torch.Tensor:
            self._gradients += 1
            return grad * factor

        end.register_hook(multiplied)

    def check(self, *_: Any) -> None:
        """Before a step: the gradients of its passes have the scale that the service divides by."""
        passes, gradients = self._passes, self._gradients
        self._passes = self._gradients = 0
        if passes and not gradients:
            raise BadArgument(
                f"the gradients lack the loss scale {self._optimizer.loss_scale:g}: none of them "
                f"came through the loss that the model returned in {passes} passes. Where "
                "compute_loss() makes a loss of its own from the logits, call the model without "
                "labels there: then the logits carry the scale. Or train in bf16, which needs none"
            )


def _end(output: Any) -> torch.Tensor | None:
    """The tensor from which all gradients come: the loss, or what the script makes one of."""
    if isinstance(output, Mapping):
        found = output.get("loss")
        found = output.get("logits") if found is None else found
        values = [found] if found is not None else list(output.values())
    else:
        values = list(output) if isinstance(output, (tuple, list)) else [output]
    return next((value for value in values if isinstance(value, torch.Tensor)), None)
