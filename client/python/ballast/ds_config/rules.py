"""Rules about several keys at once.

Comes from: ballast.ds_config.check. Goes to: the refusals of a report. Thread safety: pure
functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ballast.ds_config.row import Look
from ballast.errors import BadHyperparam
from ballast.loss_scale import DynamicLossScale
from ballast.schedules import ALL, Schedule

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
    yield from _schedule(look)
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
    values = {name: look(f"fp16.{name}") for name in ("loss_scale_window", "min_loss_scale")}
    small = {name: value for name, value in values.items() if value is not None and value < 1}
    for name, value in small.items():
        yield (
            f"fp16.{name}",
            f"{value}: a dynamic loss scale needs 1 or more",
            "write 1 or more, or a fixed fp16.loss_scale",
        )
    if not small:
        yield from _refused("fp16", _made(DynamicLossScale, "fp16", look))


def _schedule(look: Look) -> Iterator[Broken]:
    """The parts of a schedule that the service refuses."""
    kind = ALL.get(str(look("scheduler.type")))
    if kind is None:
        return
    made = _made(kind, "scheduler.params", look)
    yield from _refused("scheduler.params", made)
    optimizer = str(look("optimizer.type")).lower()
    if isinstance(made, Schedule) and made.sets_betas and optimizer in ("sgd", "adagrad"):
        yield (
            "scheduler.params.cycle_momentum",
            f"true: it cycles beta1, and {look('optimizer.type')} has no betas",
            "write cycle_momentum false",
        )


def _made(kind: type, section: str, look: Look) -> Any:
    """An object of `kind` from the keys of a section, its error, or None where a key is missing."""
    values = {f.name: look(f"{section}.{f.name}") for f in dataclasses.fields(kind)}
    needed = {f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING}
    given = {name: value for name, value in values.items() if value is not None}
    if needed - given.keys() or "auto" in given.values():
        return None
    try:
        return kind(**given)
    except BadHyperparam as error:
        return error


def _refused(section: str, made: Any) -> Iterator[Broken]:
    if not isinstance(made, BadHyperparam):
        return
    text = made.message
    names = [f.name for kind in (*ALL.values(), DynamicLossScale) for f in dataclasses.fields(kind)]
    named = [name for name in names if name in text.split(";")[0].replace(",", " ").split()]
    path = f"{section}.{named[0]}" if named else section
    yield path, text, "write a value that the text permits"
