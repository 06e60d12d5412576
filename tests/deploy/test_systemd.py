"""deploy/systemd: the unit as systemd reads it, and its command under its system call filter.

Nothing here starts the unit itself; test_packages_deb.py does, in a booted Debian.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from deploy.server import ON_LOOPBACK
from deploy.supervisor import Supervisor
from deploy.tools import DEPLOY, run
from deploy.training import train

FOLDER = DEPLOY / "systemd"
UNIT = FOLDER / "ballastd.service"
HERE = Path(__file__).parent
# systemd's own scale, times ten: 25 and less is "OK".
EXPOSURE_MAX = 25


class _Repeated(dict):
    """Values of a repeated key, a line each."""

    def __setitem__(self, key, value):
        if isinstance(value, list) and isinstance(self.get(key), list):
            self[key].extend(value)
        else:
            super().__setitem__(key, value)


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, dict_type=_Repeated)
    parser.optionxform = str
    parser.read(UNIT)
    return parser


def command() -> list[str]:
    return unit()["Service"]["ExecStart"].split()


def rooted(folder: Path, binary: Path, text: str | None = None) -> Path:
    """The unit in `folder`, with the server of this build."""
    path = folder / UNIT.name
    path.write_text((text or UNIT.read_text()).replace("/usr/bin/ballastd", str(binary)))
    return path


def test_systemd_finds_no_fault(tmp_path, ballastd):
    done = run("systemd-analyze", "verify", rooted(tmp_path, ballastd))
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_finds_an_unknown_key(tmp_path, ballastd):
    text = UNIT.read_text().replace("LimitNOFILE", "LimitNFILE")
    assert "LimitNFILE" in run("systemd-analyze", "verify", rooted(tmp_path, ballastd, text)).stderr


def exposure(path: Path) -> tuple[bool, float]:
    """Whether systemd finds the unit safe enough, and its number."""
    done = run("systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", path)
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    return done.returncode == 0, float(found[1])


def test_the_exposure_is_low(tmp_path, ballastd):
    assert exposure(rooted(tmp_path, ballastd))[0]


@pytest.mark.parametrize("missing", ["ProtectSystem", "SystemCallFilter", "User", "Capability"])
def test_each_line_of_hardening_counts(missing, tmp_path, ballastd):
    _, whole = exposure(rooted(tmp_path, ballastd))
    fewer = re.sub(rf"^{missing}.*\n", "", UNIT.read_text(), flags=re.M)
    assert exposure(rooted(tmp_path, ballastd, fewer))[1] > whole


def test_the_server_accepts_the_files(tmp_path, ballastd):
    """The configuration with the variables that the unit gives."""
    variables = dict(line.split("=", 1) for line in (FOLDER / "ballastd.env").read_text().split()
                     if re.match(r"[A-Z_]+=", line))
    name, _, value = unit()["Service"]["Environment"].partition("=")
    assert command()[:2] == ["/usr/bin/ballastd", "--config"]
    done = run(ballastd, "--config", FOLDER / Path(command()[2]).name, *command()[3:],
               "--print-config", env={**variables, name: value})
    assert (done.returncode, done.stderr) == (0, "")
    for variable in variables:
        assert variable in done.stdout  # As the origin of a value.


def test_the_state_is_in_the_directory_that_systemd_makes():
    storage = yaml.safe_load((FOLDER / "ballastd.yaml").read_text())["storage"]
    service = unit()["Service"]
    assert storage["data_dir"] == f"/var/lib/{service['StateDirectory']}"
    user = next(x for x in (FOLDER / "ballast.sysusers").read_text().split("\n") if x[0] != "#")
    assert user.split()[:2] == ["u", service["User"]]
    assert user.split()[-1] == storage["data_dir"]


def test_sysusers_reads_the_user(tmp_path):
    (tmp_path / "etc").mkdir()
    done = run("systemd-sysusers", f"--root={tmp_path}", FOLDER / "ballast.sysusers")
    assert done.returncode == 0, done.stderr
    assert "ballast:" in (tmp_path / "etc" / "passwd").read_text()


@pytest.mark.parametrize("arguments", [("--nonsense",), ("--set", "timing.lease=never")])
def test_a_wrong_argument_or_configuration_is_not_tried_again(ballastd, arguments):
    code = run(ballastd, *arguments, env={}).returncode
    assert str(code) in unit()["Service"]["RestartPreventExitStatus"].split()


def test_a_reload_refuses_a_wrong_file_before_the_server_hears_of_it(ballastd, tmp_path):
    """systemd runs these one after the other, up to the first that fails."""
    wrong = tmp_path / "ballastd.yaml"
    wrong.write_text("storage:\n  dram_bugdet: 64MiB\n")
    check, hangup = unit()["Service"]["ExecReload"].splitlines()
    assert hangup == "/bin/kill -HUP $MAINPID"
    program, *arguments = check.replace("/etc/ballast/ballastd.yaml", str(wrong)).split()
    assert program == "/usr/bin/ballastd"
    done = run(ballastd, *arguments, env={})
    assert done.returncode == 2
    assert f"{wrong}:2:3" in done.stderr


def test_a_lost_state_is_not_tried_again(ballastd, start_server, tmp_path):
    """The server finds the directory of a job without its record."""
    data = tmp_path / "data"
    flags = (*ON_LOOPBACK, "--data-dir", str(data))
    server = start_server(*flags)
    server.wait_until_serving()
    train(server.address, "gpt", rounds=1)
    server.stop(within_s=60)
    shutil.rmtree(data / "meta")
    done = run(ballastd, *flags, env={})
    assert str(done.returncode) in unit()["Service"]["RestartPreventExitStatus"].split()
    assert "STATE_LOST" in done.stderr
    again = run(ballastd, *flags, "--set", "log.format=json", env={})
    last = [json.loads(line) for line in again.stderr.splitlines()][-1]
    assert (last["severity"], last["exit_code"]) == ("ERROR", done.returncode)
    assert "STATE_LOST" in str(last)


def allowed() -> list[str]:
    """The system calls that SystemCallFilter= leaves, as systemd expands its sets."""
    sets: dict[str, list[str]] = {}
    for line in run("systemd-analyze", "syscall-filter").stdout.split("\n"):
        if line.startswith("@"):
            members = sets.setdefault(line, [])
        elif line.strip() and not line.strip().startswith("#") and sets:
            members.append(line.strip())

    def expand(name: str) -> set[str]:
        found = sets.get(name)
        return {name} if found is None else set().union(*map(expand, found))

    names: set[str] = set()
    for line in unit()["Service"]["SystemCallFilter"].split("\n"):
        taken = set().union(*map(expand, line.lstrip("~").split()))
        names = names - taken if line.startswith("~") else names | taken
    # systemd itself starts the program.
    return sorted(names | {"execve"})


def under_filter(names: list[str], *program: str | Path) -> list[str]:
    return ["-B", str(HERE / "under_filter.py"), " ".join(names), *map(str, program)]


def test_the_server_trains_under_the_filter(ballastd, tmp_path, start_program):
    """Durable rounds, a snapshot, the admin port, a stop: no system call beyond the list."""
    with Supervisor() as supervisor:
        server = start_program(Path(sys.executable), under_filter(
            allowed(), ballastd, *ON_LOOPBACK, "--data-dir", tmp_path / "data"),
            **supervisor.variables)
        supervisor.await_line("READY=1")
    assert train(server.address, "gpt", rounds=3) == 3
    done = run(ballastd.with_name("ballastctl"), "snapshot", "create", "gpt", "good",
               "--endpoint", server.address, env={})
    assert done.returncode == 0, done.stderr
    assert server.get("/metrics")[0] == 200
    assert server.stop(within_s=60) == 0


def test_the_filter_kills(ballastd):
    """So the test above can fail."""
    fewer = [name for name in allowed() if name != "rt_sigprocmask"]
    done = subprocess.run([sys.executable, *under_filter(fewer, ballastd, "--version")], env={},
                          capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGSYS


def test_the_limits_are_those_the_server_gets(start_program, ballastd):
    """process_max_fds of a server under LimitNOFILE=, within this machine's limit."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = int(unit()["Service"]["LimitNOFILE"])
    wanted = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    server = start_program(Path("/bin/bash"), [
        "-c", 'ulimit -n "$1"; shift; exec "$@"', "bash", str(wanted), str(ballastd), "--dev"],
        PATH=os.environ["PATH"])
    assert f"process_max_fds {wanted}\n" in server.get("/metrics")[1]
