"""Runs a program under a list of allowed system calls; any other one kills it with SIGSYS.

Comes from: test_systemd.py, as `python under_filter.py "open read ..." PROGRAM ARGUMENT...`.
Goes to: libseccomp, which systemd uses for SystemCallFilter= too.
"""

from __future__ import annotations

import ctypes
import os
import sys

_KILL_PROCESS = 0x80000000
_ALLOW = 0x7FFF0000
# A name that libseccomp knows and this architecture does not have.
_UNKNOWN = -1


def allow_only(names: list[str]) -> None:
    """From now on this process may call `names` only, and so may the program it becomes."""
    seccomp = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    seccomp.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(seccomp.seccomp_init(ctypes.c_uint32(_KILL_PROCESS)))
    for name in names:
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number != _UNKNOWN:
            seccomp.seccomp_rule_add(context, ctypes.c_uint32(_ALLOW), number, 0)
    if seccomp.seccomp_load(context) != 0:
        sys.exit("the filter cannot be loaded")


if __name__ == "__main__":
    allow_only(sys.argv[1].split())
    os.execv(sys.argv[2], sys.argv[2:])
