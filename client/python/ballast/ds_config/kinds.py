"""The values that a key takes. Each kind reads one JSON value, or says what is wrong with it.

Comes from: the rows of ballast.ds_config.table. Goes to: ballast.ds_config.check.
Thread safety: immutable values, pure functions.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Protocol

INTEGER_MAX = 2**63 - 1


class WrongValue(Exception):
    """A value that its key does not take; str() says what the key takes and what to write."""


class Kind(Protocol):
    """name: how the reference page calls the kind."""

    @property
    def name(self) -> str: ...

    def read(self, value: Any) -> Any:
        """The value in Python's types; raises WrongValue."""


def shown(value: Any) -> str:
    """A value as JSON for messages: ASCII, one line, at most 60 characters."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = ascii(type(value).__name__)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclasses.dataclass(frozen=True)
class Boolean:
    """true or false; with texts, also "true" and "false", as DeepSpeed's disk tuner prints."""

    texts: bool = False

    @property
    def name(self) -> str:
        return "true or false"

    def read(self, value: Any) -> bool:
        if isinstance(value, bool):
            return value
        if self.texts and isinstance(value, str) and value in ("true", "false"):
            return value == "true"
        raise WrongValue("must be true or false, without quotes")


@dataclasses.dataclass(frozen=True)
class Integer:
    """A whole number in low..high. 5e8 is one; 0.5, true and "5" are not."""

    low: int = 0
    high: int = INTEGER_MAX

    @property
    def name(self) -> str:
        if self.high < INTEGER_MAX:
            return f"integer, {self.low} to {self.high}"
        return f"integer, {self.low} or more" if self.low > -INTEGER_MAX else "integer"

    def read(self, value: Any) -> int:
        whole = _is_number(value) and (isinstance(value, int) or value.is_integer())
        if whole and self.low <= value <= self.high:
            return int(value)
        raise WrongValue(f"must be: {self.name}, without quotes")


@dataclasses.dataclass(frozen=True)
class Number:
    """A finite number in low..high; open_low and open_high exclude the ends."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    @property
    def name(self) -> str:
        parts = []
        if self.low > -math.inf:
            parts.append(f"above {self.low:g}" if self.open_low else f"at least {self.low:g}")
        if self.high < math.inf:
            parts.append(f"below {self.high:g}" if self.open_high else f"at most {self.high:g}")
        return ", ".join(["number", *parts])

    def _holds(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below

    def read(self, value: Any) -> float:
        try:
            number = float(value) if _is_number(value) else math.nan
        except OverflowError:
            number = math.nan
        if math.isfinite(number) and self._holds(number):
            return number
        raise WrongValue(f"must be a finite {self.name}, without quotes")


@dataclasses.dataclass(frozen=True)
class Infinity:
    """The double infinity, read as None: never. Accelerate writes it into dicts."""

    @property
    def name(self) -> str:
        return "infinity"

    def read(self, value: Any) -> None:
        if not isinstance(value, float) or value != math.inf:
            raise WrongValue("must be infinity")


@dataclasses.dataclass(frozen=True)
class Text:
    """Any text; with full, one of at least one character."""

    full: bool = False

    @property
    def name(self) -> str:
        return "text that is not empty" if self.full else "text"

    def read(self, value: Any) -> str:
        if isinstance(value, str) and (value or not self.full):
            return value
        raise WrongValue(f"must be a {self.name}, in double quotes")


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of `values`; with fold, in any case, and the spelling of `values` is the result.

    also: other spellings, each with the one of `values` that it stands for.
    """

    values: tuple[str, ...]
    fold: bool = False
    also: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return " or ".join(json.dumps(value) for value in self.values)

    def read(self, value: Any) -> str:
        for allowed in self.values if isinstance(value, str) else ():
            if value == allowed or (self.fold and value.lower() == allowed.lower()):
                return allowed
        for other, meant in self.also if isinstance(value, str) else ():
            if value == other:
                return meant
        raise WrongValue(f"must be {self.name}")


@dataclasses.dataclass(frozen=True)
class Listing:
    """A list of `element`, of exactly `count` unless `count` is 0."""

    element: Kind
    count: int = 0

    @property
    def name(self) -> str:
        count = f"list of {self.count}" if self.count else "list"
        return f"{count}, each: {self.element.name}"

    def read(self, value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)) or (self.count and len(value) != self.count):
            raise WrongValue(f"must be a {self.name}")
        return [self.element.read(item) for item in value]


@dataclasses.dataclass(frozen=True)
class Either:
    """The first of `kinds` that takes the value."""

    kinds: tuple[Kind, ...]

    @property
    def name(self) -> str:
        return "; or ".join(kind.name for kind in self.kinds)

    def read(self, value: Any) -> Any:
        for kind in self.kinds:
            try:
                return kind.read(value)
            except WrongValue:
                continue
        raise WrongValue(f"must be: {self.name}")


@dataclasses.dataclass(frozen=True)
class Object:
    """An object whose names are the user's; its contents are not examined."""

    @property
    def name(self) -> str:
        return "object"

    def read(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return dict(value)
        raise WrongValue("must be an object in braces")


BOOLEAN = Boolean()
COUNT = Integer(0)
POSITIVE = Integer(1)
ANY_INTEGER = Integer(-INTEGER_MAX)
NUMBER = Number()
SHARE = Number(0.0, 1.0)
TEXT = Text()
FULL_TEXT = Text(full=True)
TEXTS = Either((Listing(TEXT), TEXT))
OBJECT = Object()
LR = Number(0.0)
LR_PER_GROUP = Either((LR, Listing(LR)))
NUMBER_PER_GROUP = Either((NUMBER, Listing(NUMBER)))
INTEGER_OR_AUTO = Either((POSITIVE, Choice(("auto",))))
