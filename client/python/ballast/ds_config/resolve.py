"""From nested objects to one value per known key: names, second names, and unknown names.

Comes from: ballast.ds_config.source. Goes to: ballast.ds_config.check. Thread safety: pure
functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ballast.ds_config.kinds import WrongValue, shown
from ballast.ds_config.names import advice, dotted
from ballast.ds_config.report import Finding
from ballast.ds_config.row import Alias, Row, Verdict
from ballast.ds_config.source import Document
from ballast.ds_config.syntax import Path
from ballast.ds_config.table import ALIASES, LEGACY_STAGE, SECTIONS

# Sections for which null means that they are absent; DeepSpeed breaks on null elsewhere.
NULL_SECTIONS = (
    "zero_optimization.offload_optimizer",
    "zero_optimization.offload_param",
    "zero_optimization.zenflow",
    "aio",
    "checkpoint.writer",
    "optimizer.params",
    "scheduler.params",
)
# In addition to names that begin with "_". JSON has no comments, so that files write them as keys.
NOTES = ("comment", "comments", "description")
ADVICE_MAX = 50  # unknown names that get advice; finding it takes a millisecond each


@dataclasses.dataclass(frozen=True)
class Given:
    """A value as the configuration has it. origin: how the report says where it comes from."""

    value: Any
    place: str
    origin: str = "the file"


class Resolver:
    """One pass over a document. `given` and `findings` are its results."""

    def __init__(self, document: Document, rows: Mapping[str, Row]) -> None:
        self._document = document
        self._rows = rows
        self._aliases = {alias.old: alias for alias in ALIASES}
        self._sections = _sections_of([*rows, *self._aliases])
        self.given: dict[str, Given] = {}
        self.findings: list[Finding] = []

    def run(self) -> None:
        self._walk((), self._document.values)
        for alias in ALIASES:
            if alias.old in self.given:
                self._replace(alias, self.given.pop(alias.old))

    def refuse(self, path: Path, code: str, text: str, instead: str) -> None:
        self.findings.append(
            Finding(
                dotted(path),
                Verdict.REFUSED,
                text,
                code=code,
                place=self._document.place(path),
                instead=instead,
            )
        )

    def _walk(self, path: Path, values: Mapping[str, Any], shift: Path | None = None) -> None:
        """shift: the names of the section under which the values count, if it is a different
        one."""
        target = path if shift is None else shift
        for name, value in values.items():
            self._visit((*path, name), (*target, name), value)

    def _visit(self, path: Path, target: Path, value: Any) -> None:
        """path: its place. target: the key for which it counts."""
        key = dotted(target)
        if path[-1].startswith("_") or path[-1] in NOTES:
            self.note(path, "a note; nothing reads it", "note")
        elif any("." in name for name in path):
            self._unknown(path)
        elif key in SECTIONS:
            self._second_section(path, SECTIONS[key], value)
        elif key == "zero_optimization" and isinstance(value, bool):
            self.given["zero_optimization.stage"] = Given(
                LEGACY_STAGE[value], self._document.place(path), "an old form of zero_optimization"
            )
        elif key in self._rows or key in self._aliases:
            self.given[key] = Given(value, self._document.place(path))
            if key in self._sections and isinstance(value, Mapping):
                self._walk(path, value, target)
        elif key in self._sections:
            self._section(path, target, value)
        else:
            self._unknown(path)

    def _section(self, path: Path, target: Path, value: Any) -> None:
        key = dotted(target)
        if isinstance(value, Mapping):
            self._walk(path, value, target)
        elif value is not None or key not in NULL_SECTIONS:
            self.refuse(
                path,
                "wrong_value",
                f"{shown(value)}: {key} is a section and must be an object in braces",
                f"write {{}} or leave {key} out",
            )

    def _second_section(self, path: Path, first: str, value: Any) -> None:
        """bfloat16 and its like: read under the first name, unless both are given."""
        names = tuple(first.split("."))
        parent: Any = self._document.values
        for name in names[:-1]:
            parent = parent.get(name) if isinstance(parent, Mapping) else None
        if isinstance(parent, Mapping) and names[-1] in parent:
            text = f"{dotted(path)} is a second name of {first}"
            self.refuse(path, "conflict", f"{text}, which is given, too", f"delete {dotted(path)}")
            return
        self.note(path, f"a second name of {first}")
        self._section(path, names, value)

    def note(self, path: Path, text: str, code: str = "deprecated") -> None:
        self.findings.append(
            Finding(
                dotted(path),
                Verdict.NO_EFFECT,
                text,
                code=code,
                place=self._document.place(path),
            )
        )

    def _unknown(self, path: Path) -> None:
        instead = "delete it, or see the list of keys"
        if len(self.findings) < ADVICE_MAX:
            known = [*self._rows, *self._sections, *self._aliases, *SECTIONS]
            instead = advice(path, known)
        self.refuse(path, "unknown", "no such key", instead)

    def _replace(self, alias: Alias, old: Given) -> None:
        """Gives an alias's value to the key that it stands for."""
        path = tuple(alias.old.split("."))
        kind = alias.kind or self._rows[alias.new].kind
        value = old.value
        dropped = value is None and (alias.kind or alias.yields)
        if value != "auto" and not dropped:
            try:
                value = kind.read(old.value)
            except WrongValue as error:
                text = f"{shown(old.value)}: {error}"
                self.refuse(path, "wrong_value", text, f"write {alias.new}")
                return
            value = alias.convert(value)
        why = alias.note or ("deprecated" if alias.deprecated else "a second name")
        self.note(path, f"{why}; write {alias.new}")
        excluded = alias.excludes or alias.new
        if any(key == excluded or key.startswith(f"{excluded}.") for key in self.given):
            if not alias.yields and (value is not None or alias.excludes):
                text = f"{alias.old} stands for {alias.new}, and {excluded} is given, too"
                self.refuse(path, "conflict", text, f"delete {alias.old}")
        elif value is not None:
            self.given[alias.new] = Given(value, old.place, f"from {alias.old}")


def _sections_of(keys: list[str]) -> frozenset[str]:
    found: set[str] = set()
    for key in keys:
        names = key.split(".")
        found.update(dotted(tuple(names[:end])) for end in range(1, len(names)))
    return frozenset(found)
