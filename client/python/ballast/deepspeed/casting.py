"""A module in the dtype of a ds_config: its parameters, and the buffers that the ds_config names.

Comes from: ballast.deepspeed.building, ballast.hf. Source: DeepSpeed 0.19.8, which casts parameters
only, so that RoPE's inv_freq and BatchNorm's statistics stay as they are. Thread safety: used by
one thread at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch

from ballast.deepspeed.settings import Settings
from ballast.errors import BadArgument

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_CAST = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_KEEP = "data_types.keep_in_fp32_modules"


def cast(model: torch.nn.Module, settings: Settings) -> torch.nn.Module:
    """The model, with parameters in the dtype of fp16.enabled or bf16.enabled; unchanged without.

    Buffers keep their dtype, except for data_types.buffer_dtype, and for those kept in fp32 by
    data_types.keep_in_fp32_modules: names of which a part matches, with * for any characters, or
    "auto", the lists of a model of transformers. These lists decide about no parameter. Raises
    BadArgument for an invalid pattern; then nothing was cast.
    """
    short = torch.float16 if settings["fp16.enabled"] else torch.bfloat16
    if not settings["fp16.enabled"] and not settings["bf16.enabled"]:
        return model
    kept = _kept(model, settings[_KEEP], short)
    for parameter in model.parameters():
        if parameter.dtype in _CAST and parameter.dtype != short:
            parameter.data = parameter.data.to(short)
            if parameter.grad is not None:
                parameter.grad = parameter.grad.to(short)
    others = _DTYPES.get(settings["data_types.buffer_dtype"])
    for buffer in model.buffers():
        dtype = torch.float32 if id(buffer) in kept else others
        if dtype is not None and buffer.dtype in _CAST and buffer.dtype != dtype:
            buffer.data = buffer.data.to(dtype)
    return model


def _kept(model: torch.nn.Module, wanted: str | list[str] | None, short: torch.dtype) -> set[int]:
    """Buffers that stay in fp32, or become it, by id()."""
    patterns = _of_model(model, short) if wanted in (None, "auto") else map(_pattern, wanted)
    try:
        found = [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        raise BadArgument(f"{_KEEP}: {error.pattern!r} is no pattern: {error}") from None
    named = model.named_buffers(remove_duplicate=False)
    return {id(buffer) for name, buffer in named if any(p.search(name) for p in found)}


def _of_model(model: torch.nn.Module, short: torch.dtype) -> Iterable[str]:
    """The lists of each module of transformers; the second one is for fp16 alone."""
    lists = ["_keep_in_fp32_modules_strict"]
    if short is torch.float16:
        lists.append("_keep_in_fp32_modules")
    for prefix, module in model.named_modules():
        below = f"^{re.escape(prefix)}\\..*" if prefix else ""
        for attribute in lists:
            for name in getattr(module, attribute, None) or ():
                yield below + _pattern(name)


def _pattern(name: str) -> str:
    return name.replace("*", ".*")
