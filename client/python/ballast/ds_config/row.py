"""The shape of the table: a row per key, its verdict per value, and its defaults per version.

Comes from: ballast.ds_config.table, which fills it. Goes to: ballast.ds_config.check and page.
Thread safety: immutable values, pure functions.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Callable
from typing import Any

from ballast.ds_config.capability import CAPABILITIES
from ballast.ds_config.filling import Filling
from ballast.ds_config.kinds import BOOLEAN, Kind

COMPAT_DEFAULT = "0.19.8"  # the DeepSpeed whose defaults count when the file names none


class Verdict(enum.Enum):
    """The treatment of a key."""

    SERVICE = "honoured by service"
    SDK = "honoured by SDK"
    ALONGSIDE = "works alongside"
    NO_EFFECT = "no effect"
    AUTO = "filled by Trainer"
    REFUSED = "refused"


class Missing(enum.Enum):
    """The default of a key that must be written."""

    REQUIRED = "must be written"


REQUIRED = Missing.REQUIRED

Look = Callable[[str], Any]  # dotted path -> the effective value of that key


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A verdict and its words. text: the effect, or why there is none. instead: only if refused.

    see: for ALONGSIDE, a path of this repository or a name of torch to begin with.
    """

    verdict: Verdict
    text: str
    instead: str = ""
    see: str = ""


def _needing(capability: str, outcome: Outcome) -> Outcome:
    """`outcome` when the capability is ready, else a refusal that says what to do until then.

    outcome.instead, where a row has it, is closer to its key than the capability's.
    """
    found = CAPABILITIES[capability] if capability else None
    if found is None or found.ready:
        return dataclasses.replace(outcome, instead="")
    return refused(f"not yet: {found.what}", outcome.instead or found.instead)


def service(text: str, needs: str = "", instead: str = "") -> Outcome:
    """needs: a name of CAPABILITIES. instead: what to do until it is ready."""
    return _needing(needs, Outcome(Verdict.SERVICE, text, instead))


def sdk(text: str, needs: str = "", instead: str = "") -> Outcome:
    """As service()."""
    return _needing(needs, Outcome(Verdict.SDK, text, instead))


def alongside(text: str, see: str) -> Outcome:
    return Outcome(Verdict.ALONGSIDE, text, see=see)


def no_effect(why: str) -> Outcome:
    return Outcome(Verdict.NO_EFFECT, why)


def refused(why: str, instead: str) -> Outcome:
    return Outcome(Verdict.REFUSED, why, instead)


@dataclasses.dataclass(frozen=True)
class Case:
    """An outcome for some values. when: the words of the page; holds: the test itself."""

    when: str
    holds: Callable[[Any, Look], bool]
    outcome: Outcome


def equal(value: Any, outcome: Outcome) -> Case:
    return Case(f"{json.dumps(value)}", lambda given, _: given == value, outcome)


def above(limit: float, outcome: Outcome) -> Case:
    return Case(f"above {limit:g}", lambda given, _: given is not None and given > limit, outcome)


def below(limit: float, outcome: Outcome) -> Case:
    return Case(f"below {limit:g}", lambda given, _: given is not None and given < limit, outcome)


def present(outcome: Outcome) -> Case:
    return Case("any value", lambda given, _: given is not None, outcome)


def while_true(path: str, case: Case) -> Case:
    """`case`, but only while the key at `path` is true."""
    return Case(
        f"{case.when}, while {path} is true",
        lambda given, look: look(path) is True and case.holds(given, look),
        case.outcome,
    )


@dataclasses.dataclass(frozen=True)
class Moved:
    """A default that changed. values: (first version, default), oldest first, the first from ""."""

    values: tuple[tuple[str, Any], ...]


VERSION = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){0,5}")


def version(text: str) -> tuple[int, ...]:
    """A version as numbers, so that 0.19.10 is above 0.19.9. The text matches VERSION."""
    return tuple(int(part) for part in text.split("."))


@dataclasses.dataclass(frozen=True)
class Row:
    """One key. path: dotted. default: the value, Moved, or REQUIRED; None means "not set".

    cases: the first that holds decides, else `outcome`. since, until: the first DeepSpeed version
    with the key, and the first without it; "" where this table does not say. filling: how "auto" is
    filled; None where no framework fills it. announced: reported even where the file does not have
    the key.
    """

    path: str
    kind: Kind
    default: Any
    outcome: Outcome
    cases: tuple[Case, ...] = ()
    since: str = ""
    until: str = ""
    filling: Filling | None = None
    announced: bool = False

    def default_at(self, compat: str) -> Any:
        """The default in DeepSpeed `compat`."""
        if not isinstance(self.default, Moved):
            return self.default
        held = [v for first, v in self.default.values if version(first or "0") <= version(compat)]
        return held[-1]

    def judge(self, value: Any, look: Look) -> Outcome:
        """The outcome for a value that the kind has read, or for the default."""
        for case in self.cases:
            if case.holds(value, look):
                return case.outcome
        return self.outcome

    def outcomes(self) -> tuple[Outcome, ...]:
        return (self.outcome, *(case.outcome for case in self.cases))


def switch(path: str, on: Outcome, **more: Any) -> Row:
    """A boolean, false by default, with an effect only when true."""
    off = no_effect("off, as without the key")
    return Row(path, BOOLEAN, False, off, (equal(True, on),), **more)


def under(prefix: str, *rows: Row) -> tuple[Row, ...]:
    """The rows with `prefix.` in front of their paths."""
    return tuple(dataclasses.replace(row, path=f"{prefix}.{row.path}") for row in rows)


def parts(
    section: str, switched_by: str, *keys: tuple[str, Kind, Any], **more: Any
) -> tuple[Row, ...]:
    """Rows of keys that only mean something with the key `switched_by` of their section.

    "" for a section that its presence switches on.
    """
    switching = f"{section}.{switched_by}" if switched_by else section
    why = no_effect(f"belongs to {switching}, whose verdict counts")
    return tuple(Row(f"{section}.{name}", kind, value, why, **more) for name, kind, value in keys)


@dataclasses.dataclass(frozen=True)
class Variant:
    """A value of optimizer.type or scheduler.type: its verdict, and the rows of its params."""

    name: str
    outcome: Outcome
    rows: tuple[Row, ...]
    since: str = ""
    until: str = ""


@dataclasses.dataclass(frozen=True)
class Alias:
    """An older or second name of a key. convert: old value -> new value, or None to drop it.

    deprecated: DeepSpeed warns of the old name. note: the report's text about it. excludes: the
    section that must not be given next to the old name; by default the new key. yields: both may be
    given, and the new key makes the old one meaningless.
    """

    old: str
    new: str
    deprecated: bool = True
    convert: Callable[[Any], Any] = lambda value: value
    kind: Kind | None = None
    note: str = ""
    excludes: str = ""
    yields: bool = False
