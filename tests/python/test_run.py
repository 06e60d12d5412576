"""ballast-run over a fake ballastd: environment, output, exit codes, nothing left behind."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from ballast.launcher import process, servers, trainers, workspace
from ballast.launcher.restarts import TrainerRestarts

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
        self.program = ["-m", "ballast.run"]

    def script(self, text: str) -> Path:
        path = self.folder / "train.py"
        path.write_text(textwrap.dedent(text))
        return path

    def start(self, *arguments: object) -> subprocess.Popen:
        command = [sys.executable, *self.program, *map(str, arguments)]
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


def await_end(pids: list[int]) -> None:
    """Waits until all these processes have ended; kills those that do not, and fails."""
    deadline = time.monotonic() + 60
    while left := [pid for pid in pids if not gone(pid)]:
        if time.monotonic() > deadline:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"{left} still run")
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
    assert sum(e.startswith("peers") and e.split()[2] == "2" for e in launcher.events()) == 2
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


def test_of_trainers_that_failed_the_first_one_counts(tmp_path):
    late = tmp_path / "late"
    wait = f"import os, time\nwhile not os.path.exists({str(late)!r}): time.sleep(0.01)\n"
    scripts = (wait + "os._exit(3)", "import os; os._exit(5)", wait + "os._exit(0)")
    group = trainers.Trainers(tmp_path / "none", [], False, tmp_path)
    group.children = [process.Child([sys.executable, "-c", s], os.environ) for s in scripts]
    group.children[1].wait()
    late.touch()
    for child in group.children:
        child.wait()
    assert process.by_end(group.children)[0] == 1
    assert (group.failed(), group.children[1].code()) == (1, 5)
    assert TrainerRestarts(group, 0, print).poll() == 1


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_trainers_then_servers(launcher, signum):
    started = launcher.folder / "started"
    script = launcher.script(
        f"""
        import os, signal, sys, time
        def stop(signum, frame):
            with open({str(launcher.trace)!r}, "a") as f:
                f.write(f"trainer {{signum}}\\n")
            sys.exit(0)
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, stop)
        open({str(started)!r}, "w").close()
        while True:
            time.sleep(0.05)
        """
    )
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored when the tests run in nohup
    child = launcher.start("--servers", 2, script)
    signal.signal(signal.SIGHUP, inherited)
    wait_for(started, child)
    child.send_signal(signum)
    child.communicate(timeout=60)
    assert child.returncode == 128 + signum
    ends = [e for e in launcher.events() if e.startswith(("trainer", "term"))]
    assert ends[0] == f"trainer {int(signum)}"
    assert sorted(ends[1:]) == ["term 0", "term 1"]


def test_under_nohup_a_hangup_does_not_end_the_run(launcher):
    started, go_on = launcher.folder / "started", launcher.folder / "go-on"
    script = launcher.script(
        f"""
        import os, time
        open({str(started)!r}, "w").close()
        while not os.path.exists({str(go_on)!r}):
            time.sleep(0.02)
        print("to the end")
        """
    )
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        child = launcher.start("--quiet", script)
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_for(started, child)
    child.send_signal(signal.SIGHUP)
    go_on.touch()
    assert child.communicate(timeout=60)[0] == "to the end\n"
    assert child.returncode == 0


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


FOREVER = "import time\nwhile True: time.sleep(0.05)"


@pytest.mark.parametrize("restarts", [0, 2])
def test_a_server_that_stays_down_is_reported_and_ends_the_run(launcher, restarts):
    launcher.env["FAKE_BALLASTD"] = "die"
    done = launcher.run("--max-server-restarts", restarts, launcher.script(FOREVER))
    assert done.returncode == 1
    assert re.search(r"server 0 ended with exit code 5.*out of luck", done.stderr, re.S)
    assert len(launcher.server_pids()) == 1 + restarts
    assert done.stderr.count("starting it again") == restarts
    assert ("(restart 2 of 2)" in done.stderr) == (restarts == 2)


def test_a_server_that_was_misused_is_not_started_again(launcher):
    launcher.env["FAKE_BALLASTD"] = "misused"
    done = launcher.run(launcher.script(FOREVER))
    assert done.returncode == 1
    assert "server 0 ended with exit code 2" in done.stderr
    assert len(launcher.server_pids()) == 1


def test_a_server_whose_state_is_lost_is_not_started_again(launcher):
    launcher.env["FAKE_BALLASTD"] = "lost"
    done = launcher.run("--max-server-restarts", 5, launcher.script(FOREVER))
    assert done.returncode == 1
    assert "server 0 is not started again: its state is lost" in done.stderr
    assert "its state is gone" in done.stderr
    assert len(launcher.server_pids()) == 1


# Ends when every server has found its peers as often as "starts" says.
UNTIL_STARTS = """
    import os, time
    starts = {starts}
    while sum(e.startswith("peers") for e in open({trace!r})) < starts:
        time.sleep(0.02)
"""


def test_a_server_that_ends_is_started_again_on_its_port_and_data(launcher):
    launcher.env["FAKE_BALLASTD"] = "die-once"
    script = launcher.script(UNTIL_STARTS.format(starts=4, trace=str(launcher.trace)))
    done = launcher.run("--servers", 2, "--data-dir", launcher.folder / "kept", script)
    assert done.returncode == 0, done.stderr
    addresses = {}
    for event in launcher.events():
        if event.startswith("peers"):
            addresses.setdefault(event.split()[1], []).append(event.split()[3])
    assert sorted(addresses) == ["0", "1"]
    for first, second in addresses.values():
        assert first == second
    for i in "01":
        log = launcher.folder / "kept" / "run" / f"server-{i}.log"
        assert log.read_text() == "out of luck\n"  # of the first life; the second one said nothing
        assert f"server {i} ended with exit code 5" in done.stderr
    assert "(restart 2 of 10)" in done.stderr


def test_a_killed_server_is_one_line_and_its_ready_file_is_the_new_ones(launcher):
    kept = launcher.folder / "kept"
    ready = kept / "run" / "ready-0.json"
    script = launcher.script(UNTIL_STARTS.format(starts=2, trace=str(launcher.trace)))
    child = launcher.start("--data-dir", kept, script)
    wait_for(ready, child)
    while not any(e.startswith("peers") for e in launcher.events()):
        time.sleep(0.02)
    os.kill(json.loads(ready.read_text())["pid"], signal.SIGKILL)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    line = "server 0 ended by SIGKILL; starting it again on its data and port (restart 1 of 10)"
    assert f"ballast-run: {line}\n" in err
    assert json.loads(ready.read_text())["pid"] == launcher.server_pids()[1]


# Fails as often as "fails" says, in the seat of rank 1.
FAILING = """
    import os, pathlib, sys
    rank, told = os.environ["RANK"], pathlib.Path({told!r})
    with told.open("a") as f:
        f.write(f"{{rank}} {{os.environ.get('BALLAST_RESUME')}} "
                f"{{os.environ.get('BALLAST_DURABILITY')}} {{os.environ['BALLAST_JOB']}}\\n")
    if rank == "1":
        print("life", told.read_text().count("1 auto"))
        if told.read_text().count("\\n1 ") + told.read_text().startswith("1 ") <= {fails}:
            sys.exit(7)
"""


def failing(launcher, fails):
    told = launcher.folder / "told"
    return told, launcher.script(FAILING.format(told=str(told), fails=fails))


def test_a_trainer_that_fails_is_started_again_in_its_seat(launcher):
    told, script = failing(launcher, 2)
    kept = launcher.folder / "kept"
    done = launcher.run("--nproc", 2, "--max-restarts", 3, "--data-dir", kept, script)
    assert done.returncode == 0, done.stderr
    lives = sorted(told.read_text().splitlines())
    assert [line.split()[:3] for line in lives] == [["0", "auto", "None"]] + 3 * [
        ["1", "auto", "None"]
    ]
    assert len({line.split()[3] for line in lives}) == 1  # the job's name
    assert [f"[1] life {i}" for i in (1, 2, 3)] == done.stdout.splitlines()
    for i in (1, 2):
        line = f"trainer 1 ended with exit code 7; starting it again in its seat (restart {i} of 3)"
        assert f"ballast-run: {line}\n" in done.stderr
    trainer = json.loads((kept / "run" / "trainer-1.json").read_text())
    assert (trainer["rank"], trainer["restarts"]) == (1, 2)
    assert json.loads((kept / "run" / "trainer-0.json").read_text())["restarts"] == 0


def test_a_trainer_whose_restarts_are_used_up_ends_the_run_with_its_code(launcher):
    told, script = failing(launcher, 9)
    done = launcher.run("--nproc", 2, "--max-restarts", 2, script)
    assert done.returncode == 7
    assert len(told.read_text().splitlines()) == 4
    assert "(restart 2 of 2)" in done.stderr and "trainer 1 failed" in done.stderr


@pytest.mark.parametrize(
    "text, told",
    [
        ("import ballast; raise ballast.StateLost('extent 3 of round 7')", "STATE_LOST: extent 3"),
        ("import ballast; raise ballast.SpecMismatch('lr')", "SPEC_MISMATCH: lr"),
        ("import ballast, no_such_module", "ModuleNotFoundError: No module named"),
        ("def broken(:", "SyntaxError: invalid syntax"),
    ],
)
def test_a_trainer_that_would_fail_again_is_not_started_again(launcher, text, told):
    done = launcher.run("--nproc", 2, "--max-restarts", 3, launcher.script(text))
    assert done.returncode == 1
    assert "is not started again: " + told in done.stderr
    assert "starting it again" not in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "import ballast; raise ballast.ServerLost('server 1')",
        "import ballast, os\nif os.fork() == 0: raise ballast.StateLost('')\nos.wait(); 1 / 0",
    ],
)
def test_a_trainer_that_may_succeed_is_started_again(launcher, text):
    done = launcher.run("--max-restarts", 1, launcher.script(text))
    assert done.returncode == 1
    assert "(restart 1 of 1)" in done.stderr and "not started again" not in done.stderr


# Each look at who failed ends only when all trainers have ended, which it has not seen.
LATE_LOOK = """
import sys
from ballast import run
from ballast.launcher.restarts import TrainerRestarts
look = TrainerRestarts.poll
def late(self):
    failed = look(self)
    for child in self._trainers.children:
        child._watcher.join()
    return failed
TrainerRestarts.poll = late
sys.exit(run.main(sys.argv[1:]))
"""


def test_a_trainer_that_fails_behind_the_look_at_it_is_started_again(launcher):
    program = launcher.folder / "late_look.py"
    program.write_text(LATE_LOOK)
    _, script = failing(launcher, 9)
    launcher.program = [str(program)]
    done = launcher.run("--nproc", 2, "--max-restarts", 2, script)
    assert done.returncode == 7
    assert "(restart 2 of 2)" in done.stderr and "trainer 1 failed" in done.stderr


def test_without_restarts_nothing_is_resumed(launcher):
    told, script = failing(launcher, 9)
    assert launcher.run("--nproc", 2, script).returncode == 7
    assert [line.split()[1:3] for line in told.read_text().splitlines()] == 2 * [["None", "None"]]


def test_what_the_user_says_of_resume_and_durability_stays(launcher):
    launcher.env.update(BALLAST_RESUME="must", BALLAST_DURABILITY="power")
    told, script = failing(launcher, 0)
    assert launcher.run("--max-restarts", 1, script).returncode == 0
    assert told.read_text().split()[1:3] == ["must", "power"]


def test_a_lone_trainer_that_was_killed_is_awaited(launcher):
    mark = launcher.folder / "mark"
    script = launcher.script(
        f"""
        import os, pathlib, signal
        mark = pathlib.Path({str(mark)!r})
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        print("again")
        """
    )
    done = launcher.run("--max-restarts", 1, script)
    assert (done.returncode, done.stdout) == (0, "again\n"), done.stderr
    assert "trainer 0 ended by SIGKILL; starting it again in its seat (restart 1" in done.stderr


def test_trainers_are_not_started_again_without_their_server(launcher):
    launcher.env["FAKE_BALLASTD"] = "die"
    script = launcher.script("import sys, time; time.sleep(0.5); sys.exit(3)")
    done = launcher.run("--max-restarts", 5, "--max-server-restarts", 0, script)
    assert done.returncode in (1, 3)
    assert "in its seat" not in done.stderr


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


def test_a_trainer_whose_file_cannot_be_written_is_started_again(launcher):
    # As on a full disk: nothing can take the file's place.
    script = launcher.script(
        "import os, pathlib, sys, time\n"
        "mark = pathlib.Path(os.environ['RUN_DIR'])\n"
        "if not (mark / 'trainer-0.json.d').exists():\n"
        "    (mark / 'trainer-0.json.d').mkdir()\n"
        "    (mark / 'trainer-0.tmp').mkdir()\n"
        "    sys.exit(3)\n"
    )
    kept = launcher.folder / "kept"
    launcher.env["RUN_DIR"] = str(kept / "run")
    done = launcher.run("--data-dir", kept, "--max-restarts", 1, script)
    assert done.returncode == 0, done.stderr
    assert "starting it again" in done.stderr


def test_servers_share_the_memory_of_the_machine(launcher):
    assert launcher.run("--servers", 3, launcher.script("")).returncode == 0
    budgets = {e.split()[3] for e in launcher.events() if e.startswith("start")}
    assert len(budgets) == 1
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    launcher.trace.unlink()
    launcher.env["BALLAST_STORAGE_MEMORY_BUDGET"] = "64MiB"  # ballastd reads it itself
    assert launcher.run(launcher.script("")).returncode == 0
    assert launcher.events()[0].endswith(" - -")
    assert 3 * (int(budgets.pop().removesuffix("MiB")) << 20) <= 0.8 * total


def test_the_share_follows_the_kernels_files(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  2000 kB\nMemAvailable:   1048576 kB\nBuffers:  1 kB\n")
    assert servers.memory_share(1, meminfo, tmp_path) == "819MiB"
    assert servers.memory_share(4, meminfo, tmp_path) == "204MiB"
    (tmp_path / "memory.current").write_text(f"{100 << 20}\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert servers.memory_share(2, meminfo, tmp_path) == "409MiB"
    (tmp_path / "memory.max").write_text(f"{600 << 20}\n")
    assert servers.memory_share(2, meminfo, tmp_path) == "200MiB"
    # What is not known, ballastd finds out itself, or says so.
    meminfo.write_text("MemTotal:  2000 kB\n")
    assert servers.memory_share(1, meminfo, tmp_path) is None
    assert servers.memory_share(1, tmp_path / "none", tmp_path) is None


def test_usage_errors_say_what_is_wrong(launcher):
    done = launcher.run(launcher.folder / "missing.py")
    assert (done.returncode, "no script" in done.stderr) == (2, True)
    done = launcher.run("--job", "bad name", launcher.script(""))
    assert (done.returncode, "bad name" in done.stderr) == (2, True)
    for count in ("-1", "many"):
        for option in ("--max-restarts", "--max-server-restarts"):
            done = launcher.run(option, count, launcher.script(""))
            assert (done.returncode, "0 for never" in done.stderr) == (2, True)
    for count in ("0", "-1", "many", "9" * 5000):
        done = launcher.run("--servers", count, launcher.script(""))
        assert (done.returncode, "1..1024" in done.stderr) == (2, True)
    done = launcher.run("--server-binary", launcher.folder / "nothing", launcher.script(""))
    assert (done.returncode, "is not an executable file" in done.stderr) == (2, True)
    done = launcher.run("--dram-budget", "4GB", launcher.script(""))
    assert (done.returncode, "'4GB': must be a size such as 4GiB" in done.stderr) == (2, True)


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


@pytest.mark.parametrize(
    "name", ["BALLAST_TIME_SCALE", "BALLAST_ATTACH_TIMEOUT", "BALLAST_RECONNECT_TIMEOUT"]
)
def test_a_bad_variable_is_one_line_before_anything_starts(launcher, name):
    launcher.env[name] = "x"
    done = launcher.run(launcher.script(""))
    assert done.returncode == 2
    error = rf"ballast-run: {name}='x': must be .*above 0 and at most \d+\n"
    assert re.fullmatch(error, done.stderr)
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


def test_a_child_whose_parent_died_before_it_was_told_ends_at_once():
    pid = os.fork()
    if pid == 0:
        process._end_with(os.getpid())()  # the parent it is to end with is not its own
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGTERM


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
