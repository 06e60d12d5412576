"""Which rows count: those of all configurations, and those of its optimizer and scheduler.

Comes from: ballast.ds_config.table. Goes to: ballast.ds_config.check. Thread safety: pure
functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from ballast.ds_config.kinds import shown
from ballast.ds_config.names import nearest
from ballast.ds_config.row import Outcome, Row, Variant
from ballast.ds_config.table import (
    OPTIMIZERS,
    ROWS,
    SCHEDULERS,
    UNKNOWN_OPTIMIZER,
    UNKNOWN_SCHEDULER,
)


@dataclasses.dataclass(frozen=True)
class Selection:
    """rows: by dotted path. types: the verdicts on optimizer.type and scheduler.type, if set."""

    rows: Mapping[str, Row]
    types: Mapping[str, Outcome]


def select(values: Mapping[str, Any]) -> Selection:
    """The rows for a configuration, by the types that it names.

    DeepSpeed takes the names of its optimizers in any case, and those of schedulers in theirs only.
    With an unknown type, or none, params stay one key with unexamined contents.
    """
    rows = {row.path: row for row in ROWS}
    types: dict[str, Outcome] = {}
    for section, variants, unknown, fold in (
        ("optimizer", OPTIMIZERS, UNKNOWN_OPTIMIZER, str.lower),
        ("scheduler", SCHEDULERS, UNKNOWN_SCHEDULER, str),
    ):
        inside = values.get(section)
        name = inside.get("type") if isinstance(inside, Mapping) else None
        if not isinstance(name, str):
            continue
        found = next((v for v in variants if fold(v.name) == fold(name)), None)
        if found is None:
            types[f"{section}.type"] = _unknown_type(name, variants, unknown)
            continue
        types[f"{section}.type"] = found.outcome
        del rows[f"{section}.params"]
        rows.update((row.path, row) for row in found.rows)
    return Selection(rows, types)


def _unknown_type(name: str, variants: Iterable[Variant], unknown: Outcome) -> Outcome:
    hint = nearest(name, (variant.name for variant in variants))
    text = f"{shown(name)}: {unknown.text}"
    return dataclasses.replace(unknown, text=text, instead=hint + unknown.instead)
