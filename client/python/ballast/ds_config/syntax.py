"""Reads the text of a ds_config: JSON with the freedoms that such files use, and nothing more.

Comes from: ballast.ds_config.source. Goes to: ballast.ds_config.check. Beyond JSON: comments
(`#`, `//`, `/* */`) and a comma before `}` or `]`. Names without quotes, values without quotes and
missing commas are errors with line and column. A repeated name in one object is an error.
Thread safety: pure functions.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from ballast.ds_config.errors import DsConfigError

DEPTH_MAX = 64
NUMBER_CHARACTERS_MAX = 400

Path = tuple[str, ...]
Places = dict[Path, tuple[int, int]]

_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[^\s,:{}\[\]\"#/]+")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_WORDS = {"true": True, "false": False, "null": None}


class _Reader:
    """One pass over `text`, from the left; `at` is the next character."""

    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.source = source
        self.at = 0
        self.places: Places = {}

    def place(self, at: int) -> tuple[int, int]:
        """Line and column of a position, both from 1."""
        line = self.text.count("\n", 0, at) + 1
        return line, at - (self.text.rfind("\n", 0, at) + 1) + 1

    def error(self, at: int, text: str) -> DsConfigError:
        return DsConfigError(self.source, *self.place(at), text)

    def peek(self) -> str:
        """Skips blanks and comments and returns the next character; "" at the end."""
        match = _BLANK.match(self.text, self.at)
        self.at = match.end() if match else self.at
        if self.text.startswith("/*", self.at):
            raise self.error(self.at, "this comment has no */")
        return self.text[self.at : self.at + 1]

    def document(self) -> Any:
        """The whole text: one value with nothing after it."""
        value = self.value((), 0)
        if self.peek():
            raise self.error(self.at, f"nothing may follow the value, but here is {self.shown()}")
        return value

    def value(self, path: Path, depth: int) -> Any:
        character = self.peek()
        if depth > DEPTH_MAX:
            raise self.error(self.at, f"more than {DEPTH_MAX} levels of nesting")
        if character == "{":
            return self.object(path, depth)
        if character == "[":
            return self.array(path, depth)
        if character == '"':
            return self.string()
        return self.scalar()

    def object(self, path: Path, depth: int) -> dict[str, Any]:
        self.at += 1
        result: dict[str, Any] = {}
        while self.peek() != "}":
            start = self.at
            if self.peek() != '"':
                raise self.error(start, f"a name in double quotes is wanted, not {self.shown()}")
            name = self.string()
            if name in result:
                first = self.places[(*path, name)]
                raise self.error(start, f"{name!r} stands twice, first at line {first[0]}")
            self.places[(*path, name)] = self.place(start)
            if self.peek() != ":":
                raise self.error(self.at, f"a colon is wanted after {name!r}, not {self.shown()}")
            self.at += 1
            result[name] = self.value((*path, name), depth + 1)
            self.separator("}")
        self.at += 1
        return result

    def array(self, path: Path, depth: int) -> list[Any]:
        self.at += 1
        result: list[Any] = []
        while self.peek() != "]":
            result.append(self.value((*path, str(len(result))), depth + 1))
            self.separator("]")
        self.at += 1
        return result

    def separator(self, closing: str) -> None:
        """A comma, or the closing bracket, which stays. The error is placed after the value."""
        end = self.at
        character = self.peek()
        if character == ",":
            self.at += 1
        elif not character:
            raise self.error(self.at, f"the text ends before its {closing}")
        elif character != closing:
            raise self.error(end, f"a comma is missing before {self.shown()}")

    def string(self) -> str:
        match = _STRING.match(self.text, self.at)
        if not match:
            raise self.error(self.at, "this double quote is not closed on its line")
        try:
            text: str = json.loads(match.group())
        except ValueError:
            raise self.error(self.at, f"unknown escape in {match.group()[:40]}") from None
        self.at = match.end()
        return text

    def scalar(self) -> Any:
        match = _WORD.match(self.text, self.at)
        word = match.group() if match else ""
        if word in _WORDS:
            self.at += len(word)
            return _WORDS[word]
        number = _NUMBER.fullmatch(word)
        if not number:
            raise self.error(self.at, f"a value is wanted, not {self.shown()}")
        value = self.number(word, whole=not (number.group(1) or number.group(2)))
        self.at += len(word)
        return value

    def number(self, word: str, *, whole: bool) -> int | float:
        if len(word) > NUMBER_CHARACTERS_MAX:
            limit = f"a number has at most {NUMBER_CHARACTERS_MAX} characters"
            raise self.error(self.at, f"{limit}, this one {len(word)}")
        value = int(word) if whole else float(word)
        if not whole and math.isinf(value):
            raise self.error(self.at, f"{word} is larger than any double; write a smaller number")
        return value

    def shown(self) -> str:
        """The text at `at`, for messages."""
        match = _WORD.match(self.text, self.at)
        word = match.group()[:40] if match else self.text[self.at : self.at + 1]
        return repr(word) if word else "the end of the text"


def parse(text: str, source: str) -> tuple[dict[str, Any], Places]:
    """The object that `text` holds, and the line and column of each name in it.

    `source` appears in messages. Elements of lists have no places, but names inside them do, under
    the element's index. Raises DsConfigError.
    """
    reader = _Reader(text, source)
    if not reader.peek():
        raise reader.error(reader.at, "the text is empty; {} is the smallest configuration")
    value = reader.document()
    if not isinstance(value, dict):
        raise reader.error(0, f"an object is wanted, such as {{}}, not a {type(value).__name__}")
    return value, reader.places
