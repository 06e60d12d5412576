"""The error of the checkpoint readers and writers: which file cannot be used, and why.

Comes from: ballast.ds_checkpoint. Goes to: scripts and the commands of this package.
"""

from __future__ import annotations

import os
from typing import Any

from ballast.errors import BadArgument

_SHOWN_MAX = 200


class CheckpointError(BadArgument):
    """A checkpoint that cannot be read or written. The message begins with `path: `.

    path: the file or directory. text: the fault and the next step.
    """

    def __init__(self, path: str | os.PathLike[str], text: str) -> None:
        self.path = os.fspath(path)
        self.text = text
        super().__init__(f"{self.path}: {text}")

    def __reduce__(self) -> Any:
        return type(self), (self.path, self.text)


def shown(value: Any) -> str:
    """A name or number out of a file, as one short line of ASCII."""
    if not isinstance(value, (str, int, float, bool, type(None))):
        return f"a {type(value).__name__}"
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    text = text.encode("ascii", "backslashreplace").decode("ascii")
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."
