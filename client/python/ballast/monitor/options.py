"""The monitor sections of a ds_config, read by the rows of the table.

Comes from: ballast.monitor. Goes to: ballast.ds_config.table. Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast.ds_config.kinds import WrongValue, shown
from ballast.ds_config.names import advice
from ballast.ds_config.row import COMPAT_DEFAULT, Row
from ballast.ds_config.table import ROWS
from ballast.errors import BadArgument

# In the order in which DeepSpeed makes them.
SECTIONS = ("tensorboard", "wandb", "csv_monitor", "comet")
_ENABLED = "enabled"


def options_of(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The options of each enabled section, defaults filled in.

    "auto" is the default, as DeepSpeed has it. Raises BadArgument, naming section and key.
    """
    found = {}
    for section in SECTIONS:
        options = _section(section, config.get(section))
        if options.pop(_ENABLED):
            found[section] = options
    return found


def _section(section: str, given: Any) -> dict[str, Any]:
    rows = {r.path.partition(".")[2]: r for r in ROWS if r.path.startswith(f"{section}.")}
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise BadArgument(f"{section}: {shown(given)} is no section")
    known = [row.path for row in rows.values()]
    for name in given:
        if name not in rows:
            instead = advice((section, str(name)), known)
            raise BadArgument(f"{section}.{name}: unknown key; {instead}")
    return {name: _value(row, given.get(name, "auto")) for name, row in rows.items()}


def _value(row: Row, given: Any) -> Any:
    default = row.default_at(COMPAT_DEFAULT)
    if given == "auto" or (given is None and default is None):
        return default
    try:
        return row.kind.read(given)
    except WrongValue as error:
        raise BadArgument(f"{row.path}: {shown(given)}: {error}") from None
