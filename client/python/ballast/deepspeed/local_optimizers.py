"""Optimizers of DeepSpeed that torch has not, stepped here until initialize() takes them over.

Comes from: scripts, as `from ballast.deepspeed.ops.lion import FusedLion`. Goes to: torch tensors,
or, in initialize(), bt.Lion and bt.LAMB. Thread safety: as torch.optim.
docs/numerics.md has the formulas, sections 10.4 and 10.5; here they are torch's operations in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

import ballast.torch as bt
from ballast.deepspeed.basic_optimizer import Known
from ballast.errors import Unsupported, at_border
from ballast.torch.wrap import LOCAL, also_takes


class _Local(torch.optim.Optimizer):
    """Steps parameter by parameter, in fp32; a 16-bit parameter is rounded once."""

    _arrays: tuple[str, ...] = ("exp_avg",)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of all parameters with a gradient. Returns the closure's result."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._step_one(p, group)
        return loss

    def _step_one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        if not state:
            state["step"] = 0
        state["step"] += 1
        for name in self._arrays:
            had = state.get(name)
            state[name] = torch.zeros_like(p, dtype=torch.float32) if had is None else had.float()
        p.copy_(self._moved(p.float(), p.grad.float(), state, group))  # type: ignore[union-attr]

    def _moved(
        self, p: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> torch.Tensor:
        """The parameter after the step; changes the state."""
        raise NotImplementedError


class DeepSpeedCPULion(_Local, metaclass=Known):
    """Lion with DeepSpeed's arguments; fp32_optimizer_states means nothing, they are fp32."""

    _service = bt.Lion

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0,
        fp32_optimizer_states: bool = True,
    ) -> None:
        super().__init__(model_params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def _moved(
        self, p: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> torch.Tensor:
        lr, (beta1, beta2), average = group["lr"], group["betas"], state["exp_avg"]
        direction = torch.lerp(grad, average, beta1).sign()
        average.lerp_(grad, 1 - beta2)
        return p * (1 - lr * group["weight_decay"]) - lr * direction


class FusedLion(DeepSpeedCPULion):
    """As DeepSpeedCPULion; set_grad_none means nothing."""

    _service = bt.Lion

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
    ) -> None:
        super().__init__(params, lr, betas, weight_decay)


class FusedLamb(_Local, metaclass=Known):
    """LAMB with DeepSpeed's arguments. Unsupported for amsgrad, eps_inside_sqrt, max_grad_norm."""

    _service = bt.LAMB

    _arrays = ("exp_avg", "exp_avg_sq")

    @at_border
    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        eps_inside_sqrt: bool = False,
        weight_decay: float = 0.0,
        max_grad_norm: float = 0.0,
        max_coeff: float = 10.0,
        min_coeff: float = 0.01,
        amsgrad: bool = False,
    ) -> None:
        if amsgrad or eps_inside_sqrt or max_grad_norm:
            raise Unsupported(
                "FusedLamb(): leave amsgrad, eps_inside_sqrt and max_grad_norm out; "
                "gradient_clipping of the ds_config clips"
            )
        super().__init__(params, {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "max_coeff": max_coeff, "min_coeff": min_coeff, "bias_correction": bias_correction,
        })  # fmt: skip

    def _moved(
        self, p: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> torch.Tensor:
        beta1, beta2 = group["betas"]
        first, second, steps = state["exp_avg"], state["exp_avg_sq"], state["step"]
        first.lerp_(grad, 1 - beta1)
        second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        grow, root = 1.0, 1.0
        if group["bias_correction"]:
            grow, root = 1 / (1 - beta1**steps), 1 / math.sqrt(1 - beta2**steps)
        update = first * grow / (second.sqrt() * root + group["eps"])
        update += group["weight_decay"] * p
        norms = float(p.norm()), float(update.norm())
        ratio = 1.0
        if all(norm > 0 and math.isfinite(norm) for norm in norms):
            ratio = max(group["min_coeff"], min(group["max_coeff"], norms[0] / norms[1]))
        return p - group["lr"] * ratio * update


also_takes(DeepSpeedCPULion, bt.Lion)
also_takes(FusedLion, bt.Lion)
also_takes(FusedLamb, bt.LAMB)


def steps_in_fp32(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer, which from now on steps 16-bit parameters in fp32, with state in fp32.

    Each is replaced by its fp32 copy while the optimizer steps, and gets the copy's value, rounded
    once. DeepSpeed's CPU optimizers do so with fp32_optimizer_states, their default.
    """
    copies: list[tuple[list[Any], int, torch.Tensor]] = []

    def before(_: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        closure = arguments[1] if len(arguments) > 1 else named.get("closure")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        after()  # of a step that raised
        for group in optimizer.param_groups:
            for i, p in enumerate(group["params"]):
                if p.grad is not None and p.dtype in (torch.float16, torch.bfloat16):
                    group["params"][i] = _copied(optimizer, p)
                    copies.append((group["params"], i, p))
        return (optimizer, None if closure is None else lambda: loss), {}

    def after(*_: Any) -> None:
        while copies:
            params, i, p = copies.pop()
            wide, params[i] = params[i], p
            with torch.no_grad():
                p.copy_(wide)
            optimizer.state[p] = optimizer.state.pop(wide, {})

    setattr(before, LOCAL, True)
    setattr(after, LOCAL, True)
    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    return optimizer


def _copied(optimizer: torch.optim.Optimizer, p: torch.Tensor) -> torch.Tensor:
    wide = torch.nn.Parameter(p.detach().float())
    assert p.grad is not None
    wide.grad = p.grad.float()
    state = optimizer.state.pop(p, {})
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            state[name] = value.float()
    if state:
        optimizer.state[wide] = state
    return wide
