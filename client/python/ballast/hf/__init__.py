"""For scripts of Hugging Face's Trainer: optimizer(), Callback, resolve_auto().

Comes from: user code. Goes to: ballast.torch and, for Callback, transformers. The module itself
needs neither transformers nor torch nor the extension: each name imports its own dependencies.
Thread safety: as ballast.torch.
"""

from __future__ import annotations

import importlib
from typing import Any

from ballast.errors import warn
from ballast.hf.auto import resolve_auto
from ballast._launcher_conflicts import deepspeed_asked

__all__ = ["Callback", "optimizer", "resolve_auto"]

_PLACES = {"optimizer": "ballast.hf.factory", "Callback": "ballast.hf.callback"}

# TrainingArguments fails for the variable where DeepSpeed is missing, before optimizer() can.
if _asked := deepspeed_asked(None):
    warn(_asked)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"ballast.hf has no {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_PLACES[name]), name)
