"""Rules about several keys at once.

Comes from: ballast.ds_config.check. Goes to: the refusals of a report. Thread safety: pure
functions.
"""

from __future__ import annotations

from collections.abc import Iterator

from ballast.ds_config.row import Look

Broken = tuple[str, str, str]  # path, text, instead


def broken_rules(look: Look) -> Iterator[Broken]:
    """The rules that the effective values break."""
    if look("fp16.enabled") is True and look("bf16.enabled") is True:
        yield (
            "bf16.enabled",
            "fp16 and bf16 are both enabled, and a parameter has one dtype",
            "enable one of them",
        )
    for section, example in (("optimizer", "AdamW"), ("scheduler", "WarmupLR")):
        if look(f"{section}.params") and look(f"{section}.type") is None:
            text = f"{section}.params means nothing without a type"
            yield f"{section}.type", text, f'write its type, such as "{example}"'
    yield from _loss_scale(look)
    if look("zero_optimization.compute_grad_norm") is False and look("gradient_clipping"):
        yield (
            "zero_optimization.compute_grad_norm",
            "clipping needs the norm, and gradient_clipping is not 0",
            "write gradient_clipping 0, or leave the key out",
        )


def _loss_scale(look: Look) -> Iterator[Broken]:
    """Limits that DeepSpeed has since 0.19.3 for a dynamic scale, and only for that."""
    if look("fp16.enabled") is not True or look("fp16.loss_scale") != 0:
        return
    for name in ("loss_scale_window", "min_loss_scale"):
        value = look(f"fp16.{name}")
        if value is not None and value < 1:
            yield (
                f"fp16.{name}",
                f"{value}: a dynamic loss scale needs 1 or more",
                "write 1 or more, or a fixed fp16.loss_scale",
            )
