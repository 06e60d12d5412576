"""A folder with direct I/O, and tensors of random bytes, for the tests of ballast.ops.aio."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def folder():
    """An empty folder below build, because a temporary one may be in memory: no direct I/O."""
    Path("build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir="build", prefix="aio_test_") as name:
        yield Path(name).resolve()
