"""Directories of ballast-run: which ones stay, which go, and which are left alone."""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ballast.launcher import servers, workspace
from launching import await_end, wait_for


def test_a_named_data_dir_stays_and_holds_logs(launcher):
    kept = launcher.folder / "kept"
    done = launcher.run("--data-dir", kept, "--dram-budget", "64MiB", launcher.script(""))
    assert done.returncode == 0, done.stderr
    assert (kept / "server-0").is_dir()
    assert (kept / "run" / "server-0.log").exists()
    assert launcher.events()[0].endswith(" 64MiB")
    # A second run over the same directory does not trip over the first one's files.
    assert launcher.run("--data-dir", kept, launcher.script("")).returncode == 0


def test_a_full_disk_is_named_before_the_servers_start(monkeypatch, tmp_path):
    usage = shutil.disk_usage(tmp_path)._replace(free=4096)
    monkeypatch.setattr(servers.shutil, "disk_usage", lambda path: usage)
    two = servers.Servers(Path("no-such-ballastd"), 2, tmp_path, None)
    wanted = rf"{tmp_path} has 4096 bytes free; 2 server\(s\) need 262144 "
    with pytest.raises(servers.LaunchError, match=wanted):
        two.start({}, lambda: False)
    assert two.children == []


def test_a_data_dir_in_use_is_refused_and_left_alone(launcher):
    kept = launcher.folder / "kept"
    script = launcher.script("import time; time.sleep(600)")
    first = launcher.start("--data-dir", kept, script)
    peers = kept / "run" / "peers.json"
    wait_for(peers, first)
    before = peers.read_text(), (kept / "run" / "server-0.log").stat().st_ino
    second = launcher.run("--data-dir", kept, script)
    assert second.returncode == 1
    assert f"{kept} is in use by another ballast-run" in second.stderr
    assert "Traceback" not in second.stderr
    assert before == (peers.read_text(), (kept / "run" / "server-0.log").stat().st_ino)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=60)
    # The end of the first run frees the directory.
    assert launcher.run("--data-dir", kept, launcher.script("")).returncode == 0


def test_a_data_dir_that_cannot_be_made_is_one_line(launcher):
    occupied = launcher.folder / "file"
    occupied.write_text("")
    for path in ("/proc/foo", occupied, occupied / "below"):
        done = launcher.run("--data-dir", path, launcher.script(""))
        assert done.returncode == 2
        assert re.fullmatch(
            rf"ballast-run: --data-dir {path}: cannot create .*; name a directory that .*\n",
            done.stderr,
        )
    assert launcher.events() == []


def test_a_temporary_directory_that_cannot_be_made_is_one_line(launcher):
    program = (
        "import sys, tempfile; from ballast import run; "
        f"tempfile.tempdir = {str(launcher.folder / 'missing')!r}; "
        f"sys.exit(run.main([{str(launcher.script(''))!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=launcher.env, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert re.fullmatch(r"ballast-run: no temporary directory \(.*\); set TMPDIR .*\n", done.stderr)


def test_what_a_killed_run_leaves_ends_with_it_and_is_removed_by_the_next(launcher):
    pids = launcher.folder / "pids"
    script = launcher.script(
        f"""
        import os, time
        with open({str(pids)!r} + os.environ["RANK"] + ".tmp", "w") as f:
            f.write(str(os.getpid()))
        os.rename({str(pids)!r} + os.environ["RANK"] + ".tmp", {str(pids)!r} + os.environ["RANK"])
        while True:
            time.sleep(0.05)
        """
    )
    child = launcher.start("--servers", 2, "--nproc", 2, script)
    marks = [Path(f"{pids}{rank}") for rank in "01"]
    for mark in marks:
        wait_for(mark, child)
    (left,) = launcher.temporary.glob("ballast-run-*")
    # While it lives, another run leaves its directory alone.
    assert launcher.run("--quiet", launcher.script("")).returncode == 0
    assert left.exists()
    child.kill()
    child.communicate(timeout=60)
    await_end([*launcher.server_pids(), *(int(mark.read_text()) for mark in marks)])
    assert left.exists()
    done = launcher.run(launcher.script(""))
    assert done.returncode == 0
    assert f"removed what killed runs left behind: {left}\n" in done.stderr
    assert not left.exists()


class Directories:
    """Directories as ballast-run makes them, in a temporary folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self, name: str, owner: str | None) -> Path:
        path = self.folder / name
        (path / "server-0").mkdir(parents=True)
        (path / "server-0" / "data").write_text("x")
        if owner is not None:
            (path / "owner").write_text(owner)
        return path


@pytest.fixture
def directories(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return Directories(tmp_path)


def ended_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    return child.pid


def test_only_directories_of_processes_that_have_ended_are_stale(directories):
    own_start = workspace.start_time(os.getpid())
    gone_pid = ended_process()
    stale = directories.make("ballast-run-ended", f"{gone_pid} 17\n")
    reused = directories.make("ballast-run-reused", f"{os.getpid()} {int(own_start) - 1}\n")
    kept = [
        directories.make("ballast-run-live", f"{os.getpid()} {own_start}\n"),
        directories.make("ballast-run-without-owner", None),
        directories.make("ballast-run-nonsense", "nobody"),
        directories.make("ballast-run-empty", ""),
        directories.make("other-ended", f"{gone_pid} 17\n"),
    ]
    target = directories.make("target", f"{gone_pid} 17\n")
    (directories.folder / "ballast-run-link").symlink_to(target)
    kept += [target, directories.folder / "ballast-run-link"]
    assert workspace.remove_stale() == [stale, reused]
    assert not stale.exists() and not reused.exists()
    assert all((path / "server-0" / "data").exists() for path in kept)


def test_a_locked_directory_is_not_stale_whatever_its_owner_file_says(directories):
    path = directories.make("ballast-run-locked", f"{ended_process()} 17\n")
    with open(path / "owner", "r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert workspace.remove_stale() == []
    assert workspace.remove_stale() == [path]


def test_directories_of_other_users_are_not_stale(directories, monkeypatch):
    path = directories.make("ballast-run-theirs", f"{ended_process()} 17\n")
    other = path.stat().st_uid + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    assert workspace.remove_stale() == []
    assert path.exists()


def test_a_workspace_is_locked_until_the_last_heir_of_its_lock_ends(directories):
    space = workspace.Workspace()
    assert workspace.remove_stale() == []
    (space.path / "owner").write_text(f"{ended_process()} 17\n")  # as if its maker had been killed
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(space.lock,)) as heir:
        os.close(space.lock)
        assert workspace.remove_stale() == []
        heir.stdin.close()
        heir.wait()
    assert workspace.remove_stale() == [space.path]


def test_a_workspace_removes_itself(directories):
    space = workspace.Workspace()
    (space.path / "run").mkdir()
    (space.path / "run" / "peers.json").write_text("{}")
    space.remove()
    assert list(directories.folder.iterdir()) == []
