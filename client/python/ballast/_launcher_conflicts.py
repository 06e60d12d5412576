"""Whether Accelerate or Trainer would start DeepSpeed itself.

Comes from: ballast.config, ballast.hf, ballast.run. Goes to: nothing. Needs no other package.
Thread safety: pure functions of the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ballast.errors import Unsupported

_VARIABLE = "ACCELERATE_USE_DEEPSPEED"
_INSTEAD = "ballast-run --ds-config ds_config.json --mixed-precision bf16 --nproc N train.py"


def deepspeed_asked(args: Any = None, environ: Mapping[str, str] | None = None) -> str:
    """The setting that asks for DeepSpeed and the next step, or "".

    args: TrainingArguments, or None. environ: os.environ where it is None.
    """
    env = os.environ if environ is None else environ
    asked = ""
    if env.get(_VARIABLE, "").lower() in ("true", "1", "yes", "y", "on", "t"):
        asked = f"{_VARIABLE} is set"
    if getattr(args, "deepspeed", None):
        asked = "TrainingArguments(deepspeed=...) is given"
    if not asked:
        return ""
    return (
        f"{asked}: then Accelerate starts DeepSpeed, which keeps the optimizer state itself. "
        f"Leave it out, and start the script with `{_INSTEAD}` in place of accelerate launch or "
        "deepspeed; ballast.hf.optimizer() and ballast.deepspeed.initialize() read that ds_config"
    )


def refuse_deepspeed(args: Any = None, environ: Mapping[str, str] | None = None) -> None:
    """Unsupported, with what to do, where deepspeed_asked()."""
    if text := deepspeed_asked(args, environ):
        raise Unsupported(text)
