"""The archives of scripts/gpu_kit.sh: their contents, and a run on another distribution.

That is a bare root of Debian 13 under bwrap: another glibc, Python 3.13, no libstdc++ and no
package of ours. This machine's Python 3.11 and the PyTorch of .venv are put there for the
rehearsal of the kit, because the package registry has none small enough for another Python.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from deploy.packages import KIT_HANG_S, OWN_SUITE, VERSION, Packages, inside, installed, run
from deploy.tools import REPO

pytestmark = [pytest.mark.slow, pytest.mark.timeout(KIT_HANG_S)]

OTHER_SUITE = "trixie"
BARE = ("python3", "bash", "coreutils", "sed", "grep", "dash", "libc-bin")
ARCHIVE_BYTES_MAX = 48 << 20
KIT, BUNDLE = "ballast-gpu-kit", f"ballast-{VERSION}-linux-x86_64"
GLIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libresolv.so.2",
         "ld-linux-x86-64.so.2"}  # fmt: skip
MODULES = {f"_{stem}.{abi}.so" for stem in ("core", "aio", "nccl")
           for abi in ("abi3", "cpython-311-x86_64-linux-gnu")}  # fmt: skip


@pytest.fixture(scope="module")
def kits(packages: Packages) -> Path:
    return packages.kits()


@pytest.fixture(scope="module")
def root(packages: Packages) -> Path:
    return packages.root("another", "extract", *BARE, suite=OTHER_SUITE)


def there(root: Path, folder: Path, *arguments: str | Path) -> list[str]:
    """The beginning of a command in the other distribution; /ballast is an unpacked archive."""
    return inside(root, "--tmpfs", "/tmp", "--ro-bind", folder, "/ballast", *arguments)


def python311() -> list[str]:
    """bwrap's arguments that put this machine's Python 3.11 there, with PyTorch."""
    site = "/usr/local/lib/python3.11/dist-packages"
    beside = ["--tmpfs", site, "--setenv", "BALLAST_PYTHON", "python3.11"]
    for path in ("/usr/bin/python3.11", "/usr/lib/python3.11"):
        beside += ["--ro-bind", path, path]
    for name, path in installed("torch", "numpy").items():
        beside += ["--ro-bind", str(path), f"{site}/{name}"]
    return beside


def objects(folder: Path) -> dict[Path, str]:
    """ELF file -> what readelf says of its dynamic section and of the versions that it needs."""
    files = [path for path in folder.rglob("*") if path.is_file()
             and path.open("rb").read(4) == b"\x7fELF"]  # fmt: skip
    return {path: run("readelf", "--wide", "-dV", path).stdout for path in files}


@pytest.mark.parametrize("name", ["kit", "bundle"])
def test_an_archive_is_within_its_bound(name: str, kits: Path):
    assert 5 << 20 < (kits / f"{name}.tar.gz").stat().st_size <= ARCHIVE_BYTES_MAX


def test_the_bundle_is_the_kit_without_its_tests(kits: Path):
    def files(name: str) -> set[str]:
        return {str(path.relative_to(kits / name)) for path in (kits / name).rglob("*")
                if path.is_file()}  # fmt: skip

    more = files(KIT) - files(BUNDLE)
    assert not files(BUNDLE) - files(KIT)
    stages = {path for path in more if path.startswith("gpu_kit/")}
    assert {f"gpu_kit/{path.name}" for path in (REPO / "tests/gpu_kit").glob("*.py")} <= stages
    assert more - stages == {
        "run.sh", "bin/device_conformance_test", "bin/copy_rate", "licences/libgtest-dev",
        "lib/libballast_cuda.so", "lib/libballast_cuda_faulty.so", "lib/libcuda_standin.so",
        "lib/nccl/libnccl.so.2"}  # fmt: skip


def test_the_client_is_whole_for_both_abis(kits: Path):
    package, sources = kits / BUNDLE / "python/ballast", REPO / "client/python/ballast"
    for source in sources.rglob("*"):
        if source.suffix in (".py", ".sh"):
            copy = package / source.relative_to(sources)
            assert copy.read_bytes() == source.read_bytes()
    assert {path.name for path in package.glob("*.so")} == {*MODULES, "libballast_cuda.so"}


def test_it_says_which_revision_it_is_of(kits: Path):
    version, revision = (kits / KIT / "VERSION").read_text().splitlines()
    assert version == f"ballast {VERSION}"
    assert re.fullmatch(r"revision ([0-9a-f]{40}(-dirty)?|unknown)", revision)


def test_all_libraries_but_glibc_are_in_it(kits: Path):
    folder = kits / KIT
    carried = {path.name for path in (folder / "lib").iterdir()}
    for path, said in objects(folder).items():
        needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", said))
        gcc = {path.name for path in (folder / "lib/gcc").iterdir()}
        assert needed <= carried | GLIBC | gcc, path
        # Names of their own: another library of the process is never taken in their place.
        assert all(re.search(r"-[0-9a-f]{8}\.so", name) for name in needed - GLIBC - gcc), path
        newest = max(map(int, re.findall(r"GLIBC_2\.(\d+)", said)), default=0)
        assert newest <= 36, f"{path} needs glibc 2.{newest}"


def test_no_place_of_the_build_is_searched(kits: Path):
    for path, said in objects(kits / KIT).items():
        if path.parent.name != "gcc":
            (searched,) = re.findall(r"\(RPATH\).*\[(.+)\]", said)
            assert all(part.startswith("$ORIGIN") for part in searched.split(":")), path
        assert "(RUNPATH)" not in said, path


def test_each_library_brings_its_licence(kits: Path):
    there = {path.name for path in (kits / BUNDLE / "licences").iterdir()}
    assert {"libgrpc29", "libprotobuf32", "librocksdb7.8", "libssl3", "libstdc++6", "nanobind",
            "common-Apache-2.0"} <= there  # fmt: skip


def test_the_other_distribution_has_nothing_of_ours(root: Path):
    assert OTHER_SUITE != OWN_SUITE
    assert f"VERSION_CODENAME={OTHER_SUITE}\n" in (root / "etc/os-release").read_text()
    names = [path.name for path in root.rglob("lib*.so*")]
    assert not [name for name in names if re.match(r"lib(stdc|grpc|proto|absl|rocksdb|aio)", name)]


def test_the_programs_start_there(kits: Path, root: Path):
    for program in ("ballastd", "ballastctl"):
        said = run(*there(root, kits / BUNDLE), f"/ballast/bin/{program}", "--version").stdout
        assert said == f"{program} {VERSION}\n"


def test_without_its_libraries_a_program_does_not_start_there(kits: Path, root: Path):
    """So the test above can fail: nothing of that distribution is in their place."""
    bare = there(root, kits / BUNDLE, "--tmpfs", "/ballast/lib")
    done = subprocess.run([*bare, "/ballast/bin/ballastd", "--version"], text=True, check=False,
                          capture_output=True, timeout=60)  # fmt: skip
    assert done.returncode == 127
    assert "cannot open shared object file" in done.stderr


def test_the_client_loads_there_through_the_stable_abi(kits: Path, root: Path):
    said = run(*there(root, kits / BUNDLE), "/ballast/bin/ballast-python", "-c",
               "import sys, ballast._aio, ballast._core, ballast._nccl as n\n"
               "print(*sys.version_info[:2], n.__file__)").stdout  # fmt: skip
    assert said == "3 13 /ballast/python/ballast/_nccl.abi3.so\n"


def test_a_server_of_ballast_run_answers_ballastctl_there(kits: Path, root: Path, tmp_path: Path):
    (tmp_path / "asks.py").write_text(
        "import os, subprocess\n"
        "subprocess.run(['ballastctl', 'status', '--endpoint', os.environ['BALLAST_ENDPOINTS']],"
        " check=True)\n")
    said = run(*there(root, kits / BUNDLE, "--ro-bind", tmp_path, "/script"),
               "/ballast/bin/ballast-run", "--no-prefix", "/script/asks.py").stdout
    assert re.search(rf"^0 +127\.0\.0\.1:\d+ .* {re.escape(VERSION)} ", said, re.M)


def test_the_kit_rehearses_there(kits: Path, root: Path, tmp_path: Path):
    """The short form: two of its stages, on the stand-in for CUDA."""
    run(*there(root, kits / KIT, *python311(), "--bind", tmp_path, "/report"), "/ballast/run.sh",
        "--cpu", "--minutes", "4", "--out", "/report", "--stage", "facts", "--stage", "bits")
    report = json.loads((tmp_path / "report.json").read_text())
    states = [check["state"] for check in report["checks"]]
    assert states.count("passed") > 10
    assert "failed" not in states
