"""Whom a round waits for, as ballast-run says it: once per straggle, with the owed extents."""

import os
import re
import subprocess
import sys
import threading

import pytest

from ballast.launcher.stragglers import Stragglers
from serving import REPO, built_ballastd

LATE_S = 3.0


def status(round_, *slots, name="job", phase="collect", state="running"):
    """A server's /statusz of one job. slots: (slot, state, owed extents)."""
    keys = ("slot", "state", "owed_extents")
    listed = [dict(zip(keys, slot, strict=True)) for slot in slots]
    job = {"name": name, "round": round_, "phase": phase, "state": state, "slots": listed}
    return {"jobs": [job]}


def test_a_trainer_is_late_after_a_while_and_told_of_once():
    watch = Stragglers(LATE_S)
    waiting = [status(7, (0, "done", 0), (1, "attached", 9))]
    assert watch.lines(waiting, 10.0) == []
    assert watch.lines(waiting, 12.9) == []
    line = "round 7 has waited 3 s for trainer 1, which has not begun it"
    assert watch.lines(waiting, 13.1) == [line]
    assert watch.lines(waiting, 60.0) == []


def test_what_is_owed_is_counted_over_all_servers():
    watch = Stragglers(LATE_S)
    one, two = status(1, (2, "pushing", 1)), status(1, (2, "pushing", 4))
    watch.lines([one, two], 0.0)
    text = "which owes the gradients of 5 extents"
    assert watch.lines([one, two], 4.0) == [f"round 1 has waited 4 s for trainer 2, {text}"]


def test_one_that_is_late_in_every_round_is_told_of_once_until_it_was_in_time():
    watch = Stragglers(LATE_S)
    told, now = [], 0.0
    for round_ in (1, 2, 3, 5):  # round 4 was over before anybody asked
        for _ in range(5):
            told += watch.lines([status(round_, (0, "pushing", 1))], now)
            now += 1.0
    assert [re.match(r"round (\d+)", line).group(1) for line in told] == ["1", "5"]


def test_waiting_is_counted_anew_for_every_round():
    watch = Stragglers(LATE_S)
    for i in range(20):
        assert watch.lines([status(i, (0, "attached", 1))], 2.0 * i) == []


@pytest.mark.parametrize(
    "job",
    [
        status(1, (0, "lost", 1)),  # the trainers say so themselves
        status(1, (0, "left", 1)),
        status(1, (0, "done", 0)),
        status(1, (0, "attached", 1), phase="idle"),
        status(1, (0, "attached", 1), state="attaching"),
        {"jobs": []},
    ],
)
def test_only_awaited_trainers_are_late(job):
    watch = Stragglers(LATE_S)
    assert watch.lines([job], 0.0) == watch.lines([job], 100.0) == []


def test_the_start_of_a_job_waits_for_trainers_that_have_not_come():
    watch = Stragglers(LATE_S)
    attaching = [status(0, (0, "attached", 0), (1, "absent", 0), state="attaching")]
    assert watch.lines(attaching, 0.0) == []
    line = "the job has waited 4 s for trainer 1, which has not attached"
    assert watch.lines(attaching, 4.0) == [line]
    assert watch.lines(attaching, 9.0) == []
    # Late once more, in round 1.
    assert watch.lines([status(1, (1, "attached", 1))], 10.0) == []


def test_a_trainer_that_takes_part_again_is_waited_for_anew():
    watch = Stragglers(LATE_S)
    watch.lines([status(3, (1, "attached", 1))], 0.0)
    watch.lines([status(3, (1, "lost", 1))], 2.0)
    assert watch.lines([status(3, (1, "attached", 1))], 60.0) == []


def test_a_round_waits_in_vain_for_a_trainer_that_is_over_and_has_not_left():
    watch, over = Stragglers(LATE_S), {1}.__contains__
    waiting = [status(7, (0, "done", 0), (1, "lost", 9), (2, "lost", 9))]
    assert watch.lines(waiting, 0.0, over) == []
    which = "trainer 1, which has ended with exit code 0 and has not left the job"
    assert watch.lines(waiting, 3.0, over) == [f"round 7 has waited 3 s for {which}"]
    assert watch.waits_in_vain(29.0, over) is None
    assert watch.waits_in_vain(30.0, over) == f"round 7 of job job waits in vain for {which}"
    for gone in ([(1, "left", 9)], [(1, "lost", 0)], []):  # it left, owes nothing, is no member
        assert watch.lines([status(7, (0, "pushing", 0), *gone)], 40.0, over) == []
        assert watch.waits_in_vain(99.0, over) is None


TRAIN = """
import os, sys, time, torch
import ballast.torch as bt

p = torch.nn.Parameter(torch.zeros(8))
opt = bt.AdamW([("p", p)], durability="none")
for step in range(4):
    p.grad = torch.ones(8)
    while os.environ["RANK"] == "1" and step == 2 and not os.path.exists(sys.argv[1]):
        time.sleep(0.02)
    opt.step()
"""


def test_ballast_run_says_whom_a_round_waits_for(tmp_path):
    ballastd, go_on, script = built_ballastd(), tmp_path / "go-on", tmp_path / "train.py"
    script.write_text(TRAIN)
    env = {**os.environ, "PYTHONPATH": str(REPO / "client" / "python")}
    command = [sys.executable, "-m", "ballast.run", "--nproc", "2", "--server-binary",
               str(ballastd), str(script), str(go_on)]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as run:
        limit = threading.Timer(60, go_on.touch)  # so that a run that says nothing ends, too
        limit.start()
        said = []
        for line in run.stderr:
            said.append(line)
            if "has waited" in line:
                go_on.touch()
        limit.cancel()
    assert run.returncode == 0, said
    late = [line for line in said if "has waited" in line]
    assert len(late) == 1, said
    assert re.fullmatch(
        r"ballast-run: round 3 has waited \d+ s for trainer 1, which has not begun it\n", late[0]
    )
