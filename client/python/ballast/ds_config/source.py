"""Where a ds_config comes from: a file, a dict, or base64 text as DeepSpeed's launcher passes it.

Comes from: callers of `check`. Goes to: ballast.ds_config.syntax. Thread safety: reads one file.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

from ballast.ds_config.errors import DsConfigError
from ballast.ds_config.syntax import DEPTH_MAX, Path, Places, parse

FILE_BYTES_MAX = 4 << 20

Config = Mapping[str, Any] | str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Document:
    """A configuration and the places of its names. `values` is not changed by this package."""

    values: Mapping[str, Any]
    source: str
    places: Places

    def place(self, path: Path) -> str:
        """`file:line:column` of a name; "" where the source has no lines."""
        found = self.places.get(path)
        return f"{self.source}:{found[0]}:{found[1]}" if found else ""


def load(config: Config) -> Document:
    """Reads a path, a dict, or urlsafe base64 of the text.

    A string is a path if a file of that name exists, as in DeepSpeed. A dict is not copied and must
    hold only values that JSON can hold. Raises DsConfigError.
    """
    if isinstance(config, Mapping):
        _check_names(config, 0)
        return Document(config, "<dict>", {})
    if not isinstance(config, (str, os.PathLike)):
        kind = type(config).__name__
        raise DsConfigError(
            "<config>", 0, 0, f"a path, a dict or base64 text is wanted, not a {kind}"
        )
    name = os.fspath(config)
    try:
        exists = FilePath(name).exists()
    except (OSError, ValueError):  # base64 text is longer than a name may be
        exists = False
    if exists or isinstance(config, os.PathLike):
        return _parsed(_file_bytes(name), name)
    return _parsed(_from_base64(name), "<base64>")


def _check_names(values: Mapping[Any, Any], depth: int) -> None:
    if depth > DEPTH_MAX:
        raise DsConfigError("<dict>", 0, 0, f"more than {DEPTH_MAX} levels of nesting")
    for name, value in values.items():
        if not isinstance(name, str):
            text = f"the name {name!r} is no text; write it in quotes"
            raise DsConfigError("<dict>", 0, 0, text)
        if isinstance(value, Mapping):
            _check_names(value, depth + 1)


def _file_bytes(name: str) -> bytes:
    try:
        with open(name, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise DsConfigError(name, 0, 0, f"cannot be read: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise DsConfigError(name, 0, 0, f"has more than {FILE_BYTES_MAX} bytes, the limit")
    return data


def _from_base64(text: str) -> bytes:
    """The bytes of base64 text; names of absent files are refused here, also where they decode."""
    try:
        data = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
        data.decode("utf-8-sig")
        return data
    except (UnicodeError, binascii.Error):
        shown = text if len(text) <= 60 else text[:57] + "..."
        raise DsConfigError(shown, 0, 0, "is no file, and no base64 text either") from None


def _parsed(data: bytes, source: str) -> Document:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise DsConfigError(source, line, column, "this byte is not UTF-8") from None
    values, places = parse(text, source)
    return Document(values, source, places)
