"""Whether Accelerate or Trainer would start DeepSpeed itself.

Comes from: ballast.hf. Goes to: nothing. Needs no other package. Thread safety: pure functions of
the environment.
"""

from __future__ import annotations

import os
from typing import Any

from ballast.errors import Unsupported

_VARIABLE = "ACCELERATE_USE_DEEPSPEED"


def deepspeed_asked(args: Any) -> str:
    """What asks for DeepSpeed and what to do, or "". args: TrainingArguments, or None."""
    asked = ""
    if os.environ.get(_VARIABLE, "").lower() in ("true", "1", "yes", "y", "on", "t"):
        asked = f"{_VARIABLE} is set"
    if getattr(args, "deepspeed", None):
        asked = "TrainingArguments(deepspeed=...) is given"
    if not asked:
        return ""
    return (
        f"{asked}: then Accelerate starts DeepSpeed, which keeps the optimizer state itself. "
        "Leave it out, and start the script with ballast-run in place of accelerate launch or "
        "deepspeed; give the ds_config to ballast.hf.optimizer()"
    )


def refuse_deepspeed(args: Any) -> None:
    """Unsupported, with what to do, where deepspeed_asked()."""
    if text := deepspeed_asked(args):
        raise Unsupported(text)
