"""The runner of the GPU kit: its stages in order of value, within the minutes it was given.

Comes from: run.sh. Goes to: report.json and report.md in --out, rewritten after each check.
The exit code is 1 when a check failed or a stage did not end by itself, else 0.

usage: python -m gpu_kit [--minutes N] [--out DIR] [--work DIR] [--cpu] [--stage NAME]...
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TextIO

from gpu_kit import checks, report, stages

# For the last lines of an ended stage.
READ_S = 5.0


class Run:
    """Stages of one run and their results."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._cpu, self._out, self._work = given.cpu, given.out, given.work
        self._end = time.monotonic() + 60 * given.minutes
        self.found = report.Report(given.out, cpu=given.cpu, minutes=given.minutes)

    def run(self, chosen: list[stages.Stage]) -> None:
        for i, stage in enumerate(chosen):
            seconds = stages.share(chosen[i:], self._end - time.monotonic())
            if seconds < stage.least_s and not self._cpu:
                self.found.add_stage(stage.name, "out of time", 0.0)
                continue
            print(f"{stage.name}: up to {seconds:.0f} s", flush=True)
            self._run_one(stage, seconds)

    def _run_one(self, stage: stages.Stage, seconds: float) -> None:
        folder = self._work / stage.name
        command = [sys.executable, "-m", f"gpu_kit.{stage.name}", "--folder", str(folder),
                   "--seconds", f"{seconds:.0f}", *(["--cpu"] if self._cpu else [])]  # fmt: skip
        began = time.monotonic()
        with open(self._out / f"{stage.name}.log", "w") as log:
            child = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, errors="replace",
                start_new_session=True, env=environment(),
            )  # fmt: skip
            # Not read here: a process left by a stage may keep the pipe open.
            reader = threading.Thread(target=self._read, args=(stage, child, log), daemon=True)
            reader.start()
            try:
                ended = wait(child, seconds + stages.GRACE_S)
            finally:
                end_session(child)
            reader.join(READ_S)
        self.found.add_stage(stage.name, ended, time.monotonic() - began)
        shutil.rmtree(folder, ignore_errors=True)

    def _read(self, stage: stages.Stage, child: subprocess.Popen, log: TextIO) -> None:
        for line in child.stdout:
            self._take(stage, line, log)

    def _take(self, stage: stages.Stage, line: str, log: TextIO) -> None:
        """One line of a stage: a check goes to the report, all go to its log."""
        log.write(line)
        log.flush()
        if not line.startswith(checks.MARK):
            return
        try:
            check = json.loads(line[len(checks.MARK) :])
        except ValueError:  # Another thread's words are in it.
            return
        self.found.add({**check, "stage": stage.name})
        print("  " + report.one_line(check), flush=True)


def environment() -> dict[str, str]:
    """Of a stage. NCCL's own log would appear between its lines."""
    return {**{name: value for name, value in os.environ.items() if name != "NCCL_DEBUG"},
            "PYTHONUNBUFFERED": "1"}  # fmt: skip


def interrupted(number: int, frame: object) -> None:
    """SIGTERM ends the stage that runs, as Ctrl-C does."""
    raise KeyboardInterrupt


def end_session(child: subprocess.Popen) -> None:
    """Ends all that a stage has started: they are of its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def wait(child: subprocess.Popen, seconds: float) -> str:
    """How a stage has ended; "out of time" for one still running."""
    try:
        code = child.wait(seconds)
    except subprocess.TimeoutExpired:
        return "out of time"
    return f"exit code {code}" if code else "ended"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=8, help="for all stages together (8)")
    parser.add_argument("--out", type=Path, default=Path("gpu-report"), help="of the report")
    parser.add_argument("--work", type=Path, help="of the servers' data, which go at the end")
    parser.add_argument("--cpu", action="store_true", help="rehearse without a GPU")
    parser.add_argument("--stage", action="append", choices=[s.name for s in stages.ALL])
    given = parser.parse_args()
    if given.minutes <= 0:
        parser.error(f"--minutes is {given.minutes}; give more than 0")
    given.out.mkdir(parents=True, exist_ok=True)
    return given


def main() -> int:
    given = arguments()
    signal.signal(signal.SIGTERM, interrupted)
    with tempfile.TemporaryDirectory(dir=given.work, prefix="gpu-kit-") as work:
        given.work = Path(work)
        run = Run(given)
        run.run([s for s in stages.ALL if not given.stage or s.name in given.stage])
    run.found.write()
    print(f"report: {given.out / 'report.md'}\n{run.found.closing_line()}")
    return 1 if run.found.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
