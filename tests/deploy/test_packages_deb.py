"""The .deb of the servers: what lintian says, and what dpkg does with it in a minimal Debian.

systemd does not run there. What the package's scripts would ask of it is written down by a script
in its place.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.packages import VERSION, Packages, build, inside, program, run

pytestmark = pytest.mark.slow

# What the package needs beside Debian's essential packages.
_USERS = "systemd-standalone-sysusers"


@pytest.fixture(scope="module")
def deb(packages: Packages) -> Path:
    return packages.deb()


def field(deb: Path, name: str) -> str:
    return run("dpkg-deb", "-f", deb, name).stdout.strip()


def depends(deb: Path) -> list[str]:
    """The names in Depends; the first of each choice."""
    return [part.split()[0] for part in field(deb, "Depends").split(",")]


@pytest.fixture
def debian(packages: Packages, deb: Path, tmp_path: Path) -> Iterator[Path]:
    """A root of one's own with what the package depends on, and the package in /tmp."""
    libraries = [name for name in depends(deb) if name != "systemd"]
    base = packages.root("debian", "essential", _USERS, *libraries)
    root = tmp_path / "root"
    run("cp", "-a", "--reflink=auto", base, root)
    shutil.copy(deb, root / "tmp")
    yield root
    shutil.rmtree(root)


def dpkg(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(*inside(root), "dpkg", "--force-unsafe-io", *arguments)


def packed(tree: Path, deb: Path) -> None:
    """Makes a package of a tree, without compression, which takes seconds."""
    run("dpkg-deb", "-Znone", "--root-owner-group", "--build", tree, deb)


def next_version(deb: Path, folder: Path, to: Path) -> None:
    """The same package as version 99.0."""
    tree = folder / "tree"
    run("dpkg-deb", "-R", deb, tree)
    control = tree / "DEBIAN/control"
    control.write_text(control.read_text().replace(f"Version: {VERSION}", "Version: 99.0"))
    packed(tree, to)


def users(root: Path) -> dict[str, list[str]]:
    lines = (root / "etc/passwd").read_text().splitlines()
    return {line.split(":")[0]: line.split(":") for line in lines}


def test_lintian_finds_no_error_and_every_program_has_its_manual(deb: Path):
    done = subprocess.run([program("lintian"), "--fail-on", "error", deb], text=True, check=False,
                          capture_output=True, timeout=300)
    assert done.returncode == 0, done.stdout
    assert "manual-page" not in done.stdout and "groff-message" not in done.stdout, done.stdout


def test_a_manual_says_what_help_prints(deb: Path, tmp_path: Path):
    """Letter by letter: nothing in a help text acts on the page."""
    run("dpkg-deb", "-x", deb, tmp_path)
    programs = [path for path in (tmp_path / "usr/bin").iterdir()]
    assert len(programs) >= 2
    for binary in programs:
        (page,) = (tmp_path / "usr/share/man").glob(f"man*/{binary.name}.*.gz")
        shown = run("man", "--warnings", "-l", page, env={"MANWIDTH": "200", "LC_ALL": "C.UTF-8",
                                                          "PATH": "/usr/bin:/bin"})
        assert shown.stderr == ""
        lines = {line.strip() for line in shown.stdout.splitlines()}
        assert {line.strip() for line in run(binary, "--help").stdout.splitlines()} <= lines


def test_lintian_finds_an_error(deb: Path, tmp_path: Path):
    """So the test above can fail: a package without its copyright."""
    tree = tmp_path / "tree"
    run("dpkg-deb", "-R", deb, tree)
    (tree / "usr/share/doc/ballast-server/copyright").unlink()
    shutil.rmtree(tree / "usr/bin")
    packed(tree, tmp_path / "worse.deb")
    done = subprocess.run([program("lintian"), "--fail-on", "error", tmp_path / "worse.deb"],
                          text=True, check=False, capture_output=True, timeout=300)
    assert (done.returncode, "no-copyright-file" in done.stdout) == (2, True), done.stdout


def test_the_same_build_gives_the_same_bytes(deb: Path, tmp_path: Path):
    build("deb")(tmp_path)
    assert (tmp_path / deb.name).read_bytes() == deb.read_bytes()


def test_its_name_has_the_version(deb: Path):
    assert field(deb, "Version") == VERSION
    assert deb.name == f"ballast-server_{VERSION}_{field(deb, 'Architecture')}.deb"


def test_dpkg_installs_it(debian: Path, deb: Path):
    dpkg(debian, "-i", f"/tmp/{deb.name}")
    _, _, number, _, _, home, shell = users(debian)["ballast"]
    assert (int(number) < 1000, home) == (True, "/var/lib/ballast")
    assert shell.endswith("nologin")
    assert dpkg(debian, "--verify", "ballast-server").stdout == ""
    for name in ("ballastd", "ballastctl"):
        assert run(*inside(debian), name, "--version").stdout == f"{name} {VERSION}\n"
        assert "not found" not in run(*inside(debian), "ldd", f"/usr/bin/{name}").stdout
    config = ("--config", "/etc/ballast/ballastd.yaml", "--check-config")
    run(*inside(debian), "ballastd", *config)
    unit = (debian / "lib/systemd/system/ballastd.service").read_text()
    assert re.search(r"^ExecStart=/usr/bin/ballastd --config /etc/ballast/ballastd.yaml$", unit,
                     re.M)
    assert not [path for path in (debian / "etc/systemd").rglob("ballastd.service")], "is enabled"


def test_dpkg_takes_it_away_and_leaves_the_state(debian: Path, deb: Path):
    dpkg(debian, "-i", f"/tmp/{deb.name}")
    state = debian / "var/lib/ballast/jobs"
    state.mkdir(parents=True)
    files = [path for path in dpkg(debian, "-L", "ballast-server").stdout.split()
             if (debian / path[1:]).is_file()]
    dpkg(debian, "-r", "ballast-server")
    left = [path for path in files if (debian / path[1:]).exists()]
    assert sorted(left) == ["/etc/ballast/ballastd.env", "/etc/ballast/ballastd.yaml"]
    dpkg(debian, "-P", "ballast-server")
    assert not (debian / "etc/ballast").exists()
    assert state.is_dir()


def test_a_changed_configuration_survives_the_next_version(debian: Path, deb: Path, tmp_path: Path):
    dpkg(debian, "-i", f"/tmp/{deb.name}")
    yaml = debian / "etc/ballast/ballastd.yaml"
    yaml.write_text(yaml.read_text().replace("127.0.0.1:7000", "127.0.0.1:7100"))
    next_version(deb, tmp_path, debian / "tmp/next.deb")
    dpkg(debian, "-i", "/tmp/next.deb")
    assert "127.0.0.1:7100" in yaml.read_text()
    said = dpkg(debian, "-s", "ballast-server").stdout
    assert "Version: 99.0\n" in said and "Status: install ok installed\n" in said


def test_systemd_is_asked_for_what_dpkg_does(debian: Path, deb: Path, tmp_path: Path):
    """A server that runs is restarted by another version and ended with the package, once each."""
    (debian / "run/systemd/system").mkdir(parents=True)
    systemctl, calls = debian / "usr/bin/systemctl", debian / "tmp/calls"
    systemctl.write_text('#!/bin/sh\necho "$@" >>/tmp/calls\n')
    systemctl.chmod(0o755)
    next_version(deb, tmp_path, debian / "tmp/next.deb")

    def asked(*arguments: str) -> list[str]:
        calls.write_text("")
        dpkg(debian, *arguments)
        return [line for line in calls.read_text().splitlines() if "daemon-reload" not in line]

    assert asked("-i", f"/tmp/{deb.name}") == []
    assert asked("-i", "/tmp/next.deb") == ["try-restart ballastd.service"]
    stop = ["stop ballastd.service", "--system disable ballastd.service"]
    assert asked("-r", "ballast-server") == stop
    assert asked("-P", "ballast-server") == []


def test_a_server_that_does_not_obey_keeps_no_package_half_done(debian: Path, deb: Path,
                                                                tmp_path: Path):
    (debian / "run/systemd/system").mkdir(parents=True)
    systemctl = debian / "usr/bin/systemctl"
    systemctl.write_text('#!/bin/sh\ncase "$*" in *daemon-reload*) exit 0 ;; esac\nexit 1\n')
    systemctl.chmod(0o755)
    next_version(deb, tmp_path, debian / "tmp/next.deb")
    dpkg(debian, "-i", f"/tmp/{deb.name}")
    assert "did not start again" in dpkg(debian, "-i", "/tmp/next.deb").stderr
    removed = dpkg(debian, "-r", "ballast-server")
    assert "did not end as it should" in removed.stderr
    assert "may still be enabled" in removed.stderr
    assert not (debian / "usr/bin/ballastd").exists()
