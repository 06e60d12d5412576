"""Servers and trainers that ballast-run starts again, and those it does not."""

import json
import os
import re
import signal
import time

import pytest

from launching import wait_for

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
        ("import ballast; raise ballast.OverBudget('9 bytes')", "OVER_BUDGET: 9 bytes"),
        ("import ballast; raise ballast.OverQuota('4 of 4 seats')", "OVER_QUOTA: 4 of 4 seats"),
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


def test_a_trainer_that_fails_after_its_check_is_started_again(launcher):
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
