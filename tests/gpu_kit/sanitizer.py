"""Stage "sanitizer": compute-sanitizer finds nothing in our kernels and copies.

Comes from: the runner. Goes to: compute-sanitizer of the CUDA toolkit over the device tests, and
over three rounds of a trainer (three_rounds.py). A fault for it to find is planted as well: packs
that write where no memory is. For initcheck nothing is left out: a copy to the host takes the bytes
that a pack has written, and none of the rest of the buffer (Pipeline::CopyOut).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gpu_kit import checks, faults, place

TOOLKIT = Path("/usr/local/cuda/bin/compute-sanitizer")
FOUND_CODE = 9
LATE_CODES = (124, 137)  # of timeout(1)
# Its last line: "ERROR SUMMARY: 2 errors", or of racecheck "RACECHECK SUMMARY: 1 hazard displayed".
SUMMARY = re.compile(r"^=+ +(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)", re.M)
# The last words of the device tests and the trainer when they have done their work.
RAN = re.compile(r"\[  PASSED  \] (?:[5-9]|\d\d+) tests|bits differ after 3 rounds")
# In the order of their value.
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
LEAST_S = 5.0


class Sanitizer:
    """Runs commands under one of its tools, within the time of the stage."""

    def __init__(self, stage: checks.Stage, program: str) -> None:
        self._stage = stage
        self._program = program

    def findings(
        self, tool: str, command: list[str], extra: Mapping[str, str] | None = None,
        options: tuple[str, ...] = (),
    ) -> tuple[int | None, int | None, bool]:  # fmt: skip
        """(its findings, None without a summary; exit code, None when there was no time left;
        whether the command has done its work)."""
        # timeout(1) ends the program below as well, also where this stage is killed.
        line = ["timeout", "--kill-after=1", f"{max(1.0, self._stage.left() - 2):.0f}",
                self._program, "--tool", tool, "--error-exitcode", str(FOUND_CODE),
                "--print-limit", "20", *options, *command]  # fmt: skip
        print("$", *line, flush=True)
        ended = subprocess.run(
            line, env={**os.environ, **(extra or {})}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
        said, code = ended.stdout, ended.returncode if ended.returncode not in LATE_CODES else None
        print(said[-6000:], flush=True)
        summaries = [int(count) for count in SUMMARY.findall(said)]
        return (sum(summaries) if summaries else None), code, bool(RAN.search(said))

    def check(self, name: str, tool: str, command: list[str],
              options: tuple[str, ...] = ()) -> None:  # fmt: skip
        """Passes where it found nothing and the command itself succeeded."""
        if self._stage.left() < LEAST_S:
            self._stage.not_run(name, f"{self._stage.left():.0f} s were left")
            return
        with self._stage.trial(name):
            found, code, ran = self.findings(tool, command, options=options)
            if code is None:
                self._stage.not_run(name, "it did not end within the time of this stage")
                return
            count = "no summary" if found is None else f"{found} findings"
            self._stage.check(name, found == 0 and code == 0 and ran, (
                f"{count}, exit code {code}" + ("" if ran else ", and nothing ran")),
                findings=-1 if found is None else found)  # fmt: skip


def device_tests(cpu: bool) -> list[str]:
    program = Path(os.environ["BALLAST_KIT_BIN"]) / "device_conformance_test"
    which = "*/cuda_over_a_standin" if cpu else "*/cuda:Gpu.*"
    return [str(program), f"--gtest_filter={which}"]


def planted(stage: checks.Stage, sanitizer: Sanitizer) -> None:
    """memcheck over packs that write where no memory is."""
    name = "memcheck finds a pack that writes where no memory is"
    if not faults.built():
        stage.not_run(name, "libballast_cuda_faulty.so is not there")
        return
    if stage.cpu:
        stage.not_run(name, "such a pack would end the rehearsal")
        return
    with stage.trial(name):
        environ = faults.environment(stage.folder, stage.cpu, "wild_pack")
        found, code, _ = sanitizer.findings("memcheck", device_tests(stage.cpu), environ)
        if code is None:
            stage.not_run(name, "it did not end within the time of this stage")
            return
        stage.check(name, bool(found), f"{found} findings, exit code {code}", findings=found or 0)


def trainer(stage: checks.Stage, sanitizer: Sanitizer) -> None:
    """memcheck over a trainer. Torch asks CUDA for things that may fail, so that errors which calls
    return do not count: only those of memory."""
    name = "memcheck over three rounds of a trainer"
    if stage.left() < 2 * LEAST_S:
        stage.not_run(name, f"{stage.left():.0f} s were left")
        return
    with stage.trial(name), place.servers(stage.folder / "servers", 1) as servers:
        command = [sys.executable, "-m", "gpu_kit.three_rounds", *(["--cpu"] if stage.cpu else []),
                   *servers.addresses]  # fmt: skip
        options = ("--target-processes", "all", "--report-api-errors", "no")
        sanitizer.check(name, "memcheck", command, options)


def run(stage: checks.Stage) -> None:
    program = shutil.which("compute-sanitizer") or (str(TOOLKIT) if TOOLKIT.exists() else None)
    if program is None:
        for tool in TOOLS:
            stage.not_run(f"{tool} over the device tests", "there is no compute-sanitizer")
        stage.not_run("memcheck over three rounds of a trainer", "there is no compute-sanitizer")
        return
    sanitizer = Sanitizer(stage, program)
    tests = device_tests(stage.cpu)
    for tool in TOOLS[:3]:
        sanitizer.check(f"{tool} over the device tests", tool, tests)
    planted(stage, sanitizer)
    trainer(stage, sanitizer)
    sanitizer.check(f"{TOOLS[3]} over the device tests", TOOLS[3], tests)


if __name__ == "__main__":
    checks.main("sanitizer", run)
