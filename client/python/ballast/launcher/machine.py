"""Facts about this machine and installation: the extension, ballastd, libaio, instruction sets.

Comes from: ballast.report. Goes to: the kernel's files, libaio, `ballastd --version`. Thread
safety: pure functions of the machine.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from ballast import __version__
from ballast.launcher.servers import LaunchError, find_ballastd

CPUINFO = Path("/proc/cpuinfo")
AIO = Path("/proc/sys/fs")
SHARED_MEMORY = Path("/dev/shm")
_LIBAIO = "libaio.so.1"
# What server/simd/isa.cc asks of the processor.
_AVX2 = frozenset("avx avx2 fma f16c".split())
_AVX512 = frozenset("avx512f avx512bw avx512dq avx512vl".split())
_TIMEOUT_S = 30
_BUILD = "build it with scripts/setup.sh, or the target ballast_python"


@dataclasses.dataclass(frozen=True)
class Op:
    """installed: it is built and loads. compatible: this machine can run it. why: the missing part
    and the next step, or "". ours: Ballast has it."""

    name: str
    installed: bool
    compatible: bool
    why: str = ""
    ours: bool = True


def ops() -> list[Op]:
    """The client, the server, and DeepSpeed's two ops for files."""
    return [_core(), _server(), _async_io(), _gds()]


def facts() -> list[tuple[str, str]]:
    """(name, value) of versions, paths and limits."""
    used, most = (_text(AIO / name) for name in ("aio-nr", "aio-max-nr"))
    return [
        ("python version", platform.python_version()),
        *_package("torch"),
        ("ballast install path", _folder("ballast")),
        ("ballast version", __version__),
        ("ballastd", _server_version()),
        *((f"{name} version", _version(name)) for name in ("transformers", "accelerate")),
        ("libaio", _libaio_file()),
        ("kernel", platform.release()),
        ("kernel's aio requests", f"{used} of {most} (fs.aio-max-nr)"),
        ("instruction set", f"{instruction_set()} ({platform.machine()})"),
        ("memlock limit", f"{_memlock()} (ulimit -l)"),
        ("shared memory (/dev/shm) size", _shared_memory()),
    ]


def instruction_set(cpuinfo: Path = CPUINFO) -> str:
    """The widest kernels that ballastd takes here: scalar, avx2 or avx512."""
    for line in _text(cpuinfo).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            flags = frozenset(value.split())
            if not flags >= _AVX2:
                return "scalar"
            return "avx512" if flags >= _AVX512 else "avx2"
    return "scalar"


def _core() -> Op:
    return _extension("core", "ballast._core", "")


def _server() -> Op:
    try:
        path = find_ballastd(None, os.environ)
    except LaunchError as error:
        return Op("ballastd", False, True, str(error))
    said = _output(path)
    if said:
        return Op("ballastd", True, True)
    return Op("ballastd", True, False, f"{path} --version fails; build it on this machine")


def _async_io() -> Op:
    return _extension("async_io", "ballast._aio", _why_no_aio())


def _gds() -> Op:
    why = (
        "Ballast has no GPUDirect Storage; read with async_io into CPU tensors, and move them with "
        "tensor.to(device)"
    )
    return Op("gds", False, False, why, ours=False)


def _extension(name: str, module: str, machine_lacks: str) -> Op:
    """machine_lacks: the op's requirements that this machine lacks, or ""."""
    if importlib.util.find_spec(module) is None:
        missing = f"{module} is not in this installation; {_BUILD}"
        return Op(name, False, not machine_lacks, machine_lacks or missing)
    try:
        importlib.import_module(module)
    except ImportError as error:
        return Op(name, False, False, machine_lacks or f"{error}; {_BUILD}")
    return Op(name, True, not machine_lacks, machine_lacks)


def _why_no_aio() -> str:
    try:
        library = ctypes.CDLL(_LIBAIO, use_errno=True)
    except OSError:
        return f"there is no {_LIBAIO}; install the package libaio1"
    context = ctypes.c_void_p()
    result = library.io_setup(1, ctypes.byref(context))
    if result == 0:
        library.io_destroy(context)
        return ""
    reason = os.strerror(-result)
    return (
        f"the kernel refuses asynchronous requests (io_setup: {reason}); raise fs.aio-max-nr, or "
        "allow io_setup in the container"
    )


def _server_version() -> str:
    try:
        path = find_ballastd(None, os.environ)
    except LaunchError:
        return "not found"
    return f"{_output(path) or 'does not start'} [{path}]"


@functools.cache
def _output(program: Path) -> str:
    """What `program --version` says in its first line; "" where it does not end with 0.

    Each program runs once.
    """
    try:
        done = subprocess.run(
            [str(program), "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.partition("\n")[0] if done.returncode == 0 else ""


def _package(name: str) -> list[tuple[str, str]]:
    return [(f"{name} install path", _folder(name)), (f"{name} version", _version(name))]


def _folder(name: str) -> str:
    spec = importlib.util.find_spec(name)
    places = list(spec.submodule_search_locations or []) if spec else []
    return str(places) if places else "not installed"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _libaio_file(load: Callable[[str], object] = ctypes.CDLL) -> str:
    """The file of libaio, whose name has its version."""
    try:
        load(_LIBAIO)
    except OSError:
        return "not installed"
    for line in _text(Path("/proc/self/maps")).splitlines():
        if "/libaio.so" in line:
            return os.path.realpath(line.split()[-1])
    return _LIBAIO


def _memlock() -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return "unlimited" if soft == resource.RLIM_INFINITY else f"{soft / 2**20:.3g} MiB"


def _shared_memory() -> str:
    try:
        return f"{shutil.disk_usage(SHARED_MEMORY).total / 2**30:.2f} GB"
    except OSError:
        return "not there"


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return "unknown"
