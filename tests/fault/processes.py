"""The processes of a kill storm: servers and trainers, restarted whenever they end.

Comes from: kill_storm.py. Goes to: ballastd and fault_trainer. Thread safety: one thread.
A restart here is a supervisor's usual one: the same command, after a short while. Nothing else is
ever done to a process.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

# Exit codes: ballastd's for a disk that refused a write, and those of trainer.cc.
STORAGE_ERROR = 3
FINISHED, FENCED, TRY_AGAIN, WRONG = 0, 10, 11, 13
# Short, so that a hang is noticed within a storm's strikes.
TIMING = {
    "BALLAST_TIMING_HEARTBEAT_INTERVAL": "100ms",
    "BALLAST_TIMING_REPORT_AFTER": "500ms",
    "BALLAST_TIMING_LEASE": "600ms",
    "BALLAST_TIMING_JOB_TTL": "1s",
}


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_CLONE_NEWNS, _CLONE_NEWNET = 0x20000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40
SMALL_DISK_BYTES = 256 << 20


def end_with_the_driver() -> None:
    """In a child: it is killed when the driver ends, however that comes about."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def enter_own_network() -> str:
    """A network of this process and its children alone, with nothing but loopback: nobody else can
    take a server's port while that server is down. Returns why it cannot, or nothing."""
    if _LIBC.unshare(_CLONE_NEWNET) != 0:
        return "this user may not have a network of its own"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", _IFF_UP | _IFF_RUNNING)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)
    return ""


def mount_small_disk(folder: Path) -> str:
    """Mounts a small file system at `folder`, seen by this process and its children only and gone
    with them. Returns why it cannot, or nothing."""
    if _LIBC.unshare(_CLONE_NEWNS) != 0:
        return "this user may not mount"
    folder.mkdir()
    for words in (["--make-rprivate", "/"],
                  ["-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "tmpfs", str(folder)]):
        done = subprocess.run(["mount", *words], capture_output=True, text=True)
        if done.returncode != 0:
            return done.stderr.strip()
    return ""


def unmount_small_disk(folder: Path) -> None:
    """Takes it away again; nobody may use it any more."""
    subprocess.run(["umount", str(folder)], check=False, capture_output=True)


def clean_environment() -> dict[str, str]:
    """The environment without settings of ours but the time scale."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("BALLAST_")}
    if scale := os.environ.get("BALLAST_TIME_SCALE"):
        kept["BALLAST_TIME_SCALE"] = scale
    return kept


class Process:
    """One place in the cluster, and the process that holds it now."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.child: subprocess.Popen | None = None
        self.killed = False  # by us, since its last start
        self.wanted = False  # whether it is started again when it ends
        self.start_at = 0.0  # not before
        self.starts = 0

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return clean_environment()

    def output(self) -> Path:
        return self.folder / f"{self.name}.log"

    def start(self) -> None:
        self.killed = False
        self.starts += 1
        with open(self.folder / f"{self.name}.err", "ab") as err, open(self.output(), "ab") as out:
            err.write(f"--- start {self.starts} at {time.time():.3f}\n".encode())
            err.flush()
            self.child = subprocess.Popen(
                list(self.command()), env=self.environment(), stdin=subprocess.DEVNULL,
                stdout=out, stderr=err, preexec_fn=end_with_the_driver,
            )

    def alive(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def signal(self, number: int) -> bool:
        """Returns whether there was a process to send it to."""
        if not self.alive():
            return False
        self.child.send_signal(number)
        return True

    def kill(self) -> bool:
        """kill -9, also of a stopped process; returns when it is gone."""
        self.killed = True
        struck = self.signal(signal.SIGKILL)
        if self.child is not None:
            self.child.wait()
        return struck


class Server(Process):
    """One ballastd with its data directory; keeps its port over all its lives."""

    def __init__(
        self, binary: Path, number: int, folder: Path, data: Path, settings: Sequence[str] = ()
    ) -> None:
        """settings: further "section.field=value" of its configuration."""
        super().__init__(f"server-{number}", folder)
        self.binary, self.number, self.data, self.settings = binary, number, data, settings
        self.address = "127.0.0.1:0"
        self.failpoints = ""  # of the next start only

    def ready_file(self) -> Path:
        return self.folder / f"{self.name}.ready"

    def command(self) -> Sequence[str]:
        return [
            str(self.binary), f"--listen={self.address}", f"--id={self.number}",
            f"--peers-file={self.folder / 'peers.json'}", f"--data-dir={self.data}",
            f"--ready-file={self.ready_file()}", "--set=storage.checkpoint_rounds=3",
            *(f"--set={setting}" for setting in self.settings),
        ]

    def environment(self) -> dict[str, str]:
        armed, self.failpoints = self.failpoints, ""
        env = clean_environment() | TIMING
        return env | {"BALLAST_FAILPOINTS": armed} if armed else env

    def start(self) -> None:
        self.ready_file().unlink(missing_ok=True)
        super().start()

    def ready(self) -> bool:
        """Whether it listens; learns its address at the first start."""
        try:
            self.address = json.loads(self.ready_file().read_text())["address"]
        except (FileNotFoundError, json.JSONDecodeError):
            return False
        return True

    def last_words(self) -> str:
        """The last line of its log."""
        lines = (self.folder / f"{self.name}.err").read_text(errors="replace").splitlines()
        return lines[-1] if lines else ""


class Trainer(Process):
    """One seat of the job; every start is a new life."""

    def __init__(self, binary: Path, slot: int, folder: Path) -> None:
        super().__init__(f"trainer-{slot}", folder)
        self.binary, self.slot = binary, slot
        self.life = 0
        self.job: dict[str, str] = {}  # options of fault_trainer that all trainers have
        self.endpoints: list[str] = []

    def command(self) -> Sequence[str]:
        words = [str(self.binary), "--slot", str(self.slot), "--life", str(self.life)]
        for endpoint in self.endpoints:
            words += ["--endpoint", endpoint]
        for key, value in self.job.items():
            words += [f"--{key}", value]
        return words

    def start(self) -> None:
        self.life += 1
        super().start()

    def done(self) -> int:
        """The last round whose end this life has seen; 0 before the first."""
        try:
            path = Path(self.job["folder"]) / f"done-{self.slot}-{self.life}"
            return int.from_bytes(path.read_bytes(), "little")
        except (FileNotFoundError, KeyError):
            return 0
