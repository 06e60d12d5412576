"""Which of the flags of docs/security.md an ELF file of a package was built without.

Comes from: test_packages_*.py. Goes to: readelf of binutils, which scripts/setup.sh brings.
"""

from __future__ import annotations

import re
from pathlib import Path

from deploy.packages import run

_ENDBR64 = bytes.fromhex("f30f1efa")
# A file of ours has hundreds; by accident these bytes occur in no file so often.
_LANDING_PLACES = 20


def missing(file: Path) -> set[str]:
    """The protections that the file lacks, by the names of docs/security.md.

    Files are without names for their own functions, so this looks at their imports from the C and
    C++ libraries: without the flag, none of those functions is called.
    """
    said = run("readelf", "--wide", "--dynamic", "--program-headers", "--dyn-syms", file).stdout
    wanted = {"BIND_NOW": r"\(FLAGS(_1)?\).*\b(BIND_)?NOW\b", "RELRO": r"^\s+GNU_RELRO\b",
              "PIE": r"\(FLAGS_1\).*\bPIE\b" if "INTERP" in said else r"file type is DYN",
              "stack protector": r"UND __stack_chk_fail@", "FORTIFY": r"UND __\w+_chk@",
              "checks of libstdc++": r"UND _ZSt\d+__glibcxx_assert_fail"}
    lacks = {name for name, seen in wanted.items() if not re.search(seen, said, re.M)}
    if file.read_bytes().count(_ENDBR64) < _LANDING_PLACES:
        lacks.add("CET")
    return lacks
