"""ballast-run over a fake ballastd: environment, output, exit codes, signals, refusals.

Restarts are in test_run_restarts.py, its directories in test_run_directories.py.
"""

import json
import os
import re
import signal
import sys
from types import SimpleNamespace

import pytest

from ballast import run
from ballast.launcher import process, program, servers, trainers
from ballast.launcher.restarts import TrainerRestarts
from launching import gone, wait_for


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


def test_a_round_that_waits_in_vain_ends_the_run(monkeypatch):
    monkeypatch.setattr(run, "FAILURE_GRACE_S", 0.0)
    said, nothing = [], lambda: None
    one = object.__new__(run._Run)  # as it supervises: two trainers run, no other thing happens
    one._interrupts = SimpleNamespace(count=0)
    one._server_restarts = SimpleNamespace(poll=nothing)
    one._trainer_restarts = SimpleNamespace(poll=nothing, pending=lambda: False)
    one._trainers = SimpleNamespace(running=lambda: True, failed=nothing)
    one._stragglers = SimpleNamespace(in_vain="round 2 waits in vain for trainer 1")
    one._say = said.append
    assert one._supervise() == 1
    assert said == ["round 2 waits in vain for trainer 1; the others have 0 s"]


def test_of_trainers_that_failed_the_first_one_counts(tmp_path):
    late = tmp_path / "late"
    wait = f"import os, time\nwhile not os.path.exists({str(late)!r}): time.sleep(0.01)\n"
    scripts = (wait + "os._exit(3)", "import os; os._exit(5)", wait + "os._exit(0)")
    group = trainers.Trainers(program.Program(("none",), True, "none"), False, tmp_path)
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


def test_workers_of_a_trainer_end_with_it(launcher):
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


def test_an_interrupt_during_start_up_is_obeyed(launcher):
    launcher.env["FAKE_BALLASTD"] = "mute"
    child = launcher.start(launcher.script(""))
    wait_for(launcher.trace, child)
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    assert child.returncode == 143


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
    # Unknown facts ballastd finds out itself, or says so.
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
