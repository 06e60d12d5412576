"""Runs one program of bench/ and says whether its result was right, whatever its speed was.

Comes from: ctest (CMakeLists.txt of this folder, which has the smallest sizes). Goes to: the
programs of bench/. Thread safety: one process.

  smoke.py --below FOLDER PROGRAM ARGUMENT...
      exit status 1 when PROGRAM ends with another code than 0, or prints anything but one verified
      JSON object with numbers and all sizes
  smoke.py --names
      exit status 1 when a program of bench/ has no row

A program works in a folder of its own below FOLDER, which is removed at its end. FOLDER lies on a
disk, and /tmp perhaps in memory.
"""

import argparse
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
BENCH = HERE.parents[1] / "bench"


def programs():
    """Names of the programs that a person can start in bench/."""
    return {path.name for path in BENCH.iterdir() if path.is_file() and os.access(path, os.X_OK)}


def numbers(value):
    """Yields each number in `value`, a parsed JSON value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from numbers(part)
    elif isinstance(value, float | int) and not isinstance(value, bool):
        yield value


def problem_of(text):
    """The fault of the JSON object that a program printed; "" for none."""
    try:
        result = json.loads(text)
    except ValueError:
        return "stdout is not one JSON object"
    if not isinstance(result, dict) or result.get("verified") is not True:
        return "its result is not verified"
    if result.get("skipped"):
        return f"it left out {result['skipped']}"
    found = list(numbers(result))
    if not found or not all(map(math.isfinite, found)):
        return "it measured nothing"
    return ""


def run(program, arguments, below):
    """The fault of the run; "" for none."""
    command = [str(BENCH / program), "--json", *arguments]
    with tempfile.TemporaryDirectory(dir=below) as folder:
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
        left = os.listdir(folder)
    print(done.stdout)
    if done.returncode != 0:
        return f"exit status {done.returncode}"
    if left:
        return f"it left {left} behind"
    return problem_of(done.stdout)


def without_row():
    """Programs of bench/ that CMakeLists.txt does not name."""
    rows = (HERE / "CMakeLists.txt").read_text()
    return sorted(programs() - set(re.findall(r"^ballast_bench_smoke\((\S+?)[\s)]", rows, re.M)))


def main():
    parser = argparse.ArgumentParser(prog="smoke.py", description=__doc__.splitlines()[0])
    parser.add_argument("--names", action="store_true")
    parser.add_argument("--below", type=pathlib.Path)
    parser.add_argument("program", nargs="?")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if given.names:
        missing = without_row()
        problem = f"tests/bench/CMakeLists.txt has no row of {missing}" if missing else ""
    else:
        problem = run(given.program, given.arguments, given.below)
        problem = problem and f"{given.program}: {problem}"
    if problem:
        print(f"smoke: {problem}", file=sys.stderr)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
