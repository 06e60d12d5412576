"""The program that each trainer runs: a script, a module, the script on standard input, any other.

Comes from: ballast.run. Goes to: launcher.trainers. Thread safety: immutable; reads files.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ballast.launcher.servers import UsageError

_STDIN = ("-", "/dev/stdin")
_ELF = b"\x7fELF"


@dataclasses.dataclass(frozen=True)
class Program:
    """words: the command, without Python in front. python: that it takes Python. name: for the
    job's. script: the file whose text is the program, or None. stdin: the trainers' input."""

    words: tuple[str, ...]
    python: bool
    name: str
    script: Path | None = None
    stdin: Path | None = None

    def command(self, python: str) -> list[str]:
        return [python, "-u", *self.words] if self.python else list(self.words)

    def why_hopeless(self) -> str | None:
        """Why it cannot run at all: its text is no Python; None: it may."""
        if self.script is None:
            return None
        try:
            compile(self.script.read_bytes(), str(self.script), "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        except OSError:
            return None
        return None


def chosen(what: str, arguments: Sequence[str], module: bool, python: bool) -> Program:
    """The program of a command line. module: -m. python: without --no-python.

    UsageError for a file that does not exist or that Python cannot read.
    """
    words = (what, *arguments)
    if module:
        if not python:
            raise UsageError("-m takes Python, and --no-python none; leave one of the two out")
        return Program(("-m", *words), True, what.rpartition(".")[2])
    if not python:
        if shutil.which(what) is None:
            raise UsageError(f"no program {what}; name a file that can be executed")
        return Program(words, False, what)
    if what in _STDIN:
        return Program(("-", *arguments), True, "")
    path = Path(what)
    if not path.is_file():
        raise UsageError(f"no script {what}; name a Python file, or a module with -m")
    with path.open("rb") as file:
        if file.read(len(_ELF)) == _ELF:
            raise UsageError(f"{what} is no Python script; --no-python runs it as it is")
    return Program(words, True, what, path)


def from_stdin(program: Program, folder: Path) -> Program:
    """`program`, with the script on standard input kept in a file there, for every trainer."""
    if program.words[0] != "-":
        return program
    if sys.stdin is None:
        raise UsageError("the script on standard input is empty")
    kept = folder / "stdin.py"
    kept.write_bytes(sys.stdin.buffer.read())
    return dataclasses.replace(program, script=kept, stdin=kept)
