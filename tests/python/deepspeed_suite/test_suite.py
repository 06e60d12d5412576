"""DeepSpeed's own unit tests, with ballast.deepspeed in the place of deepspeed.

    BALLAST_DEEPSPEED_CHECKOUT=DIR python -m pytest -m deepspeed tests/python/deepspeed_suite -s

DIR: a checkout of DeepSpeed, of which nothing is copied. Python has py-cpuinfo, and the other
tests' packages. BALLAST_SUITE_FILES picks files by a part of their name. All failures are printed,
and a table. left.txt has the known ones, each with its reason, as docs/deepspeed.md names
them; inside.txt the tests that need a name inside of DeepSpeed, which no script uses.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CHECKOUT = os.environ.get("BALLAST_DEEPSPEED_CHECKOUT", "")
FILES = (HERE / "files.txt").read_text().split()
WANTED = os.environ.get("BALLAST_SUITE_FILES", "")  # Fixtures take BALLAST_* away.
SCALE = float(os.environ.get("BALLAST_TIME_SCALE", "1"))  # above 1 on a busy machine
FILE_S, TEST_S = 1500 * SCALE, 60 * SCALE

# The subject of a failure, by its text; "failed" is for users to see.
KINDS = (
    ("fixture", r"fixture '\w+' not found"),  # pytest 8.4 has no place for DistributedFixture.
    ("stage 3", r"zero_optimization\.stage: |stage 3"),
)

pytestmark = [
    pytest.mark.deepspeed,
    pytest.mark.timeout(0),
    pytest.mark.skipif(not CHECKOUT, reason="BALLAST_DEEPSPEED_CHECKOUT is not set"),
]


def ran(name, environ, folder):
    """(outcome, test, text) of each test in a file."""
    report = folder / f"{name.replace('/', '.')}.xml"
    said = report.with_suffix(".log")
    command = [sys.executable, "-m", "pytest", "-p", "launches", "-p", "no:cacheprovider",
               f"--junitxml={report}", f"--timeout={TEST_S}", "-m", "not inference",
               f"unit/{name}"]  # fmt: skip
    try:
        with said.open("w") as log:
            subprocess.run(command, cwd=Path(CHECKOUT) / "tests", env=environ, timeout=FILE_S,
                           stdout=log, stderr=subprocess.STDOUT)  # fmt: skip
    except subprocess.TimeoutExpired:
        return [("failed", name, f"not finished in {FILE_S} s; see {said}")]
    if not report.exists():
        return [("failed", name, said.read_text()[-2000:])]
    return [outcome(name, case) for case in ElementTree.parse(report).iter("testcase")]


def outcome(name, case):
    test = f"{name}::{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
    for tag in ("failure", "error"):
        found = case.find(tag)
        if found is not None:
            text = f"{found.get('message')}\n{found.text}"
            kinds = [k for k, pattern in KINDS if re.search(pattern, text)]
            kinds += [k for k in ("inside", "left") if any(re.search(p, test) for p in named(k))]
            return [*kinds, "failed"][0], test, text
    return ("skipped" if case.find("skipped") is not None else "passed"), test, ""


def first_line(text):
    lines = re.findall(r"^E +(\S.*)", text, re.M) or text.splitlines() or [""]
    return lines[-1][:150]


def named(kind):
    """The patterns of tests that a file here names: left, or inside."""
    lines = (HERE / f"{kind}.txt").read_text().splitlines()
    return [line.partition(" # ")[0].strip() for line in lines if line and line[0] != "#"]


def show(rows):
    columns = ("passed", "failed", "left", "inside", "stage 3", "fixture", "skipped")
    print("\n| File |", " | ".join(columns), "|")
    for name, counts in rows.items():
        print(f"| {name} |", " | ".join(str(counts[column]) for column in columns), "|")


def test_deepspeeds_tests(shared_servers, tmp_path):
    hook = os.pathsep.join([str(HERE / "hook"), str(Path(CHECKOUT) / "tests")])
    environ = {**os.environ, "PYTHONPATH": hook, "BALLAST_ENDPOINTS": shared_servers(1)[0],
               "BALLAST_DURABILITY": "process", "DS_DISABLE_REUSE_DIST_ENV": "1",
               "DS_ACCELERATOR": "cpu", "LOCAL_SIZE": "8", "OMP_NUM_THREADS": "1"}  # fmt: skip
    rows = {}
    for name in (name for name in FILES if WANTED in name):
        results = ran(name, environ, tmp_path)
        rows[name] = Counter(kind for kind, *_ in results)
        print(f"\n{name}: {dict(rows[name])}", flush=True)
        for kind, test, text in results:
            if text:
                print(f"  {kind}: {test}: {first_line(text)}", flush=True)
    show({**rows, "all": sum(rows.values(), Counter())})
    assert not sum(counts["failed"] for counts in rows.values())
