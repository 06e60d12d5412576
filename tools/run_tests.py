#!/usr/bin/env python3
"""Runs ctest and pytest, runs each failed test once more, alone, and says what is true at the end.

Comes from: scripts/test.sh. Goes to: stdout, and build/logs (ctest.log, pytest.log, flaky.txt).
Thread safety: one process, nothing shared.

A test that fails and then passes alone is flaky: the summary names it. A test that fails twice, or
more than FLAKY_MAX flaky tests, make the run red. The last lines with "tests passed" and "N passed"
count a flaky test as passed, unless there are too many of them.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parents[1]
FLAKY_MAX = 3
# With more failures than this the tree is broken, and a second run would only take time.
RERUN_MAX = 30
# Tests of pytest mostly wait: for servers to start, for timeouts. More than eight workers wait for
# each other's disk.
WORKERS_PER_PROCESSOR = 3
WORKERS_MAX = 8
LAST_WORDS = 8
# A test's limit is at least this multiple of its usual time: a loaded machine is no failure.
LIMIT_TIMES = 5
PYTEST_LIMIT_S = 600
SLOW = ("slow", "bench", "e2e")


def processors():
    """Processors this process may use: affinity, and the quota of its container if there is one."""
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = pathlib.Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return count
    return count if quota == "max" else max(1, min(count, -(-int(quota) // int(period))))


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which tests run. label: of ctest, or "python" for pytest alone; "" for all."""

    quick: bool = False
    label: str = ""


class Ctest:
    """How ctest is called, and how its output reads."""

    name = "ctest"
    tests_failed = 8  # the exit code that says: some tests ran and failed

    def __init__(self, selection, program=("ctest",)):
        self._base = [*program, "--test-dir", "build/release", "--output-on-failure"]
        self._selection = selection

    def command(self):
        chosen = []
        if self._selection.label:
            chosen += ["--label-regex", f"^{self._selection.label}$"]
        if self._selection.quick:
            chosen += ["--label-exclude", f"^({'|'.join(SLOW)})$"]
        parallel = ["--parallel", str(processors())]
        return [*self._base, "--no-tests=error", *parallel, *chosen]

    def again(self, failed):
        """ctest keeps the names of what failed by itself."""
        return [*self._base, "--rerun-failed", "--parallel", "1"]

    def failed(self, text):
        """Names of the failed tests: lines such as "  12 - Suite.Test (Failed)"."""
        _, _, listed = text.rpartition("The following tests FAILED:\n")
        return re.findall(r"^\s*\d+ - (.+) \([^()]*\)\s*$", listed, re.M)

    def passed(self, text):
        return set(re.findall(r"^ *\d+/\d+ Test +#\d+: (.+?) \.* *Passed ", text, re.M))

    def last_words(self, text, name):
        """The end of a failed test's output; ctest shows it below the line of its result."""
        result = re.escape(name) + r" \.*\*\*\*.*\n"
        found = re.search(rf"Test +#\d+: {result}((?:.*\n)*?)(?= *\d+/\d+ Test +#| +Start +\d+:"
                          r"|\d+% tests passed)", text)
        return found.group(1) if found else ""

    def slow(self, text):
        """(name, seconds, limit) of tests that took more than a fifth of their limit."""
        listed = subprocess.run([*self._base[:-1], "--show-only=json-v1"], cwd=REPO, text=True,
                                stdout=subprocess.PIPE, check=False)
        limits = {test["name"]: row["value"] for test in json.loads(listed.stdout or "{}").get(
            "tests", ()) for row in test.get("properties", ()) if row["name"] == "TIMEOUT"}
        took = re.findall(r"^ *\d+/\d+ Test +#\d+: (.+?) \.* *Passed +([\d.]+) sec", text, re.M)
        return [(name, float(s), limits[name]) for name, s in took
                if name in limits and float(s) * LIMIT_TIMES > limits[name]]

    def summary(self, text, failing, recovered):
        """ctest's own last line, with the tests that passed at last counted as passed."""
        found = re.findall(r"^\d+% tests passed, (\d+) tests failed out of (\d+)", text, re.M)
        if not found:
            return "ctest: no summary"
        _, total = map(int, found[-1])
        passed = total - len(failing)
        percent = 100 if not failing else min(99, 100 * passed // total)
        return f"{percent}% tests passed, {len(failing)} tests failed out of {total}"


class Pytest:
    """How pytest is called, and how its output reads."""

    name = "pytest"
    tests_failed = 1

    def __init__(self, selection, program=(".venv/bin/python", "-m", "pytest")):
        self._base = [*program, f"--timeout={PYTEST_LIMIT_S}"]
        self._selection = selection

    def command(self):
        workers = min(WORKERS_MAX, WORKERS_PER_PROCESSOR * processors())
        chosen = ["-m", f"not {' and not '.join(SLOW)}"] if self._selection.quick else []
        parallel = ["-n", str(workers), "--dist", "worksteal"]
        longest = ["--durations=20", f"--durations-min={PYTEST_LIMIT_S // LIMIT_TIMES}"]
        return [*self._base, "tests/python", "tests/e2e", "tests/deploy", "-ra", *longest,
                *parallel, *chosen]

    def again(self, failed):
        return [*self._base, "-rA", *failed]

    def failed(self, text):
        return self._of("FAILED|ERROR", text)

    def passed(self, text):
        return set(self._of("PASSED", text))

    def _of(self, words, text):
        """Node ids in the list at the end, without the message after " - "; each once."""
        listed = re.split(r"^=+ short test summary info =+$", text, flags=re.M)[1:]
        lines = listed[-1] if listed else ""
        node = r"[^\s\[]+(?:\[.*?\])?"
        return list(dict.fromkeys(re.findall(rf"^(?:{words}) ({node})(?: - .*)?$", lines, re.M)))

    def last_words(self, text, name):
        """Nothing: pytest's list of what failed has the message already."""
        return ""

    def slow(self, text):
        """(name, seconds, limit) of tests that took more than a fifth of their limit."""
        _, _, listed = text.partition("slowest 20 durations")
        return [(name, float(s), PYTEST_LIMIT_S)
                for s, name in re.findall(r"^([\d.]+)s call +(\S.*?)\s*$", listed, re.M)]

    def summary(self, text, failing, recovered):
        """pytest's own last line, with the tests that passed at last counted as passed."""
        last = text.rstrip("\n").rpartition("\n")[2]
        if not recovered:
            return last
        counts = {word.rstrip("s"): int(n) for n, word in re.findall(r"(\d+) ([a-z]+)", last)}
        for word in ("failed", "error"):
            counts.pop(word, 0)
        counts["passed"] = counts.get("passed", 0) + len(recovered)
        parts = [f"{len(failing)} failed"] if failing else []
        parts += [f"{n} {word}" for word, n in counts.items() if word != "second"]
        took = re.search(r" in [\d.]+s.*?(?= =|$)", last)
        return f"===== {', '.join(parts)}{took.group(0) if took else ''} ====="


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a suite. failing: twice, or with no second run. flaky: failed, then passed
    alone."""

    suite: object
    code: int
    text: str
    failing: tuple
    flaky: tuple

    def broken(self):
        """Whether it ended for another reason than tests that fail."""
        return self.code not in (0, self.suite.tests_failed) or (
            self.code != 0 and not self.failing and not self.flaky)


def run_logged(command, log, mode):
    """Runs `command`, shows its output and writes it to `log`; returns (exit code, output)."""
    lines = []
    with open(log, mode) as file:
        with subprocess.Popen(command, cwd=REPO, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace") as child:
            for line in child.stdout:
                lines.append(line)
                file.write(line)
                print(line, end="", flush=True)
    return child.returncode, "".join(lines)


def run_suite(suite, logs):
    """Runs a suite, then once more what failed, alone. Returns its Outcome."""
    print(f"== {suite.name} ==", flush=True)
    log = logs / f"{suite.name}.log"
    code, text = run_logged(suite.command(), log, "w")
    failed = tuple(suite.failed(text)) if code == suite.tests_failed else ()
    if not 0 < len(failed) <= RERUN_MAX:
        return Outcome(suite, code, text, failed, ())
    print(f"== {suite.name}: {len(failed)} failed, once more, alone ==", flush=True)
    _, second = run_logged(suite.again(failed), log, "a")
    passed = suite.passed(second)
    return Outcome(suite, code, text, tuple(name for name in failed if name not in passed),
                   tuple(name for name in failed if name in passed))


def report(outcomes, logs):
    """Prints the summary and writes flaky.txt; returns the exit code."""
    print("== summary ==")
    flaky = [name for outcome in outcomes for name in outcome.flaky]
    (logs / "flaky.txt").write_text("".join(f"{name}\n" for name in flaky))
    too_many = len(flaky) > FLAKY_MAX
    green = not too_many
    for outcome in outcomes:
        report_suite(outcome, too_many)
        green = green and not outcome.failing and not outcome.broken()
    if too_many:
        print(f"red: {len(flaky)} flaky tests, more than {FLAKY_MAX}")
    return 0 if green else 1


def report_suite(outcome, too_many):
    """Names the failed and the flaky tests, then the suite's own summary line, made true."""
    suite, text = outcome.suite, outcome.text
    for word, names in (("FAILED", outcome.failing), ("FLAKY", outcome.flaky)):
        for name in names:
            print(f"{word} {name}")
            said = [line for line in suite.last_words(text, name).splitlines() if line.strip()]
            print("".join(f"    {line}\n" for line in said[-LAST_WORDS:]), end="")
    for name, seconds, limit in suite.slow(text):
        print(f"SLOW {name}: {seconds:.0f} s, and its limit is {limit:.0f} s: on an idle machine "
              f"too little (tests have {LIMIT_TIMES} times what they take)")
    recovered = () if too_many else outcome.flaky
    failing = outcome.failing + (outcome.flaky if too_many else ())
    print(suite.summary(text, failing, recovered))
    code = outcome.code if failing or outcome.broken() else 0
    print(f"{suite.name}: exit code {code}", flush=True)


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="scripts/test.sh", description="Sets the tree up and runs every test: ctest (C++, "
        "style, rooms), then pytest (Python, end to end). Logs are in build/logs.")
    parser.add_argument("--quick", action="store_true",
                        help=f"leave out tests labelled or marked {', '.join(SLOW)}")
    parser.add_argument("--label", default="", metavar="L",
                        help="only ctest tests with label L; L = python runs only pytest")
    parser.add_argument("--verify-flags", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def suites_of(selection):
    chosen = []
    if selection.label != "python":
        chosen.append(Ctest(selection))
    if selection.label in ("", "python"):
        chosen.append(Pytest(selection))
    return chosen


def main():
    args = parse(sys.argv[1:])
    if args.verify_flags:
        return 0
    # torch chooses its kernels by CPU; the bit-for-bit comparisons are defined for this choice.
    os.environ["ATEN_CPU_CAPABILITY"] = "avx2"
    os.environ["PATH"] = f"{REPO}/build/release/bin:{os.environ['PATH']}"
    logs = REPO / "build" / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    return report([run_suite(s, logs) for s in suites_of(Selection(args.quick, args.label))], logs)


if __name__ == "__main__":
    sys.exit(main())
