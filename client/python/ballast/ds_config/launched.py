"""What ballast-run says about a trainer's ds_config: which file, and which precision.

Comes from: ballast.run, which sets the variables. Goes to: ballast.deepspeed and ballast.hf, which
read them. Thread safety: reads the environment and files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ballast.ds_config.source import Config, load
from ballast.errors import BadArgument

CONFIG_VARIABLE = "BALLAST_DS_CONFIG"
PRECISION_VARIABLE = "BALLAST_MIXED_PRECISION"
# Accelerate's own: Trainer and Accelerator() compute with autocast by it.
ACCELERATE_VARIABLE = "ACCELERATE_MIXED_PRECISION"
PRECISIONS = ("no", "fp16", "bf16")
# Sections by the precision that they switch on, under the names that DeepSpeed reads.
_SECTIONS = {"fp16": ("fp16",), "bf16": ("bf16", "bfloat16")}


def environment(config: str | None, precision: str | None) -> dict[str, str]:
    """What trainers find: the path of the ds_config and the precision, as far as they are given."""
    env = {} if config is None else {CONFIG_VARIABLE: config}
    if precision is not None:
        env |= {PRECISION_VARIABLE: precision, ACCELERATE_VARIABLE: precision}
    return env


def chosen(given: Config | None, called: str) -> Config | None:
    """The script's configuration, or that of BALLAST_DS_CONFIG where the script gives none.

    called: the function that was called, for texts. Raises BadArgument where both are there and
    hold different values, DsConfigError where one of two cannot be read.
    """
    launched = os.environ.get(CONFIG_VARIABLE) or None
    if given is None or launched is None:
        return launched if given is None else given
    if load(given).values != load(launched).values:
        name = "a dict" if isinstance(given, Mapping) else str(given)
        raise BadArgument(
            f"{called} got {name}, and ballast-run --ds-config ({CONFIG_VARIABLE}) names "
            f"{launched}, which holds other values; leave one of the two out"
        )
    return given


def precise(values: Mapping[str, Any], precision: str | None = None) -> dict[str, Any]:
    """A copy of a configuration with the precision of ballast-run in it.

    precision: "no", "fp16" or "bf16"; None: that of BALLAST_MIXED_PRECISION, if any. It fills
    `enabled` of the sections fp16 and bf16 where that is "auto" or absent. Raises BadArgument where
    the configuration says something else, or the variable is none of the three.
    """
    precision = precision or os.environ.get(PRECISION_VARIABLE) or None
    result = dict(values)
    if precision is None:
        return result
    if precision not in PRECISIONS:
        raise BadArgument(
            f"{PRECISION_VARIABLE}={precision!r}: must be one of {', '.join(PRECISIONS)}"
        )
    for dtype, names in _SECTIONS.items():
        name = next((n for n in names if n in result), dtype)
        section = result.get(name)
        if section is None and precision == dtype:
            section = {}
        if isinstance(section, Mapping):
            result[name] = _enabled(name, section, precision, precision == dtype)
    return result


def _enabled(
    name: str, section: Mapping[str, Any], precision: str, wanted: bool
) -> dict[str, Any]:
    written = section.get("enabled")
    if written is None and not wanted:
        return dict(section)
    if isinstance(written, bool) and written != wanted:
        raise BadArgument(
            f"{name}.enabled of the ds_config is {str(written).lower()}, and --mixed-precision "
            f'says {precision}; leave the option out, or write "auto" into the file'
        )
    if written is None or written == "auto":
        return {**section, "enabled": wanted}
    return dict(section)
