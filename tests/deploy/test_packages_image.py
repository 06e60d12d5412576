"""The image that deploy/container/build.sh makes: its configuration, its files, and a run of it.

It runs as a container engine would run it: the only process tree of its namespace, with the rights
of user 65532 and no other, on a root that cannot be written to. Only /data can.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from deploy.container_run import USER, Container, entered
from deploy.packages import VERSION, Packages, build, program, run
from deploy.server import ON_LOOPBACK
from deploy.training import train

pytestmark = pytest.mark.slow

PROGRAMS = ("ballastctl", "ballastd")


@pytest.fixture(scope="module")
def folder(packages: Packages) -> Path:
    return packages.image()


@pytest.fixture(scope="module")
def layout(folder: Path) -> Path:
    return folder / f"ballast-{VERSION}.oci"


@pytest.fixture(scope="module")
def rootfs(layout: Path):
    """The unpacked files. pytest's own folders are closed to all users but one."""
    with tempfile.TemporaryDirectory(prefix="ballast-image-") as name:
        os.chmod(name, 0o755)
        bundle = Path(name) / "bundle"
        flags = [] if os.geteuid() == 0 else ["--rootless"]
        run(program("umoci"), "unpack", *flags, "--image", f"{layout}:{VERSION}", bundle)
        bundle.chmod(0o755)
        yield bundle / "rootfs"


@pytest.fixture
def data(rootfs: Path):
    """An empty directory of the image's user."""
    with tempfile.TemporaryDirectory(prefix="ballast-data-") as name:
        if os.geteuid() == 0:
            os.chown(name, USER, USER)
        yield Path(name)


@pytest.fixture
def start(rootfs: Path, data: Path):
    """start() -> a running container on the old data; killed after the test."""
    started: list[Container] = []

    def begin() -> Container:
        started.append(Container(rootfs, data))
        return started[-1]

    yield begin
    for container in started:
        container.close()


def blob(layout: Path, digest: str) -> dict:
    return json.loads((layout / "blobs" / digest.replace(":", "/")).read_text())


def manifest(layout: Path) -> dict:
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    return blob(layout, entry["digest"])


def test_the_configuration(layout: Path):
    config = blob(layout, manifest(layout)["config"]["digest"])
    assert config["os"] == "linux"
    inner = config["config"]
    labels = inner.pop("Labels")
    assert inner == {
        "User": f"{USER}:{USER}",
        "Entrypoint": ["/usr/bin/ballastd"],
        "ExposedPorts": {"7000/tcp": {}, "9000/tcp": {}},
        "StopSignal": "SIGTERM",
    }
    name = "org.opencontainers.image"
    assert labels[f"{name}.version"] == VERSION
    assert labels[f"{name}.licenses"] == "Apache-2.0"
    revision = run("git", "rev-parse", "HEAD", cwd=Path(__file__).parent).stdout.strip()
    assert labels[f"{name}.revision"].removesuffix("-dirty") == revision


def test_the_same_build_gives_the_same_digest(layout: Path, folder: Path, tmp_path: Path):
    build("image")(tmp_path)
    again = tmp_path / layout.name
    assert (again / "index.json").read_bytes() == (layout / "index.json").read_bytes()
    sbom = f"ballast-{VERSION}.spdx.json"
    assert (tmp_path / sbom).read_bytes() == (folder / sbom).read_bytes()


def test_its_programs_and_no_others(rootfs: Path):
    bins = {path.name for folder in ("bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin")
            if (rootfs / folder).is_dir() for path in (rootfs / folder).iterdir()}
    assert sorted(bins) == list(PROGRAMS)


def test_no_file_gives_rights(rootfs: Path):
    """No setuid or setgid file, none that others may write, no device."""
    for path in rootfs.rglob("*"):
        mode = path.lstat().st_mode
        if path.is_symlink():
            continue
        assert path.is_file() or path.is_dir(), path
        assert mode & 0o6000 == 0, path
        assert mode & 0o002 == 0 or path == rootfs / "tmp", path


def test_nothing_of_the_builder_is_inside(rootfs: Path):
    """Not where its packages come from, and not its name."""
    assert sorted(path.name for path in (rootfs / "etc").iterdir()) == [
        "ld.so.conf.d", "nsswitch.conf"]
    assert list((rootfs / "data").iterdir()) == list((rootfs / "tmp").iterdir()) == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_has_all_libraries(name: str, rootfs: Path):
    loader = next(path for path in rootfs.glob("lib64/ld-linux-*"))
    said = run(*entered(rootfs), f"/{loader.relative_to(rootfs)}", "--list", f"/usr/bin/{name}")
    assert "librocksdb.so" in said.stdout or name == "ballastctl"
    assert "not found" not in said.stdout
    assert run(*entered(rootfs), f"/usr/bin/{name}", "--version").stdout == f"{name} {VERSION}\n"


def test_a_library_that_lacks_is_found(rootfs: Path, tmp_path: Path):
    """So the test above can fail."""
    lib = next(rootfs.glob("usr/lib/*/libaio.so.1"))
    hidden = ["--ro-bind", "/dev/null", f"/{lib.resolve().relative_to(rootfs.resolve())}"]
    done = subprocess.run([*entered(rootfs, *hidden), "/usr/bin/ballastd", "--version"], text=True,
                          check=False, capture_output=True, timeout=60)
    assert done.returncode != 0 and "libaio.so.1" in done.stderr


def test_the_bill_of_materials_is_that_of_the_files(rootfs: Path, folder: Path):
    """Each package whose licence is in the image, with its version and the sum of its archive."""
    inside = rootfs / "usr/share/doc/ballast/sbom.spdx.json"
    assert inside.read_bytes() == (folder / f"ballast-{VERSION}.spdx.json").read_bytes()
    document = json.loads(inside.read_text())
    assert document["spdxVersion"] == "SPDX-2.3"
    parts = {part["name"]: part for part in document["packages"]}
    assert parts.pop("ballast-server")["versionInfo"] == VERSION
    assert set(parts) == {path.parent.name for path in rootfs.glob("usr/share/doc/*/copyright")}
    assert {"libc6", "libgrpc++1.51", "librocksdb7.8"} <= set(parts)
    for name, part in parts.items():
        version = part["versionInfo"].replace("+", "%2B")
        url = part["externalRefs"][0]["referenceLocator"]
        assert url.startswith(f"pkg:deb/debian/{name}@{version}?arch=")
        assert re.fullmatch("[0-9a-f]{64}", part["checksums"][0]["checksumValue"])
    ids = {part["SPDXID"] for part in document["packages"]}
    links = document["relationships"]
    assert {link["relatedSpdxElement"] for link in links} == ids


def test_it_serves_and_trains_and_stops(start, data: Path):
    container = start()
    container.wait_until_serving()
    ids = {USER} if os.geteuid() == 0 else {os.geteuid(), os.getegid()}
    assert container.ids() == ids
    assert train(container.address, "gpt", rounds=2) == 2
    assert container.end(signal.SIGTERM) == 0
    assert {path.stat().st_uid for path in data.rglob("*")} <= ids


def test_it_continues_after_kill_9(start):
    first = start()
    first.wait_until_serving()
    assert train(first.address, "gpt", rounds=2) == 2
    assert first.end(signal.SIGKILL) == 128 + signal.SIGKILL
    second = start()
    second.wait_until_serving()
    assert train(second.address, "gpt", rounds=1, resume="must") == 3
    assert second.end(signal.SIGTERM) == 0


def test_it_writes_to_data_only(rootfs: Path, data: Path):
    done = subprocess.run([*entered(rootfs, "--bind", data, "/data"), "/usr/bin/ballastd",
                           *ON_LOOPBACK, "--data-dir", "/elsewhere"], text=True, check=False,
                          capture_output=True, timeout=60)
    assert done.returncode != 0 and "/elsewhere: Read-only file system" in done.stderr
