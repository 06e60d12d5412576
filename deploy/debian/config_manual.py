"""The manual page ballastd.yaml(5), out of the reference of the configuration.

Comes from: build.sh, with docs/config.md on stdin, which a test compares with the server's own
table. Goes to: stdout, as troff; the arguments are the day and the version of the page.
"""

from __future__ import annotations

import re
import sys

COLUMNS = ("Field", "Default", "Range", "Variable", "Meaning")
TABLE = f"| {' | '.join(COLUMNS)} |"


def roff(text: str) -> str:
    """A line of Markdown: code is bold, and nothing else acts."""
    parts = text.replace("\\", r"\e").replace("-", r"\-").split("`")
    whole = "".join(rf"\fB{part}\fR" if i % 2 else part for i, part in enumerate(parts))
    return rf"\&{whole}" if whole.startswith((".", "'")) else whole


def field(row: str) -> list[str]:
    """A row of a table: name and meaning, then the facts about its values."""
    cells = dict(zip(COLUMNS, re.split(r" *\| *", row.strip("| ")), strict=True))
    lines = [".TP", roff(cells["Field"]), roff(cells["Meaning"])]
    for column in ("Default", "Range", "Variable"):
        if cells[column]:
            lines += [".br", f"{column}: {roff(cells[column])}"]
    return lines


def page(reference: str, day: str, version: str) -> list[str]:
    lines = [f'.TH BALLASTD.YAML 5 "{day}" "Ballast {version}" "Ballast"', ".nh", ".SH NAME",
             r"ballastd.yaml \- configuration of a state server of Ballast", ".SH DESCRIPTION"]
    for line in reference.splitlines():
        if line.startswith("## "):
            lines += [f'.SH "{roff(line[3:].upper())}"']
        elif line.startswith("| `"):
            lines += field(line)
        elif line and line != TABLE and not line.startswith(("# ", "<!--", "|---")):
            lines += [".PP", roff(line)]
    return lines + [".SH FILES", ".I /etc/ballast/ballastd.yaml", ".SH SEE ALSO",
                    ".BR ballastd (8),", ".BR ballastctl (1)"]


if __name__ == "__main__":
    print("\n".join(page(sys.stdin.read(), *sys.argv[1:])))
