"""ballast-run over a fake ballastd: environment, output, exit codes, nothing left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from ballast.launcher import servers, trainers

HERE = Path(__file__).resolve().parent
CLIENT = HERE.parents[1] / "client" / "python"


class Launcher:
    """Runs ballast-run in `folder` on scripts written there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trace = folder / "trace"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.server = folder / "ballastd"
        program = HERE / "fake_ballastd.py"
        self.server.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
        self.server.chmod(0o755)
        self.env = {
            **os.environ,
            "PYTHONPATH": str(CLIENT),
            "BALLAST_BALLASTD": str(self.server),
            "FAKE_BALLASTD_TRACE": str(self.trace),
            "TMPDIR": str(self.temporary),
        }
        self.env.pop("OMP_NUM_THREADS", None)

    def script(self, text: str) -> Path:
        path = self.folder / "train.py"
        path.write_text(textwrap.dedent(text))
        return path

    def start(self, *arguments: object) -> subprocess.Popen:
        command = [sys.executable, "-m", "ballast.run", *map(str, arguments)]
        return subprocess.Popen(
            command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *arguments: object) -> subprocess.CompletedProcess:
        child = self.start(*arguments)
        out, err = child.communicate(timeout=60)
        return subprocess.CompletedProcess(child.args, child.returncode, out, err)

    def events(self) -> list[str]:
        return self.trace.read_text().splitlines() if self.trace.exists() else []

    def server_pids(self) -> list[int]:
        return [int(e.split()[2]) for e in self.events() if e.startswith("start")]


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def wait_for(path: Path, child: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def launcher(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    assert all(gone(pid) for pid in launcher.server_pids())
    assert not list(launcher.temporary.glob("ballast-run-*"))


def test_trainers_get_their_environment(launcher):
    script = launcher.script(
        """
        import json, os, sys
        keys = ("RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT "
                "BALLAST_ENDPOINTS BALLAST_JOB BALLAST_ADMIN OMP_NUM_THREADS").split()
        print(json.dumps({**{k: os.environ[k] for k in keys}, "argv": sys.argv[1:]}))
        """
    )
    done = launcher.run("--servers", 2, "--nproc", 2, script, "--lr", "3", "--", "-x")
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert [line[:4] for line in lines] == ["[0] ", "[1] "]
    first, second = (json.loads(line[4:]) for line in lines)
    assert (first["RANK"], second["RANK"]) == ("0", "1")
    assert (first["LOCAL_RANK"], second["LOCAL_RANK"]) == ("0", "1")
    for key in ("BALLAST_JOB", "BALLAST_ENDPOINTS", "MASTER_PORT"):
        assert first[key] == second[key]
    assert first["WORLD_SIZE"] == first["LOCAL_WORLD_SIZE"] == "2"
    assert first["argv"] == ["--lr", "3", "--", "-x"]
    assert len(first["BALLAST_ENDPOINTS"].split(",")) == len(first["BALLAST_ADMIN"].split(",")) == 2
    assert first["BALLAST_JOB"].startswith("train-")
    assert int(first["OMP_NUM_THREADS"]) == max(1, len(os.sched_getaffinity(0)) // 2)
    assert sum(e.startswith("peers") and e.endswith(" 2") for e in launcher.events()) == 2
    assert sorted(e for e in launcher.events() if e.startswith("term")) == ["term 0", "term 1"]


def test_one_trainer_keeps_its_streams_as_they_are(launcher):
    script = launcher.script("import sys; print('out'); print('err', file=sys.stderr)")
    done = launcher.run("--quiet", script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "err\n")


def test_prefixes_mark_whole_lines_of_both_streams(launcher):
    script = launcher.script(
        """
        import os, sys
        rank = os.environ["RANK"]
        for i in range(200):
            print("out", rank, i)
            print("err", rank, i, file=sys.stderr)
        sys.stdout.write("no newline " + rank)
        """
    )
    done = launcher.run("--quiet", "--nproc", 2, script)
    for stream, word in ((done.stdout, "out"), (done.stderr, "err")):
        lines = stream.splitlines()
        for rank in "01":
            mine = [line for line in lines if line.startswith(f"[{rank}] {word}")]
            assert mine == [f"[{rank}] {word} {rank} {i}" for i in range(200)]
    assert {"[0] no newline 0", "[1] no newline 1"} <= set(done.stdout.splitlines())
    plain = launcher.run("--quiet", "--nproc", 2, "--no-prefix", script)
    assert "[" not in plain.stdout


@pytest.mark.parametrize(
    "text, code",
    [
        ("", 0),
        ("raise SystemExit(7)", 7),
        ("1 / 0", 1),
        ("import os; os.kill(os.getpid(), 9)", 137),
    ],
)
def test_the_exit_code_is_the_scripts(launcher, text, code):
    assert launcher.run(launcher.script(text)).returncode == code


def test_one_failing_trainer_stops_the_others(launcher, monkeypatch):
    marker = launcher.folder / "stopped"
    script = launcher.script(
        f"""
        import os, signal, sys, time
        if os.environ["RANK"] == "1":
            sys.exit(5)
        signal.signal(signal.SIGTERM, lambda *_: (open({str(marker)!r}, "w").close(), sys.exit(9)))
        while True:
            time.sleep(0.05)
        """
    )
    done = launcher.run("--nproc", 2, script)
    assert done.returncode == 5
    assert marker.exists()
    assert "trainer 1 failed" in done.stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_trainers_then_servers(launcher, signum):
    started = launcher.folder / "started"
    script = launcher.script(
        f"""
        import os, signal, sys, time
        def stop(signum, frame):
            with open({str(launcher.trace)!r}, "a") as f:
                f.write(f"trainer {{signum}}\\n")
            sys.exit(0)
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGTERM, stop)
        open({str(started)!r}, "w").close()
        while True:
            time.sleep(0.05)
        """
    )
    child = launcher.start("--servers", 2, script)
    wait_for(started, child)
    child.send_signal(signum)
    child.communicate(timeout=60)
    assert child.returncode == 128 + signum
    ends = [e for e in launcher.events() if e.startswith(("trainer", "term"))]
    assert ends[0] == f"trainer {int(signum)}"
    assert sorted(ends[1:]) == ["term 0", "term 1"]


def test_a_second_interrupt_kills_what_does_not_listen(launcher):
    started = launcher.folder / "started"
    script = launcher.script(
        f"""
        import os, signal, time
        signal.signal(signal.SIGINT, lambda *_: open({str(started)!r} + "2", "w").close())
        open({str(started)!r}, "w").close()
        while True:
            time.sleep(0.05)
        """
    )
    child = launcher.start(script)
    wait_for(started, child)
    child.send_signal(signal.SIGINT)
    wait_for(launcher.folder / "started2", child)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    assert child.returncode == 130


def test_workers_left_behind_by_a_trainer_end_with_it(launcher):
    pid_file = launcher.folder / "pid"
    script = launcher.script(
        f"""
        import os, time
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
        open({str(pid_file)!r}, "w").write(str(pid))
        """
    )
    assert launcher.run("--nproc", 2, "--quiet", script).returncode == 0
    assert gone(int(pid_file.read_text()))


def test_a_server_that_does_not_start_is_reported_with_its_log(launcher):
    launcher.env["FAKE_BALLASTD"] = "fail"
    done = launcher.run(launcher.script("print('never')"))
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.search(r"server 0 ended with exit code 3.*no such disk", done.stderr, re.S)


def test_a_server_that_dies_is_reported_and_ends_the_run(launcher):
    launcher.env["FAKE_BALLASTD"] = "die"
    script = launcher.script("import time\nwhile True: time.sleep(0.05)")
    done = launcher.run(script)
    assert done.returncode == 1
    assert re.search(r"server 0 ended with exit code 4.*out of luck", done.stderr, re.S)


def test_an_interrupt_during_start_up_is_obeyed(launcher):
    launcher.env["FAKE_BALLASTD"] = "mute"
    child = launcher.start(launcher.script(""))
    wait_for(launcher.trace, child)
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    assert child.returncode == 143


def test_a_named_data_dir_stays_and_holds_logs(launcher):
    kept = launcher.folder / "kept"
    done = launcher.run("--data-dir", kept, "--dram-budget", "64MiB", launcher.script(""))
    assert done.returncode == 0, done.stderr
    assert (kept / "server-0").is_dir()
    assert (kept / "run" / "server-0.log").exists()
    assert launcher.events()[0].endswith(" 64MiB")
    # A second run over the same directory does not trip over the first one's files.
    assert launcher.run("--data-dir", kept, launcher.script("")).returncode == 0


def test_usage_errors_say_what_is_wrong(launcher):
    done = launcher.run(launcher.folder / "missing.py")
    assert (done.returncode, "no script" in done.stderr) == (2, True)
    done = launcher.run("--job", "bad name", launcher.script(""))
    assert (done.returncode, "bad name" in done.stderr) == (2, True)
    done = launcher.run("--servers", "0", launcher.script(""))
    assert (done.returncode, "1..1024" in done.stderr) == (2, True)
    done = launcher.run("--server-binary", launcher.folder / "nothing", launcher.script(""))
    assert (done.returncode, "is not an executable file" in done.stderr) == (1, True)


def test_without_ballastd_the_error_says_how_to_build_it(tmp_path, monkeypatch):
    monkeypatch.setattr(servers, "__file__", str(tmp_path / "a/b/c/d/servers.py"))
    with pytest.raises(servers.LaunchError, match="--server-binary"):
        servers.find_ballastd(None, {"PATH": str(tmp_path)})


def test_an_outer_launchers_seat_is_not_inherited():
    base = {"BALLAST_RANK": "5", "BALLAST_WORLD_SIZE": "9", "OMP_NUM_THREADS": "3", "HOME": "/x"}
    env = trainers.environment(
        base, 1, 2, endpoints=["a:1"], admin=[], job="j", master_port=7
    )
    assert "BALLAST_RANK" not in env and "BALLAST_WORLD_SIZE" not in env
    assert (env["OMP_NUM_THREADS"], env["HOME"], env["RANK"]) == ("3", "/x", "1")
