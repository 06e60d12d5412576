"""The .deb of the servers: lintian's findings, and its life under dpkg and systemd in a minimal
booted Debian.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.booted import Booted
from deploy.hardened import missing
from deploy.packages import VERSION, Packages, build, inside, program, run
from deploy.tools import REPO

pytestmark = pytest.mark.slow

@pytest.fixture(scope="module")
def deb(packages: Packages) -> Path:
    return packages.deb()


def field(deb: Path, name: str) -> str:
    return run("dpkg-deb", "-f", deb, name).stdout.strip()


def depends(deb: Path) -> list[str]:
    """The names in Depends; the first of each choice."""
    return [part.split()[0] for part in field(deb, "Depends").split(",")]


@pytest.fixture(scope="module")
def root(packages: Packages, deb: Path) -> Path:
    """A minimal Debian with systemd and the libraries of the package; for reading."""
    return packages.root("debian", "essential", *depends(deb))


@pytest.fixture
def debian(root: Path, deb: Path, tmp_path: Path) -> Iterator[Booted]:
    """It is booted, and has the package as ballast.deb in /shown, which is `shown` here."""
    shown = tmp_path / "shown"
    shown.mkdir()
    shutil.copy(deb, shown / "ballast.deb")
    with Booted(root, shown, tmp_path / "console") as booted:
        yield booted


def dpkg(debian: Booted, *arguments: str) -> subprocess.CompletedProcess[str]:
    return debian.run("dpkg", "--force-unsafe-io", *arguments)


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
        (page,) = (tmp_path / "usr/share/man").glob(f"man?/{binary.name}.?.gz")
        shown = run("man", "--warnings", "-l", page, env={"MANWIDTH": "200", "LC_ALL": "C.UTF-8",
                                                          "PATH": "/usr/bin:/bin"})
        assert shown.stderr == ""
        lines = {line.strip() for line in shown.stdout.splitlines()}
        assert {line.strip() for line in run(binary, "--help").stdout.splitlines()} <= lines


def test_the_manual_of_the_configuration_has_each_field(deb: Path, tmp_path: Path):
    """As `ballastd --print-config` names them, and word by word as docs/config.md says it."""
    run("dpkg-deb", "-x", deb, tmp_path)
    page = tmp_path / "usr/share/man/man5/ballastd.yaml.5.gz"
    shown = run("man", "--warnings", "-l", page, env={"MANWIDTH": "300", "LC_ALL": "C.UTF-8",
                                                      "PATH": "/usr/bin:/bin"})
    assert shown.stderr == ""
    said = " ".join(shown.stdout.split())
    printed = run(tmp_path / "usr/bin/ballastd", "--print-config").stdout
    names = set(re.findall(r"BALLAST_[A-Z_]+", (REPO / "docs/config.md").read_text()))
    assert len(names) > 40 and "data_dir" in printed
    assert not [name for name in names if name not in said]
    text = (REPO / "docs/config.md").read_text().replace("`", "")
    for row in re.findall(r"^\| ([a-z].*) \|$", text, re.M):
        name, *_, meaning = (" ".join(cell.split()) for cell in row.split(" | "))
        assert f" {name} {meaning} " in said


def test_its_programs_have_the_flags_of_the_page_on_security(deb: Path, tmp_path: Path):
    run("dpkg-deb", "-x", deb, tmp_path)
    programs = {path.name: missing(path) for path in (tmp_path / "usr/bin").iterdir()}
    assert programs == {"ballastd": set(), "ballastctl": set()}


def test_the_pages_are_in_it_with_links_that_lead_on(deb: Path, tmp_path: Path):
    run("dpkg-deb", "-x", deb, tmp_path)
    doc = tmp_path / "usr/share/doc/ballast-server"
    for source in (REPO / "docs").rglob("*.md"):
        page = doc / source.relative_to(REPO)
        assert page.read_bytes() == source.read_bytes()
        for link in re.findall(r"\]\(([^)#:]+\.md)", page.read_text()):
            assert (page.parent / link).exists() or "docs" not in link, f"{page}: {link}"


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


def test_it_serves_under_systemd_and_comes_back_after_a_kill(debian: Booted):
    dpkg(debian, "-i", "/shown/ballast.deb")
    _, _, number, _, _, home, shell = debian.run("getent", "passwd", "ballast").stdout.split(":")
    assert (int(number) < 1000, home) == (True, "/var/lib/ballast")
    assert shell.strip().endswith("nologin")
    assert dpkg(debian, "--verify", "ballast-server").stdout == ""
    for name in ("ballastd", "ballastctl"):
        assert debian.run(name, "--version").stdout == f"{name} {VERSION}\n"
        assert "not found" not in debian.run("ldd", f"/usr/bin/{name}").stdout
    debian.run("ballastd", "--config", "/etc/ballast/ballastd.yaml", "--check-config")
    states = debian.run("systemctl", "is-enabled", "ballastd", code=1).stdout.strip()
    assert (states, debian.property("ActiveState")) == ("disabled", "inactive")

    debian.run("systemctl", "enable", "--now", "ballastd")
    assert debian.property("StatusText") == "serving"
    debian.run("ballastctl", "status", "--endpoint", "127.0.0.1:7000")
    killed = debian.property("MainPID")
    status = debian.run("cat", f"/proc/{killed}/status").stdout
    assert re.search(r"^CapEff:\s+0+$", status, re.M)
    assert re.search(r"^NoNewPrivs:\s+1$", status, re.M)
    assert re.search(r"^Seccomp:\s+2$", status, re.M)

    debian.run("sh", "-c", f"kill -9 {killed}")
    debian.await_property("NRestarts", "1")
    debian.await_property("StatusText", "serving")
    assert debian.property("MainPID") != killed


def test_another_version_restarts_it_and_removal_leaves_the_state(debian: Booted, deb: Path,
                                                                  tmp_path: Path):
    next_version(deb, tmp_path, tmp_path / "shown/next.deb")
    dpkg(debian, "-i", "/shown/ballast.deb")
    yaml = "/etc/ballast/ballastd.yaml"
    debian.run("sed", "-i", "s/127.0.0.1:7000/127.0.0.1:7100/", yaml)
    debian.run("systemctl", "enable", "--now", "ballastd")
    before = debian.property("MainPID")
    dpkg(debian, "-i", "/shown/next.deb")
    assert "Version: 99.0\n" in dpkg(debian, "-s", "ballast-server").stdout
    debian.await_property("StatusText", "serving")
    server = debian.property("MainPID")
    assert server not in ("0", before)
    debian.run("ballastctl", "status", "--endpoint", "127.0.0.1:7100")

    files = debian.run("dpkg", "-L", "ballast-server").stdout.split()
    dpkg(debian, "-r", "ballast-server")
    left = [path for path in files if debian.path(path).is_file()]
    assert sorted(left) == ["/etc/ballast/ballastd.env", yaml]
    assert debian.property("LoadState") == "not-found"
    assert not debian.path(f"/proc/{server}").exists()
    assert not [*debian.path("/etc/systemd/system").rglob("ballastd.service")], "is enabled"
    dpkg(debian, "-P", "ballast-server")
    assert not debian.path("/etc/ballast").exists()
    assert [*debian.path("/var/lib/ballast").iterdir()]


def test_a_server_that_refuses_its_data_stays_failed(debian: Booted, deb: Path, tmp_path: Path):
    """The package is installed all the same, and says where to look."""
    dpkg(debian, "-i", "/shown/ballast.deb")
    debian.run("systemctl", "start", "ballastd")
    # The data directory is that of server 0.
    debian.run("sed", "-i", "$ a BALLAST_CLUSTER_ID=1", "/etc/ballast/ballastd.env")
    assert "did not start again" in dpkg(debian, "-i", "/shown/ballast.deb").stderr
    assert (debian.property("ActiveState"), debian.property("ExecMainStatus")) == ("failed", "4")
    assert debian.property("NRestarts") == "0"


def test_a_server_that_does_not_end_keeps_no_package_half_removed(root: Path, deb: Path,
                                                                  tmp_path: Path):
    """Of systemctl there is a stand-in, which fails."""
    run("dpkg-deb", "-e", deb, tmp_path / "scripts")
    systemctl = tmp_path / "systemctl"
    systemctl.write_text("#!/bin/sh\nexit 1\n")
    systemctl.chmod(0o755)
    there = inside(root, "--ro-bind", tmp_path / "scripts", "/tmp", "--dir", "/run/systemd/system",
                   "--ro-bind", systemctl, "/usr/bin/systemctl")
    said = run(*there, "/tmp/prerm", "remove").stderr
    assert "did not end as it should" in said
    assert "may still be enabled" in said
