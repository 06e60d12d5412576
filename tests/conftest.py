"""What all Python tests share: import paths, torch's settings, the names of parameters.

Comes from: pytest. Goes to: python/ and e2e/, each with fixtures of its own.
"""

from __future__ import annotations

import enum
import os
import re
import sys
from pathlib import Path

# Before torch is imported: the bit-for-bit comparisons are defined for this choice, which is the
# same on machines with and without AVX-512.
os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")
# Processes of tests share few processors: an idle thread of OpenMP lets others run instead of
# spinning.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "client" / "python"), str(HERE)]

import torch  # noqa: E402

torch.set_num_threads(1)

ID_CHARACTERS_MAX = 40


def pytest_make_parametrize_id(config, val, argname):
    """A parameter's part of a test's name: its text, in the characters of a word."""
    if isinstance(val, enum.Enum):
        said = val.name
    elif isinstance(val, torch.dtype):
        said = str(val).removeprefix("torch.")
    elif isinstance(val, dict):
        said = ",".join(f"{key}={value}" for key, value in val.items()) or "{}"
    elif isinstance(val, (tuple, list)):
        said = ",".join(map(str, val)) or "[]"
    elif isinstance(val, (str, bytes)):
        said = val if isinstance(val, str) else val.decode("ascii", "replace")
    else:
        return None  # pytest's own: numbers, classes, functions
    return re.sub(r"[^A-Za-z0-9_.,=+{}\[\]-]+", "_", said)[:ID_CHARACTERS_MAX] or "empty"
