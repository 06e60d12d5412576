"""The commands of a section of docs/operations.md, run one after the other as an operator does.

Comes from: test_walks.py. Goes to: bash, and stand-ins for programs that cannot work here.

After a command the page says what to see: words of the output in quotes, and an exit code other
than 0. Both are checked.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping

from deploy.tools import REPO

PAGE = REPO / "docs" / "operations.md"
_HANG_S = 120.0
# Takes the words of a command; returns its exit code and output.
StandIn = Callable[[list[str]], tuple[int, str]]


@dataclasses.dataclass(frozen=True)
class Command:
    """A line of a block of commands, and its comment's promise."""

    text: str
    words: tuple[str, ...]
    code: int


def blocks(heading: str) -> list[list[Command]]:
    """Those below a heading, up to the next one, in the order of the page."""
    section = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", PAGE.read_text(),
                        re.M | re.S)
    assert section, f"{PAGE.name} has no section {heading}"
    found = re.findall(r"^```sh\n(.*?)^```$", section[1], re.M | re.S)
    return [[command(line) for line in block.splitlines()] for block in found]


def command(line: str) -> Command:
    text, _, comment = line.partition("  #")
    code = re.search(r"exit code (\d+)", comment)
    return Command(text.strip(), tuple(re.findall(r'"([^"]+)"', comment)),
                   int(code[1]) if code else 0)


class Walk:
    """Runs commands. `texts`: a text of the page -> its replacement on this machine; a stand-in may
    add to it. `env`: of every command. end() when done: it ends processes started with "&"."""

    def __init__(self, stand_ins: Mapping[str, StandIn], texts: dict[str, str],
                 env: Mapping[str, str]):
        self._stand_ins, self.texts, self._env = stand_ins, texts, dict(env)
        self._behind: list[subprocess.Popen] = []

    def take(self, steps: list[Command]) -> None:
        """Does all of a block. AssertionError with command and output where the page is wrong."""
        for step in steps:
            code, said = self.run(step.text)
            assert code == step.code, f"{step.text}: exit code {code}: {said}"
            for word in step.words:
                assert word in said, f"{step.text}: no {word!r} in: {said}"

    def kill_last(self) -> None:
        """Ends the process of the last "&", as the kernel does when memory is short."""
        process = self._behind.pop()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def end(self) -> None:
        while self._behind:
            self.kill_last()

    def run(self, text: str) -> tuple[int, str]:
        stand_in = self._stand_ins.get(text.split()[0])
        behind = text.endswith(" &")
        if stand_in:
            return stand_in(shlex.split(text.removesuffix(" &")))
        for old, new in self.texts.items():
            text = text.replace(old, new)
        if export := re.fullmatch(r"export (\w+)=(\S+)", text):
            self._env[export[1]] = export[2]
            return 0, ""
        call = ["bash", "-euo", "pipefail", "-c"]
        if behind:
            self._behind.append(subprocess.Popen(
                [*call, text.removesuffix(" &")], env=self._env, cwd=REPO, start_new_session=True,
                stdin=subprocess.DEVNULL))
            return 0, ""
        done = subprocess.run([*call, text], env=self._env, cwd=REPO, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=_HANG_S, check=False)
        return done.returncode, done.stdout + done.stderr
