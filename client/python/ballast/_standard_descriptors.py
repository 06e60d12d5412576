"""Standard input, output and error as numbers that no file or socket of ours may get.

Comes from: `import ballast`, ballast.run. Goes to: the kernel. Programs in C++ have
common/system/standard_descriptors.h. Thread safety: call it before other threads open files.
"""

from __future__ import annotations

import os
import sys


def hold() -> None:
    """Opens /dev/null in place of each closed descriptor of 0 to 2.

    Otherwise the next file or socket would get its number, and print() would write into that. Child
    processes inherit them. OSError where /dev/null cannot be opened.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The kernel gives the lowest free number.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def hold_streams() -> None:
    """As hold(); it also sets sys.stdout and sys.stderr, which Python then lacks.

    For a program of ours: without sys.stderr, print() to it writes to standard output.
    """
    hold()
    sys.stdout = sys.stdout or open(1, "w", closefd=False)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)
