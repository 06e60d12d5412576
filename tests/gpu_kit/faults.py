"""The CUDA part with a planted fault (faulty_table.cc) in the place of the real one.

Comes from: the stages. Goes to: ballast.torch.gpu, and the environment of the device tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from ballast.torch import gpu


def library() -> Path:
    """The shared object with the faults, in the folder BALLAST_KIT_LIB."""
    return Path(os.environ.get("BALLAST_KIT_LIB", ".")) / "libballast_cuda_faulty.so"


def built() -> bool:
    return library().is_file()


def plant(fault: str = "") -> None:
    """Jobs of this process take the CUDA part with this fault, over the one of its place.

    Before the first of them attaches. "": with none until arm().
    """
    os.environ["BALLAST_FAULTY_OVER"] = str(gpu.LIBRARY)
    os.environ["BALLAST_FAULT"] = fault
    gpu.LIBRARY = library()


def arm(fault: str) -> None:
    """The fault of plant() from now on; counts start over."""
    ctypes.CDLL(str(library())).ballast_faulty_arm(fault.encode())


@contextlib.contextmanager
def planted(fault: str) -> Iterator[None]:
    """Jobs that attach inside have the fault."""
    whole = gpu.LIBRARY
    plant()
    arm(fault)
    try:
        yield
    finally:
        arm("")
        gpu.LIBRARY = whole


def environment(folder: Path, cpu: bool, fault: str) -> dict[str, str]:
    """Variables with which a device test opens the CUDA part with this fault. Makes a folder."""
    if cpu:
        return {
            "BALLAST_FAULTY_OVER": os.environ["BALLAST_KIT_STANDIN"],
            "BALLAST_KIT_STANDIN": str(library()), "BALLAST_FAULT": fault,
        }  # fmt: skip
    place = folder / "faulty"
    place.mkdir(exist_ok=True)
    link = place / "libballast_cuda.so"
    if not link.exists():
        link.symlink_to(library().resolve())
    over = Path(os.environ["BALLAST_KIT_LIB"]).resolve() / "libballast_cuda.so"
    return {
        "BALLAST_FAULTY_OVER": str(over), "BALLAST_KIT_LIB": str(place), "BALLAST_FAULT": fault,
    }  # fmt: skip
