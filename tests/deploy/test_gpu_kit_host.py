"""What run.sh of the GPU kit says of a host that lacks something: one line, exit code 2.

The kit is the unpacked archive. The host is made of fake programs on PATH and of a fake torch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.packages import KIT_HANG_S, Packages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(KIT_HANG_S)]

# What run.sh and environment.sh call of a system. No driver and no compiler is among them.
SYSTEM = ("bash", "dirname", "df", "getconf", "head", "sed", "sort", "tail", "tr")
SMI = "| NVIDIA-SMI 580.65.06    Driver Version: 580.65.06    CUDA Version: {} |"
TORCH = """
__version__ = "{version}"
uint8 = None
class version:
    cuda = {cuda!r}
class cuda:
    is_available = lambda: {available}
    get_device_capability = lambda ordinal: {capability}
    get_device_name = lambda ordinal: "Tesla T4"
def empty(*shape, dtype, pin_memory):
    {pinning}
"""
GOOD = {"version": "2.11.0+cu130", "cuda": "13.0", "available": True, "capability": (9, 0),
        "pinning": "return None"}  # fmt: skip


class Host:
    """A PATH and a PYTHONPATH of one test."""

    def __init__(self, folder: Path, kit: Path):
        self._folder, self._kit = folder, kit
        self._bin = folder / "bin"
        self._bin.mkdir()
        for name in SYSTEM:
            (self._bin / name).symlink_to(shutil.which(name))
        self.variables = {"BALLAST_PYTHON": sys.executable, "CUDA_HOME": "/nonexistent"}

    def program(self, name: str, text: str) -> Path:
        """Puts a shell script on PATH, in the place of the system's."""
        path = self._bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
        return path

    def torch(self, **differences: object) -> None:
        """A torch with everything that the kit needs, except for the differences."""
        package = self._folder / "site/torch"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(TORCH.format(**{**GOOD, **differences}))
        self.variables["PYTHONPATH"] = str(package.parent)

    def driver(self, cuda: str = "13.0") -> None:
        self.program("nvidia-smi", f"echo '{SMI.format(cuda)}'")

    def run(self, *flags: str, before: str = "") -> subprocess.CompletedProcess[str]:
        """run.sh with these flags; before: a command of its shell."""
        script = f"{before}\nexec {self._kit}/run.sh --out {self._folder}/out \"$@\""
        return subprocess.run(
            ["/bin/bash", "-c", script, "bash", *flags], text=True, capture_output=True,
            check=False, timeout=120, cwd=self._folder,
            env={"PATH": str(self._bin), "HOME": os.environ.get("HOME", "/"), **self.variables})

    def refused(self, *flags: str) -> str:
        """The one line that it ends with."""
        done = self.run(*flags)
        assert done.returncode == 2, done.stdout + done.stderr
        assert done.stdout == ""
        assert done.stderr.startswith("run.sh: ") and done.stderr.count("\n") == 1, done.stderr
        return done.stderr.removeprefix("run.sh: ").rstrip("\n")


@pytest.fixture
def host(packages: Packages, tmp_path: Path) -> Host:
    return Host(tmp_path, packages.kits() / "ballast-gpu-kit")


def test_no_python_that_is_new_enough(host: Host):
    host.variables["BALLAST_PYTHON"] = str(host.program("python3", "exit 1"))
    assert host.refused().endswith("/python3 of version 3.11 or newer on PATH")


def test_no_torch(host: Host):
    host.variables["BALLAST_PYTHON"] = str(
        host.program("python3", f'exec {sys.executable} -S "$@"'))
    assert "/python3 has no torch; install 2.6 or newer" in host.refused()


def test_a_torch_that_is_too_old(host: Host):
    host.torch(version="2.5.1+cu124")
    assert host.refused("--cpu") == "torch is 2.5.1+cu124; 2.6 or newer is needed"


def test_a_torch_without_cuda(host: Host):
    host.driver()
    host.torch(cuda=None, version="2.13.0+cpu")
    said = host.refused()
    assert said.startswith("torch 2.13.0+cpu is built without CUDA; install one with CUDA, or")


def test_a_torch_that_sees_no_gpu(host: Host):
    host.driver()
    host.torch(available=False)
    assert host.refused().startswith("torch 2.11.0+cu130 sees no GPU, though nvidia-smi does")


def test_a_gpu_that_is_too_old(host: Host):
    host.driver()
    host.torch(capability=(7, 5))
    assert host.refused() == "GPU 0 is a Tesla T4; architecture 8.0 or newer is needed"


def test_no_driver(host: Host):
    assert host.refused().startswith("no nvidia-smi on PATH, so no NVIDIA driver; rehearse")


def test_a_driver_that_does_not_work(host: Host):
    host.program("nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
    assert host.refused() == "nvidia-smi ends with an error: NVIDIA-SMI has failed"


@pytest.mark.parametrize("cuda", ["12.9", "9.2"])
def test_a_driver_that_is_too_old(cuda: str, host: Host):
    host.driver(cuda)
    assert host.refused().startswith(f"the NVIDIA driver is for CUDA {cuda}; one for 13.0 or newer")


def test_memory_that_cannot_be_pinned(host: Host):
    host.driver()
    host.torch(pinning="raise RuntimeError('CUDA error: out of memory')")
    said = host.refused()
    assert said.startswith("256 MiB of host memory cannot be pinned (ulimit -l: ")
    assert said.endswith(" bytes): CUDA error: out of memory")


def test_no_space_for_the_report(host: Host):
    host.program("df", "echo header; echo / 9 4 5 44% /")
    said = host.refused("--cpu")
    assert said.startswith("out folder /") and "has 5 MiB of free space; 64 MiB are needed" in said


def test_no_space_for_the_servers(host: Host):
    host.program("df", "echo header; [[ $2 == /tmp ]] && echo / 9 4 5 9% / || echo / 9 4 99 9% /")
    said = host.refused("--cpu", "--work", "/tmp")
    assert said.startswith("work folder /tmp has 5 MiB of free space; 1024 MiB are needed")


def test_an_out_folder_that_is_none(host: Host, tmp_path: Path):
    (tmp_path / "file").touch()
    said = host.refused("--cpu", "--out", "file/out")
    assert said == "out folder file/out cannot be written (another one: --out)"


def test_a_glibc_that_is_too_old(host: Host):
    host.program("getconf", "echo glibc 2.31")
    assert host.refused("--cpu") == "glibc is 2.31; 2.36 or newer is needed"


def test_a_client_that_does_not_load(host: Host, tmp_path: Path):
    (tmp_path / "site/ballast").mkdir(parents=True)
    host.variables["BALLAST_PYTHON"] = str(host.program(
        "python3", f'[[ $2 != *ballast._core ]] || {{ echo "ImportError: x" >&2; exit 1; }}\n'
                   f'exec {sys.executable} "$@"'))
    assert host.refused("--cpu").endswith("/python3 does not load the client: ImportError: x")


def test_tools_that_are_missing_leave_their_stages_out(host: Host):
    """And a small `ulimit -l` is said, and no reason to end."""
    done = host.run("--cpu", "--minutes", "1", "--stage", "facts", before="ulimit -l 64")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.splitlines() == [
        "run.sh: no nvcc on PATH; what needs it is left out",
        "run.sh: no compute-sanitizer on PATH; what needs it is left out",
        "run.sh: ulimit -l is 64 KiB; pinned memory is not bound by it, the servers lock less"]
    assert "the client's extension module" in done.stdout


def test_a_stage_that_is_none_is_refused(host: Host):
    done = host.run("--cpu", "--stage", "lunch")
    assert done.returncode == 2
    assert "invalid choice: 'lunch'" in done.stderr
