"""report.json and report.md of a run of the GPU kit.

Comes from: the runner. Goes to: --out; both files are replaced as a whole after each check, so an
interrupted run leaves its results so far.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
from pathlib import Path

STATES = ("passed", "failed", "measured", "seen", "not run")


def number_of(check: dict) -> str:
    """The value of a check with its unit and its bar, "" where it has none."""
    if check.get("value") is None:
        return ""
    bar = f" (at least {check['least']:g})" if "least" in check else ""
    return f"{check['value']:.4g} {check.get('unit', '')}".strip() + bar


def one_line(check: dict) -> str:
    """A check as a person reads it."""
    named = " ".join(filter(None, (check["check"], number_of(check))))
    said = f": {check['said']}" if check.get("said") else ""
    return f"{check['state']:9} {named}{said}"


class Report:
    """A run's findings so far."""

    def __init__(self, out: Path, cpu: bool, minutes: float) -> None:
        self._out = out
        self._about = {
            "began": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "on": "stand-in for CUDA (rehearsal)" if cpu else "GPU",
            "minutes": minutes,
            "python": platform.python_version(),
            "ballast": os.environ.get("BALLAST_KIT_VERSION", "unknown"),
        }
        self.checks: list[dict] = []
        self.stages: list[dict] = []

    def add(self, check: dict) -> None:
        self.checks.append(check)
        self.write()

    def add_stage(self, name: str, ended: str, seconds: float) -> None:
        """ended: "ended" for one that ran to its end, else what happened."""
        self.stages.append({"stage": name, "ended": ended, "seconds": round(seconds, 1)})
        self.write()

    def count(self, state: str) -> int:
        return sum(check["state"] == state for check in self.checks)

    def failed(self) -> bool:
        """Whether a check failed, or a stage did not run to its end."""
        return self.count("failed") > 0 or any(s["ended"] != "ended" for s in self.stages)

    def closing_line(self) -> str:
        cut = [s["stage"] for s in self.stages if s["ended"] != "ended"]
        said = ", ".join(f"{self.count(state)} {state}" for state in STATES)
        return said + (f"; cut short: {', '.join(cut)}" if cut else "")

    def write(self) -> None:
        whole = {**self._about, "stages": self.stages, "checks": self.checks}
        self._replace("report.json", json.dumps(whole, indent=1) + "\n")
        self._replace("report.md", self._page())

    def _page(self) -> str:
        lines = ["# Ballast on a GPU", ""]
        lines += [f"- {name}: {value}" for name, value in self._about.items()]
        lines += [f"- {self.closing_line()}", ""]
        known = {s["stage"]: s for s in self.stages}
        for stage in dict.fromkeys([*known, *(c["stage"] for c in self.checks)]):
            told = known.get(stage)
            how = f"{told['ended']}, {told['seconds']} s" if told else "under way"
            lines += [f"## {stage} ({how})", ""]
            lines += ["| state | check | value | said |", "|---|---|---|---|"]
            lines += [self._row(check) for check in self.checks if check["stage"] == stage]
            lines.append("")
        return "\n".join(lines)

    @staticmethod
    def _row(check: dict) -> str:
        said = " ".join(str(check.get("said", "")).split()).replace("|", "/")
        return f"| {check['state']} | {check['check']} | {number_of(check)} | {said} |"

    def _replace(self, name: str, text: str) -> None:
        part = self._out / f".{name}.part"
        part.write_text(text)
        os.replace(part, self._out / name)
