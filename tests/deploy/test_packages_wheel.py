"""The wheels of the Python client: their metadata, and trainers on another distribution.

That is a minimal Debian 13 under bwrap without a compiler: Python 3.13 with Debian's own PyTorch,
grpcio and protobuf, whose shared libraries have the sonames that ours had. This machine's Python
3.11 is put there, too, with the PyTorch, grpcio and protobuf of this tree's .venv. In each venv is
nothing but pip and the wheel that pip has chosen.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from deploy.hardened import missing
from deploy.packages import KIT_HANG_S, VERSION, Packages, inside, installed, program, run
from deploy.server import ON_LOOPBACK
from deploy.tools import REPO

pytestmark = [pytest.mark.slow, pytest.mark.timeout(KIT_HANG_S)]

HERE = Path(__file__).parent
_DEBIAN = ("base-files", "python3", "python3-pip-whl", "python3-torch", "python3-grpcio",
           "python3-protobuf")
# pip looks there as it begins; a root without scripts of packages has none.
_AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
# What update-alternatives would link from the folder above.
_BLAS = ":".join(f"/usr/lib/x86_64-linux-gnu/{name}" for name in ("blas", "lapack"))
# Python and ABI of a wheel -> the Python that tries it.
PYTHONS = {"cp311-cp311": "3.11", "cp312-abi3": "3.13"}


@pytest.fixture(scope="module")
def wheels(packages: Packages) -> Path:
    return packages.wheels()


@pytest.fixture(scope="module", params=PYTHONS)
def wheel(request, wheels: Path) -> Path:
    (found,) = wheels.glob(f"*-{request.param}-*.whl")
    return found


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as whole:
        return whole.namelist()


@dataclasses.dataclass(frozen=True)
class Host:
    """command: the beginning of a command there; venv: /venv as this machine reaches it; tags: of
    the wheel for its Python; others: the folder with torch and grpcio."""

    command: list[str]
    venv: Path
    python: str
    tags: str
    others: str


@pytest.fixture(scope="module", params=PYTHONS)
def host(request, packages: Packages) -> Host:
    """With the venv /venv, for which pip has chosen between the wheels."""
    python, others = PYTHONS[request.param], "/usr/lib/python3/dist-packages"
    own = ["--ro-bind", _AUTHORITIES, _AUTHORITIES]
    root = packages.root("torch", "extract", *_DEBIAN, suite="trixie")
    if python != "3.13":
        others = "/packages"
        own += ["--tmpfs", "/packages"]
        for path in (f"/usr/bin/python{python}", f"/usr/lib/python{python}"):
            own += ["--ro-bind", path, path]
        for name, path in installed("torch", "grpcio", "protobuf").items():
            own += ["--ro-bind", str(path), f"/packages/{name}"]
    there = inside(root, "--share-net", "--tmpfs", "/tmp", "--ro-bind", HERE, "/tests", *own)
    venv = packages.venv(root, there, f"python{python}")
    return Host([*there, "--ro-bind", str(venv), "/venv"], venv, python, request.param, others)


def test_the_wheels_are_for_what_they_require(wheels: Path):
    """Each Python that Requires-Python allows has one; the newest ones have the stable ABI's."""
    names = sorted(path.name for path in wheels.glob("*.whl"))
    assert names == [f"ballast-{VERSION}-{tags}-manylinux_2_35_x86_64.whl" for tags in PYTHONS]
    for path in wheels.glob("*.whl"):
        with zipfile.ZipFile(path) as whole:
            said = whole.read(f"ballast-{VERSION}.dist-info/METADATA").decode()
            tag = whole.read(f"ballast-{VERSION}.dist-info/WHEEL").decode()
        assert re.search(r"^Requires-Python: >=3\.11$", said, re.M)
        assert re.search(rf"^Tag: {path.stem.split('-', 2)[2]}$", tag, re.M)


def test_twine_finds_no_fault(wheel: Path):
    run(program("twine"), "check", "--strict", wheel)


def test_it_needs_no_newer_system_than_its_name_says(wheel: Path, names: list[str],
                                                     tmp_path: Path):
    """manylinux_2_35: glibc 2.35, and the libstdc++ of that year, as auditwheel's policy has it."""
    with zipfile.ZipFile(wheel) as whole:
        whole.extractall(tmp_path)
    said = run("readelf", "--wide", "-V", *(tmp_path / name for name in names if ".so" in name))
    glibc = max(map(int, re.findall(r"GLIBC_2\.(\d+)", said.stdout)))
    libstdcxx = max(map(int, re.findall(r"GLIBCXX_3\.4\.(\d+)", said.stdout)))
    assert 17 <= glibc <= 35 and 20 <= libstdcxx <= 30


def test_its_modules_have_the_flags_of_the_page_on_security(wheel: Path, names: list[str],
                                                            tmp_path: Path):
    modules = [name for name in names if re.fullmatch(r"ballast/[^/]*\.so", name)]
    with zipfile.ZipFile(wheel) as whole:
        whole.extractall(tmp_path, modules)
    # These have no array whose size the compiler knows, and the last no container.
    lacks = {"ballast/_nccl": {"FORTIFY"},
             "ballast/libballast_cuda": {"FORTIFY", "checks of libstdc++"}}
    assert len(modules) == 4
    for name in modules:
        assert missing(tmp_path / name) <= lacks.get(name.partition(".")[0], set()), name


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


def test_the_modules_are_for_the_tags_of_the_name(wheel: Path, names: list[str]):
    ends = {name.partition(".")[2] for name in names if re.match(r"ballast/_[^/]*\.so$", name)}
    stable = "-abi3-" in wheel.name
    assert ends == {"abi3.so" if stable else "cpython-311-x86_64-linux-gnu.so"}


def test_pip_chose_the_wheel_of_this_python(host: Host):
    said = run(*host.command, "/venv/bin/pip", "--disable-pip-version-check", "show", "--verbose",
               "--files", "ballast").stdout
    assert f"Version: {VERSION}\n" in said
    (tags,) = host.venv.glob("lib/python*/site-packages/ballast-*.dist-info/WHEEL")
    assert f"Tag: {host.tags}-manylinux" in tags.read_text()
    run(*host.command, "/venv/bin/pip", "--disable-pip-version-check", "check")


def test_the_host_has_no_compiler(host: Host):
    said = run(*host.command, "/venv/bin/python", "-c", "import shutil\n"
               "print([shutil.which(x) for x in ('cc', 'gcc', 'cmake')])").stdout
    assert said == "[None, None, None]\n"


def test_its_programs_start(host: Host):
    said = run(*host.command, "/venv/bin/ballast-run", "--version").stdout
    assert said == f"ballast-run {VERSION}\n"


# test_import_order.py has the other order for this machine's Python.
@pytest.mark.parametrize(("host", "order"), [
    ("cp311-cp311", "before"), ("cp312-abi3", "before"), ("cp312-abi3", "after")],
    indirect=["host"])
def test_it_trains_next_to_grpcio_and_protobuf(order: str, host: Host, start_server):
    """With torch's bits, and with no shared library of ours from anywhere but the wheel."""
    server = start_server(*ON_LOOPBACK, "--dev")
    server.wait_until_serving()
    said = run(*host.command, "--setenv", "BALLAST_ENDPOINTS", server.address,
               "--setenv", "BALLAST_JOB", "beside", "--setenv", "BALLAST_DURABILITY", "none",
               "--setenv", "ATEN_CPU_CAPABILITY", "avx2", "--setenv", "PYTHONPATH", host.others,
               "--setenv", "LD_LIBRARY_PATH", _BLAS, "/venv/bin/python",
               "/tests/beside_grpc.py", order).stdout
    assert f"version {VERSION}\n" in said
    loaded = re.findall(r"^loaded (\S+)$", said, re.M)
    ours = [path for path in loaded if "/ballast.libs/" in path]
    assert any("libgrpc-" in path for path in ours) and any("libprotobuf-" in path for path in ours)
    needed = run(*host.command, "/venv/bin/python", "-c", "import ballast._core\n"
                 "print(open('/proc/self/maps').read())").stdout
    system = re.findall(r"/usr/lib/\S*/(lib\S+)$", needed, re.M)
    assert not [name for name in system if re.match(r"lib(grpc|protobuf|absl|upb|cares|re2)", name)]


def test_without_its_libraries_it_does_not_load(host: Host):
    """So the test above can fail: nothing on the host is in their place."""
    hidden = ["--tmpfs", f"/venv/lib/python{host.python}/site-packages/ballast.libs"]
    done = subprocess.run([*host.command, *hidden, "/venv/bin/python", "-c",
                           "import ballast._core"], text=True, check=False, capture_output=True,
                          timeout=60)
    assert done.returncode == 1
    assert re.search(r"ImportError: lib\S+: cannot open shared object file", done.stderr)
