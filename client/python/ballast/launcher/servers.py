"""Local state servers of one ballast-run: found, started on free ports, introduced to each other.

Comes from: ballast.run. Goes to: the ballastd binary.
Each server binds port 0 and writes {"id", "address", "admin", "pid"} to its ready file; when all
have, the peers file {"peers": [{"id", "address"}]} appears atomically and they find each other. A
restarted server keeps its port, so the peers file stays true.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ballast.config import time_scale
from ballast.launcher import process

MEMINFO = Path("/proc/meminfo")
CONTROL_GROUP = Path("/sys/fs/cgroup")
BUDGET_VARIABLE = "BALLAST_STORAGE_MEMORY_BUDGET"  # ballastd's own
# Of systemd, which waits for words of ballast-run's own process and not of its servers.
SUPERVISOR = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
START_TIMEOUT_S = 30.0
STOP_S = 10.0
LOG_TAIL_LINES = 20
# Disk space that a server takes without any job.
OWN_BYTES = 128 * 1024
# These servers have one user, whose script may have an optimizer, and so a job, per parameter.
JOBS_MAX = 1024


class LaunchError(Exception):
    """Something ballast-run needs is missing or did not start; the text is for the user."""

    exit_code = 1


class UsageError(LaunchError):
    """An argument or variable of ballast-run is wrong."""

    exit_code = 2


def find_ballastd(given: str | None, environ: Mapping[str, str]) -> Path:
    """The server binary: --server-binary, BALLAST_BALLASTD, this checkout's build, PATH."""
    more = "; scripts/quickstart.sh does so, too, and --server-binary names one"
    return _found("ballastd", {"--server-binary": given}, environ, more)


def find_ballastctl(environ: Mapping[str, str]) -> Path:
    """The program for operators: BALLAST_BALLASTCTL, this checkout's build, PATH."""
    return _found("ballastctl", {}, environ, "")


def _found(
    program: str, named: Mapping[str, str | None], environ: Mapping[str, str], more: str
) -> Path:
    """The program that one of `named`, its variable, the build or PATH has, in this order.

    UsageError for a name that leads to no program, LaunchError where none is found; more:
    additional text for the latter.
    """
    variable = f"BALLAST_{program.upper()}"
    for source, text in {**named, variable: environ.get(variable)}.items():
        if not text:
            continue
        if os.access(text, os.X_OK) and Path(text).is_file():
            return Path(text).resolve()
        raise UsageError(f"{source}: {text} is not an executable file; name a built {program}")
    built = Path(__file__).resolve().parents[4] / "build" / "release" / "bin" / program
    if os.access(built, os.X_OK):
        return built
    on_path = shutil.which(program, path=environ.get("PATH"))
    if on_path:
        return Path(on_path)
    raise LaunchError(
        f"no {program} found: not in {variable}, not at {built}, not on PATH. Build it with "
        f"`cmake --build build/release --target {program}`{more}"
    )


def memory_share(
    count: int, meminfo: Path = MEMINFO, control_group: Path = CONTROL_GROUP
) -> str | None:
    """The storage.memory_budget of each of `count` servers on this machine; None: not known.

    Together 80 % of the memory now available, as one ballastd would take by itself: the lesser of
    /proc/meminfo's figure and the control group's remaining allowance.
    """
    try:
        line = re.search(r"^MemAvailable: +(\d+) kB$", meminfo.read_text(), re.M)
        available = int(line.group(1)) << 10
    except (OSError, AttributeError):
        return None
    with contextlib.suppress(OSError, ValueError):  # no control group, or no limit in it
        limit, used = (
            int((control_group / name).read_text()) for name in ("memory.max", "memory.current")
        )
        available = min(available, max(0, limit - used))
    mebibytes = (available * 4 // 5 // count) >> 20
    return f"{mebibytes}MiB" if mebibytes else None


class Servers:
    """N running servers; use start(), then stop()."""

    def __init__(
        self,
        binary: Path,
        count: int,
        data_dir: Path,
        dram_budget: str | None,
        inherited: Sequence[int] = (),
        host: str = "127.0.0.1",
        certificates: Path | None = None,
    ) -> None:
        """dram_budget: for the state in memory of each server; None: the value in start()'s
        environment. Each server's total memory limit comes from there too, or is its share of this
        machine's memory.
        inherited: file descriptors that every server keeps open as long as it lives.
        host: the address that they listen on.
        certificates: directory of dev-ca.sh; None: connections in plaintext."""
        self._certificates = certificates
        self._binary = binary
        self._count = count
        self._run_dir = data_dir / "run"
        self._data_dir = data_dir
        self._dram_budget = dram_budget
        self._memory_budget: str | None = None
        self._inherited = tuple(inherited)
        self._host = f"[{host}]" if ":" in host else host
        self._environ: dict[str, str] = {}
        self.children: list[process.Child] = []
        self.addresses: list[str] = []
        self.admin_addresses: list[str] = []

    def start(self, environ: Mapping[str, str], interrupted: Callable[[], bool]) -> None:
        """Starts all servers and waits until each serves. LaunchError with the log's tail.

        Returns early, without addresses, when `interrupted` says so.
        """
        self._run_dir.mkdir(parents=True, exist_ok=True)
        self._lock_data_dir()  # Before anything in it is touched: it may be a running job's.
        self._check_free_space()
        for stale in (self._peers_file(), *map(self._ready_file, range(self._count))):
            stale.unlink(missing_ok=True)
        self._environ = {name: environ[name] for name in environ if name not in SUPERVISOR}
        self._environ.setdefault("BALLAST_LIMITS_MAX_JOBS", str(JOBS_MAX))
        if not environ.get(BUDGET_VARIABLE):
            # Decided once: a restarted server must have room for the same jobs.
            self._memory_budget = memory_share(self._count)
        for i in range(self._count):
            self.children.append(self._spawn(i, f"{self._host}:0", "wb"))
        deadline = time.monotonic() + START_TIMEOUT_S * time_scale(environ)
        ready = []
        for i in range(self._count):
            ready.append(self._await_ready(i, deadline, interrupted))
            if ready[-1] is None:
                return
        self.addresses = [r["address"] for r in ready]
        self.admin_addresses = [r["admin"] for r in ready if r.get("admin")]
        peers = [{"id": i, "address": a} for i, a in enumerate(self.addresses)]
        write_atomically(self._peers_file(), json.dumps({"peers": peers}))

    def restart(self, i: int) -> None:
        """Starts server i, which has ended, on its data directory and its port; does not wait.

        LaunchError when the binary cannot be started.
        """
        self._ready_file(i).unlink(missing_ok=True)
        self.children[i] = self._spawn(i, self.addresses[i], "ab")

    def ready(self, i: int) -> bool:
        """Whether server i listens; then its admin address, which a restart changes, is known."""
        try:
            told = json.loads(self._ready_file(i).read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return False
        if told.get("admin") and i < len(self.admin_addresses):
            self.admin_addresses[i] = told["admin"]
        return True

    def report(self, i: int) -> str:
        """Description of ended server i: exit code and the end of its log."""
        return f"server {i} ended with exit code {self.children[i].code()}; {self._log_tail(i)}"

    def stop(self, hurry: Callable[[], bool] = lambda: False) -> None:
        process.stop(self.children, signal.SIGTERM, STOP_S, hurry)

    def _lock_data_dir(self) -> None:
        self._lock = open(self._run_dir / "lock", "a+")  # Open, hence locked, as long as we live.
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LaunchError(
                f"{self._data_dir} is in use by another ballast-run; wait for its end or name "
                "another directory with --data-dir"
            ) from error

    def _check_free_space(self) -> None:
        # A server whose log and ready file cannot be written ends without a word.
        free, needed = shutil.disk_usage(self._run_dir).free, self._count * OWN_BYTES
        if free < needed:
            raise LaunchError(
                f"{self._data_dir} has {free} bytes free; {self._count} server(s) need {needed} "
                "there for their logs, and a job more. Free some, or name another directory with "
                "--data-dir (TMPDIR without it)"
            )

    def _spawn(self, i: int, listen: str, log_mode: str) -> process.Child:
        data = self._data_dir / f"server-{i}"
        data.mkdir(exist_ok=True)
        command = [
            str(self._binary),
            f"--listen={listen}",
            f"--id={i}",
            f"--peers-file={self._peers_file()}",
            f"--ready-file={self._ready_file(i)}",
            f"--data-dir={data}",
        ]
        if self._certificates is not None:
            command += _security(self._certificates, i)
        if self._memory_budget:
            command.append(f"--set=storage.memory_budget={self._memory_budget}")
        if self._dram_budget:
            command.append(f"--dram-budget={self._dram_budget}")
        with open(self._log_file(i), log_mode) as log:
            try:
                return process.Child(
                    command,
                    # All servers of this launch share one; one with another says so.
                    {
                        "BALLAST_STORAGE_SNAPSHOT_DIR": str(self._data_dir / "snapshots"),
                        **self._environ,
                    },
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=self._inherited,
                )
            except OSError as error:
                raise LaunchError(f"cannot start {self._binary}: {error}") from error

    def _await_ready(
        self, i: int, deadline: float, interrupted: Callable[[], bool]
    ) -> dict | None:
        path = self._ready_file(i)
        while not interrupted():
            ended = self.children[i].ended()
            try:
                return json.loads(path.read_text())
            except (FileNotFoundError, json.JSONDecodeError):
                pass
            if ended:
                raise LaunchError(self.report(i))
            if time.monotonic() > deadline:
                raise LaunchError(f"server {i} was not ready in time; {self._log_tail(i)}")
            time.sleep(process.POLL_S / 2)
        return None

    def _log_tail(self, i: int) -> str:
        log = self._log_file(i)
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        tail = "\n".join("    " + line for line in lines[-LOG_TAIL_LINES:]) or "    (empty)"
        return f"the end of its log:\n{tail}"

    def _peers_file(self) -> Path:
        return self._run_dir / "peers.json"

    def _ready_file(self, i: int) -> Path:
        return self._run_dir / f"ready-{i}.json"

    def _log_file(self, i: int) -> Path:
        return self._run_dir / f"server-{i}.log"


def _security(folder: Path, server: int) -> list[str]:
    """Arguments of ballastd for TLS with the files of dev-ca.sh."""
    fields = {
        "mode": "tls",
        "ca": folder / "ca.pem",
        "certificate": folder / f"server-{server}.pem",
        "key": folder / f"server-{server}.key",
    }
    return [f"--set=security.{name}={value}" for name, value in fields.items()]


def write_atomically(path: Path, text: str) -> None:
    """Replaces the file as a whole: a reader sees the old text or the new one."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)
