"""The temporary directory of one ballast-run, and the removal of those that killed runs left.

Comes from: ballast.run. Goes to: launcher.servers (data and logs of the servers). Linux only.
The file "owner" in a directory holds "<pid> <start time>" of its ballast-run, the time in clock
ticks since boot (field 22 of /proc/<pid>/stat). ballast-run and its servers hold a lock (flock) on
the file, which ends with the last of them; it also speaks for processes that cannot be seen from
here, in another container or on another machine that shares the directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

PREFIX = "ballast-run-"
OWNER = "owner"


class Workspace:
    """A new temporary directory, `path`; remove() it at the end."""

    def __init__(self) -> None:
        """OSError when there is no directory for temporary files, or it cannot be written."""
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        # Locked before it has its name: no process finds it without its lock.
        unnamed = self.path / f"{OWNER}.tmp"
        self._lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        pid = os.getpid()
        os.write(self._lock, f"{pid} {start_time(pid)}\n".encode())
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return  # a file system without locks: no owner file, so no launch removes it
        os.rename(unnamed, self.path / OWNER)

    @property
    def lock(self) -> int:
        """The file descriptor of the lock, to be inherited by a process that uses the directory."""
        return self._lock

    def remove(self) -> None:
        """Removes the directory and its contents, as far as possible."""
        _remove(self.path)
        os.close(self._lock)


def remove_stale() -> list[Path]:
    """Removes directories left by ended runs; returns their paths.

    Left alone are directories without an owner file, of other users, and of live processes. Never
    raises: a directory that cannot be judged stays.
    """
    folder = Path(tempfile.gettempdir())
    try:
        candidates = [p for p in folder.iterdir() if p.name.startswith(PREFIX)]
    except OSError:
        return []
    return [path for path in sorted(candidates) if _remove_if_stale(path)]


def start_time(pid: int) -> str | None:
    """When the process started, in clock ticks since boot; None when it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold blanks
    return None if fields[0] in "ZX" else fields[19]


def _remove_if_stale(path: Path) -> bool:
    try:
        info = path.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
            return False
        owner = os.open(path / OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        pid, started = os.read(owner, 64).decode().split()
        if os.fstat(owner).st_nlink == 0 or start_time(int(pid)) == started:
            return False
        _remove(path)
    except (OSError, ValueError):
        return False
    finally:
        os.close(owner)
    return not path.exists()


def _remove(path: Path) -> None:
    # The owner file goes last, so that an interrupted removal can be repeated.
    with contextlib.suppress(OSError):
        for entry in path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != OWNER:
                entry.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
