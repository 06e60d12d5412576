"""Judges a ds_config: what Ballast does with each key, with which value, and from where.

Comes from: `python -m ballast.ds_config`, user code. Goes to: Report. Thread safety: pure, but for
reading the file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ballast.ds_config import batch, rules
from ballast.ds_config.arguments import Arguments
from ballast.ds_config.filling import Filled, fill
from ballast.ds_config.kinds import WrongValue, shown
from ballast.ds_config.report import Batch, Finding, Report, ordered
from ballast.ds_config.resolve import Resolver
from ballast.ds_config.row import (
    COMPAT_DEFAULT,
    REQUIRED,
    VERSION,
    Moved,
    Outcome,
    Row,
    Verdict,
    version,
)
from ballast.ds_config.select import Selection, select
from ballast.ds_config.source import Config, load
from ballast.ds_config.table import AUTO_IS_DEFAULT
from ballast.errors import BadArgument

_COMPAT = "ballast.deepspeed_compat"
_BATCH = (batch.TRAIN, batch.MICRO, batch.ACCUMULATION)


def check(config: Config, world: int | None = None, arguments: Any = None) -> Report:
    """The verdict on every key of a configuration, and on defaults that matter.

    config: a path, a dict, or urlsafe base64 of the text. It is not changed. world: the number of
    trainers; without it, batch sizes that depend on it stay open. arguments: Arguments, or any
    input of Arguments.of(). They fill "auto", and a value that differs from theirs is refused.
    Raises DsConfigError for a configuration that cannot be read, and BadArgument for an argument of
    a wrong type, a world below 1, or another world than the arguments have. The report lists all
    other faults.
    """
    return effective(config, world, arguments)[0]


def effective(
    config: Config, world: int | None = None, arguments: Any = None
) -> tuple[Report, Mapping[str, Any]]:
    """The report of check(), and the value that counts of each key, by dotted path.

    Keys refused for their value are left out. Arguments and errors are those of check().
    """
    if world is not None and (not isinstance(world, int) or isinstance(world, bool) or world < 1):
        raise BadArgument(f"world={world!r}: must be a whole number, 1 or more")
    document = load(config)
    selection = select(document.values)
    filled = None
    if arguments is not None:
        known = isinstance(arguments, Arguments)
        arguments = _with_world(arguments if known else Arguments.of(arguments), world)
        world = arguments.world_size
        filled = fill(document.values, selection.rows.values(), arguments)
        document = dataclasses.replace(document, values=filled.values)
    resolver = Resolver(document, selection.rows)
    resolver.run()
    judged = _Check(selection, resolver, filled)
    return judged.report(document.source, world), judged.values


def _with_world(arguments: Arguments, world: int | None) -> Arguments:
    if world is None or world == arguments.world_size:
        return arguments
    if arguments.world_size is not None:
        raise BadArgument(
            f"world={world}: the training arguments have world_size {arguments.world_size}; "
            "leave one of them out"
        )
    return dataclasses.replace(arguments, world_size=world)


class _Check:
    """One check. Values are read first, then judged, because verdicts look at other keys.

    filled: what training arguments have filled in; None where there are none.
    """

    def __init__(self, selection: Selection, resolver: Resolver, filled: Filled | None) -> None:
        self._selection = selection
        self._filled = filled
        self._given = resolver.given
        self._findings = resolver.findings
        self.values: dict[str, Any] = {}
        self._origins: dict[str, str] = {}
        self._spoilt: set[str] = set()  # keys with a finding that says all
        self._compat = self._compat_version()

    def report(self, source: str, world: int | None) -> Report:
        rows = self._selection.rows.values()
        self._compare()
        for row in rows:
            self._read(row)
        sizes = self._batch(world)
        for row in rows:
            self._judge(row, self._selection.types.get(row.path))
        for path, text, instead in rules.broken_rules(self.values.get):
            self._refuse(path, "conflict", text, instead)
        return Report(source, self._compat, sizes, ordered(self._findings))

    # ---- values

    def _compare(self) -> None:
        """Says where filled values come from, and refuses those that the arguments contradict."""
        if self._filled is None:
            return
        for path, source in self._filled.sources.items():
            self._given[path] = dataclasses.replace(
                self._given[path], origin=f'"auto", from {source}'
            )
        for found in self._filled.mismatches:
            text = f"{shown(found.written)} differs from {found.source}: {shown(found.wanted)}"
            self._refuse(found.path, "mismatch", text, 'write "auto", or the same value twice')

    def _compat_version(self) -> str:
        given = self._given.get(_COMPAT)
        if given is None:
            return COMPAT_DEFAULT
        if not isinstance(given.value, str) or not VERSION.fullmatch(given.value):
            text = f"{shown(given.value)}: must be a version of DeepSpeed in double quotes"
            self._refuse(_COMPAT, "wrong_value", text, f'write "{COMPAT_DEFAULT}"')
            return COMPAT_DEFAULT
        return given.value

    def _read(self, row: Row) -> None:
        """Fills the effective value and its origin, or reports why there is none."""
        if row.path in self._spoilt:
            return
        given = self._given.get(row.path)
        default = row.default_at(self._compat)
        if given is None or (given.value is None and default is None):
            self._take_default(row, default)
        elif given.value == "auto" and row.default != "auto":
            self._auto(row, default)
        else:
            try:
                self.values[row.path] = row.kind.read(given.value)
                self._origins[row.path] = given.origin
            except WrongValue as error:
                text = f"{shown(given.value)}: {error}"
                self._refuse(row.path, "wrong_value", text, _example(row, default))

    def _take_default(self, row: Row, default: Any) -> None:
        if default is REQUIRED:
            self._refuse(row.path, "missing", "has no default", f"write it: {row.kind.name}")
            return
        self.values[row.path] = default
        self._origins[row.path] = _default_origin(row, self._compat)

    def _auto(self, row: Row, default: Any) -> None:
        """An "auto" that nothing has filled: the default where nothing depends on it."""
        matters = any(o.verdict is not Verdict.NO_EFFECT for o in row.outcomes())
        dropped = row.path.startswith(tuple(f"{section}." for section in AUTO_IS_DEFAULT))
        if dropped and not (row.filling and matters):
            self.values[row.path] = default
            self._origins[row.path] = f'"auto": {_default_origin(row, self._compat)}'
        elif self._filled and row.path == batch.TRAIN:
            self.values[row.path] = None  # follows from the world size, once known
        elif row.filling is None:
            text = '"auto" is filled by no framework'
            self._refuse(row.path, "auto", text, _example(row, default))
        elif self._filled is None:
            text = f'"auto": Trainer fills it from {row.filling.source}'
            example = f"outside of Trainer, {_example(row, default)}"
            self._spoilt.add(row.path)
            self._add(row.path, Outcome(Verdict.AUTO, text, example), code="auto")
        else:
            text = f'"auto": the training arguments lack {row.filling.source}, which fills it'
            self._refuse(row.path, "auto", text, _example(row, default))

    # ---- verdicts

    def _batch(self, world: int | None) -> Batch:
        if self._spoilt.intersection(_BATCH):
            return Batch(world=world)
        train, micro, accumulation = given = [self.values[path] for path in _BATCH]
        try:
            sizes = batch.solve(train, micro, accumulation, world)
        except batch.BatchError as error:
            where = next((p for p in _BATCH if p in self._given), batch.MICRO)
            self._refuse(where, "batch", str(error), error.instead)
            return Batch(world=world)
        for path, value, solved in zip(
            _BATCH, given, (sizes.train, sizes.micro, sizes.accumulation), strict=True
        ):
            if value is None:
                self.values[path] = solved
                self._origins[path] = (
                    "follows from the other sizes" if solved else "depends on the world: --world N"
                )
        return sizes

    def _judge(self, row: Row, outcome: Outcome | None) -> None:
        if row.path in self._spoilt or row.path not in self.values:
            return
        value = self.values[row.path]
        outcome = outcome or row.judge(value, self.values.get)
        written = row.path in self._given
        if not written and outcome.verdict is not Verdict.REFUSED and not self._announced(row):
            return
        text = outcome.text
        if written and row.until and version(row.until) <= version(self._compat):
            text += f"; DeepSpeed {row.until} and later refuse the key even when it is off"
        if written and row.since and version(self._compat) < version(row.since):
            text += f"; DeepSpeed knows it since {row.since}"
        self._add(row.path, outcome, text)

    def _announced(self, row: Row) -> bool:
        """Whether a default is worth a line: it decides bits, or says how the batch comes out."""
        if not row.announced:
            return False
        section = row.path.split(".")[0]
        return row.path == section or any(
            path.startswith(f"{section}.") for path in self._given
        )

    def _refuse(self, path: str, code: str, text: str, instead: str) -> None:
        self._spoilt.add(path)
        refusal = Outcome(Verdict.REFUSED, text, instead)
        self._add(path, refusal, code=code)

    def _add(
        self, path: str, outcome: Outcome, text: str = "", *, code: str = "key"
    ) -> None:
        given = self._given.get(path)
        value = self.values.get(path)
        self._findings.append(
            Finding(
                path,
                outcome.verdict,
                text or outcome.text,
                code=code,
                place=given.place if given else "",
                effective=None if isinstance(value, dict) else value,
                origin=self._origins.get(path, ""),
                instead=outcome.instead,
                see=outcome.see,
            )
        )


def _default_origin(row: Row, compat: str) -> str:
    """A report's name for a default, and the version that introduced it."""
    if not isinstance(row.default, Moved):
        return "default of DeepSpeed"
    steps = row.default.values
    at = sum(version(first or "0") <= version(compat) for first, _ in steps) - 1
    if at:
        return f"default of DeepSpeed since {steps[at][0]}; was {shown(steps[at - 1][1])}"
    return f"default of DeepSpeed before {steps[1][0]}; then {shown(steps[1][1])}"


def _example(row: Row, default: Any) -> str:
    """What to write in place of a value that does not count."""
    if default is None or default is REQUIRED:
        return f"write: {row.kind.name}"
    return f"write: {row.kind.name}; the default is {shown(default)}"
