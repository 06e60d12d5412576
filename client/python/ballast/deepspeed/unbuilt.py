"""Keys of a ds_config that Ballast may honour elsewhere, and that this engine does not honour yet.

Comes from: ballast.deepspeed.settings. Thread safety: pure functions.

The table of ballast.ds_config says what Ballast can do. A feature that lands there is refused here
until the engine has it, too, so that no key is ever passed over in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_Values = Mapping[str, Any]


def _model_dtype(values: _Values) -> str:
    if values.get("fp16.enabled"):
        return "fp16"
    return "bf16" if values.get("bf16.enabled") else "fp32"


def _other_dtype(path: str) -> Callable[[_Values], bool]:
    return lambda values: values.get(path) not in (None, _model_dtype(values))


def _narrower_sum(values: _Values) -> bool:
    path = "data_types.grad_accum_dtype"
    return values.get(path) != "fp32" and _other_dtype(path)(values)


def _is(path: str, value: Any) -> Callable[[_Values], bool]:
    return lambda values: values.get(path) == value


def _fp16(path: str, value: Any) -> Callable[[_Values], bool]:
    return lambda values: values.get("fp16.enabled") is True and values.get(path) == value


# Key, when it counts, and what to do.
_RULES: tuple[tuple[str, Callable[[_Values], bool], str], ...] = (
    ("fp16.auto_cast", _fp16("fp16.auto_cast", True), "cast the inputs in the script"),
    ("gradient_allreduce_op", _is("gradient_allreduce_op", "sum"), "write mean"),
    (
        "communication_data_type",
        _other_dtype("communication_data_type"),
        "leave it out: sums are in fp32",
    ),
    (
        "data_types.grad_accum_dtype",
        _narrower_sum,
        "leave it out, or write fp32",
    ),
    ("zero_optimization.stage", _is("zero_optimization.stage", 3), "write stage 2"),
)


def unbuilt(values: _Values) -> list[str]:
    """A line for each key that counts and is not honoured here: the key, and what to do."""
    return [f"{path}: the engine has it not yet; {do}" for path, counts, do in _RULES
            if counts(values)]  # fmt: skip
