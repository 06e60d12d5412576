"""The error of the ds_config reader: an unreadable configuration, with the place and the cause.

Comes from: ballast.ds_config.syntax and source. Goes to: callers of `check` and `load`. A readable
configuration never raises: the Report lists the faults of its keys.
"""

from __future__ import annotations

from typing import Any

from ballast.errors import BadArgument


class DsConfigError(BadArgument):
    """A ds_config that cannot be read. The message begins with `source:line:column: `.

    source: the path, or "<dict>" or "<base64>". line, column: from 1; 0 when there is none.
    """

    def __init__(self, source: str, line: int, column: int, text: str) -> None:
        super().__init__(f"{source}:{line}:{column}: {text}" if line else f"{source}: {text}")
        self.source = source
        self.line = line
        self.column = column
        self.text = text

    def __reduce__(self) -> Any:
        return type(self), (self.source, self.line, self.column, self.text)
