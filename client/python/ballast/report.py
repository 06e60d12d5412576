"""ballast-report: what of Ballast works on this machine, and why not, as ds_report prints it.

Comes from: the shell. Goes to: stdout. Imports neither torch nor the extension unless it is built;
starts `ballastd --version`. Linux only.
Exit code: 0 if all that Ballast has works here, 1 if something does not, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

from ballast import __version__
from ballast.launcher import machine

JSON_VERSION = 1
_LINE = "-" * 78
_NAME_COLUMNS = 26
_OKAY, _NO = "[OKAY]", "[NO]"


@dataclasses.dataclass(frozen=True)
class Report:
    """ops: the parts that scripts use. facts: (name, value) of the machine, in the order to
    print."""

    ops: Sequence[machine.Op]
    facts: Sequence[tuple[str, str]]

    @property
    def exit_code(self) -> int:
        """0 if each op that Ballast has is installed and works, else 1."""
        return 0 if all(op.installed and op.compatible for op in self.ops if op.ours) else 1

    def as_json(self) -> str:
        """One JSON object, ASCII."""
        ops = [dataclasses.asdict(op) for op in self.ops]
        document = {"version": JSON_VERSION, "ops": ops, "facts": dict(self.facts)}
        return json.dumps(document, indent=2)

    def as_text(self, operators: bool = True, reasons: bool = True) -> str:
        """ds_report's two tables. operators: the first one; reasons: why something is not there."""
        lines = self._operators(reasons) if operators else []
        lines += [_LINE, "Ballast general environment info:"]
        lines += [f"{_dotted(name, _NAME_COLUMNS + 8)} {value}" for name, value in self.facts]
        return "\n".join(lines)

    def _operators(self, reasons: bool) -> list[str]:
        note = "NOTE: ops are built with Ballast; nothing is compiled when a script runs."
        head = f"{_dotted('op name', _NAME_COLUMNS)} {_dotted('installed', 11)} compatible"
        lines = [_LINE, "Ballast op report", _LINE, note, _LINE, head, _LINE]
        for op in self.ops:
            installed = _dotted(_OKAY if op.installed else _NO, 11)
            works = _OKAY if op.compatible else _NO
            lines.append(f"{_dotted(op.name, _NAME_COLUMNS)} {installed} {works}")
        whys = [f" [WARNING]  {op.name}: {op.why}" for op in self.ops if op.why]
        return lines + (whys if reasons else [])


def _dotted(text: str, columns: int) -> str:
    return text + " " + "." * max(2, columns - len(text) - 1)


def collect() -> Report:
    """Looks at this machine and this installation; never raises for missing parts."""
    return Report(machine.ops(), machine.facts())


def parser() -> argparse.ArgumentParser:
    """What ballast-report takes; the two --hide options are ds_report's."""
    p = argparse.ArgumentParser(
        prog="ballast-report",
        allow_abbrev=False,
        description="Says what of Ballast works on this machine, and why something does not.",
        epilog="Exit code: 0 if all that Ballast has works here, 1 if something does not.",
    )
    p.add_argument("--hide_operator_status", action="store_true", help="without the table of ops")
    p.add_argument("--hide_errors_and_warnings", action="store_true", help="without the reasons")
    p.add_argument("-o", choices=("text", "json"), default="text", help="how to print it (text)")
    p.add_argument("--version", action="version", version=f"ballast-report {__version__}")
    return p


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit code."""
    options = parser().parse_args(arguments)
    report = collect()
    if options.o == "json":
        print(report.as_json())
    else:
        shown = not options.hide_operator_status
        print(report.as_text(shown, not options.hide_errors_and_warnings))
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
