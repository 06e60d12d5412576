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
    """Environment variables for trainers: the path of the ds_config and the precision, where given.

    Accelerate never gets fp16: its GradScaler would skip steps on each trainer by itself.
    """
    env = {} if config is None else {CONFIG_VARIABLE: config}
    if precision is not None:
        env[PRECISION_VARIABLE] = precision
        env[ACCELERATE_VARIABLE] = "no" if precision == "fp16" else precision
    return env


def chosen(given: Config | None, called: str) -> Config | None:
    """The script's configuration, or that of BALLAST_DS_CONFIG where the script gives none.

    called: the name of the called function, for texts. Raises BadArgument where both are there and
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


def precision() -> str | None:
    """That of ballast-run --mixed-precision (BALLAST_MIXED_PRECISION); None: it was not given."""
    return os.environ.get(PRECISION_VARIABLE) or None


def precise(values: Mapping[str, Any], given: str | None = None) -> dict[str, Any]:
    """A copy of a configuration with the precision of ballast-run in it.

    given: "no", "fp16" or "bf16"; None: that of BALLAST_MIXED_PRECISION, if any. It fills `enabled`
    of the sections fp16 and bf16 where "auto" or absent. Raises BadArgument where the configuration
    says something else, or the variable is none of the three.
    """
    wanted = given or precision()
    result = dict(values)
    if wanted is None:
        return result
    if wanted not in PRECISIONS:
        raise BadArgument(
            f"{PRECISION_VARIABLE}={wanted!r}: must be one of {', '.join(PRECISIONS)}"
        )
    for dtype, names in _SECTIONS.items():
        name = next((n for n in names if n in result), dtype)
        section = result.get(name)
        if section is None and wanted == dtype:
            section = {}
        if isinstance(section, Mapping):
            result[name] = _enabled(name, section, wanted, wanted == dtype)
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
