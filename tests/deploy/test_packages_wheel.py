"""The wheel of the Python client: what it says of itself, and a trainer on a host without tools.

The host is a minimal Debian under bwrap: Python and what PyTorch needs of the system, no compiler
and no package of gRPC. The PyTorch, grpcio and protobuf of this tree's .venv are seen there; in the
venv itself is nothing but pip and the wheel.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from deploy.packages import VERSION, Packages, inside, installed, program, run
from deploy.server import ON_LOOPBACK
from deploy.tools import REPO

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
# libstdc++ is what the wheels of PyTorch take from their host, too.
_DEBIAN = ("python3", "python3-venv", "libstdc++6")


@pytest.fixture(scope="module")
def wheel(packages: Packages) -> Path:
    return packages.wheel()


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as whole:
        return whole.namelist()


@pytest.fixture(scope="module")
def host(packages: Packages, wheel: Path) -> list[str]:
    """The beginning of a command on a host with the wheel in the venv /venv."""
    root = packages.root("python", "extract", *_DEBIAN)
    beside = ["--tmpfs", "/packages"]
    for name, path in installed("torch", "grpcio", "protobuf").items():
        beside += ["--ro-bind", str(path), f"/packages/{name}"]
    venv = packages.venv(root, wheel)
    return inside(root, "--share-net", "--ro-bind", HERE, "/tests", "--ro-bind", venv, "/venv",
                  *beside, "--setenv", "PYTHONPATH", "/packages")


def test_its_tags_are_of_this_python(wheel: Path):
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert re.fullmatch(rf"ballast-{re.escape(VERSION)}-{tag}-{tag}-manylinux_2_\d+_\w+\.whl",
                        wheel.name)


def test_twine_finds_no_fault(wheel: Path):
    run(program("twine"), "check", "--strict", wheel)


def test_auditwheel_finds_what_the_name_says(wheel: Path):
    said = run(program("auditwheel"), "show", wheel).stdout
    platform = wheel.stem.split("-")[-1]
    assert f'the following platform tag: "{platform}"' in " ".join(said.split())


def test_it_has_the_package_and_the_modules_of_one_build(names: list[str]):
    sources = {str(path.relative_to(REPO / "client/python"))
               for path in (REPO / "client/python/ballast").rglob("*.py")}
    assert sources <= set(names)
    modules = [name for name in names if re.fullmatch(r"ballast/[^/]*\.so", name)]
    stems = sorted(name.partition(".")[0] for name in modules)
    assert stems == ["ballast/_aio", "ballast/_core", "ballast/_nccl", "ballast/libballast_cuda"]


def test_each_library_brings_its_licence(wheel: Path, names: list[str]):
    info = f"ballast-{VERSION}.dist-info"
    with zipfile.ZipFile(wheel) as whole:
        parts = json.loads(whole.read(f"{info}/sboms/auditwheel.cdx.json"))["components"]
        assert whole.read(f"{info}/licenses/LICENSE") == (REPO / "LICENSE").read_bytes()
    debs = {part["name"] for part in parts if part["purl"].startswith("pkg:deb/")}
    assert {"libgrpc29", "libprotobuf32", "libssl3"} <= debs
    assert {f"{info}/licenses/libraries/{deb}" for deb in debs} <= set(names)
    # Each library is named as part of a package, by a checksum of its own.
    libraries = [name for name in names if re.search(r"ballast\.libs/.+\.so", name)]
    assert len(libraries) == sum(part["purl"].startswith("pkg:deb/") for part in parts)


def test_the_host_has_no_compiler_and_no_grpc(host: list[str]):
    said = run(*host, "/venv/bin/python", "-c", "import shutil, pathlib\n"
               "print([shutil.which(x) for x in ('cc', 'gcc', 'cmake', 'apt')])\n"
               "print(sorted(map(str, pathlib.Path('/usr/lib').rglob('libgrpc*'))))").stdout
    assert said == "[None, None, None, None]\n[]\n"


def test_pip_lists_the_version(host: list[str]):
    said = run(*host, "/venv/bin/pip", "--disable-pip-version-check", "list").stdout
    assert re.search(rf"^ballast +{re.escape(VERSION)}$", said, re.M)
    run(*host, "/venv/bin/pip", "--disable-pip-version-check", "check")


def test_its_programs_start(host: list[str]):
    assert run(*host, "/venv/bin/ballast-run", "--version").stdout == f"ballast-run {VERSION}\n"


@pytest.mark.parametrize("order", ["before", "after"])
def test_it_trains_beside_grpcio_and_protobuf(order: str, host: list[str], start_server):
    """With torch's bits, and with no shared library of ours from anywhere but the wheel."""
    server = start_server(*ON_LOOPBACK, "--dev")
    server.wait_until_serving()
    said = run(*host, "--setenv", "BALLAST_ENDPOINTS", server.address, "--setenv", "BALLAST_JOB",
               f"beside-{order}", "--setenv", "BALLAST_DURABILITY", "none",
               "--setenv", "ATEN_CPU_CAPABILITY", "avx2",
               "/venv/bin/python", "/tests/beside_grpc.py", order).stdout
    assert f"version {VERSION}\n" in said
    loaded = re.findall(r"^loaded (\S+)$", said, re.M)
    ours = [path for path in loaded if "/ballast.libs/" in path]
    assert any("libgrpc-" in path for path in ours) and any("libprotobuf-" in path for path in ours)
    system = [Path(path).name for path in loaded if not path.startswith(("/venv/", "/packages/"))]
    assert not [name for name in system if re.match(r"lib(grpc|protobuf|absl|upb|cares|re2)", name)]


def test_without_its_libraries_it_does_not_load(host: list[str]):
    """So the test above can fail: nothing on the host is in their place."""
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    hidden = ["--tmpfs", f"/venv/lib/{python}/site-packages/ballast.libs"]
    done = subprocess.run([*host, *hidden, "/venv/bin/python", "-c", "import ballast._core"],
                          text=True, check=False, capture_output=True, timeout=60)
    assert done.returncode == 1
    assert re.search(r"ImportError: lib\S+: cannot open shared object file", done.stderr)
