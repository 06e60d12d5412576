"""Finds the extension module that speaks to the servers.

Comes from: ballast.session. Goes to: ballast._core (built by CMake), or the module a test sets with
`use()`. The extension is loaded at the first attach, so that the package can be imported, and
configuration be checked, on a machine where it is not built.
"""

from __future__ import annotations

import importlib
from typing import Any

_module: Any = None


def core() -> Any:
    """The extension module. ImportError with the command that builds it when it is missing."""
    global _module
    if _module is None:
        try:
            _module = importlib.import_module("ballast._core")
        except ImportError as error:
            raise ImportError(
                "ballast._core is not built for this Python "
                f"({error}). Run scripts/setup.sh and then scripts/quickstart.sh or "
                "`cmake --build build/release --target _core` in the Ballast checkout."
            ) from error
    return _module


def use(module: Any) -> None:
    """Replaces the extension by `module`; None restores it. For tests."""
    global _module
    _module = module
