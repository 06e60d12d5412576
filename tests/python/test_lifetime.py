"""How a trainer ends: close, exit, crash, Ctrl-C, garbage, forks."""

import gc
import os
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn

import ballast
import ballast.torch as bt
from ballast import _exit_hooks
from real_training import CLIENT, fresh_job


def stepped():
    p = nn.Parameter(torch.zeros(3))
    p.grad = torch.ones(3)
    opt = bt.AdamW([("w", p)])
    opt.step()
    return opt


def test_close_leaves_once_and_ends_the_optimizer(fake):
    opt = stepped()
    opt.close()
    opt.close()
    assert fake.last.calls.count(("leave",)) == 1
    for call in (opt.step, opt.export_state, opt.fetch_weights):
        with pytest.raises(ballast.Closed, match="closed"):
            call()


def test_close_before_the_first_step_needs_no_server(fake):
    opt = bt.AdamW([nn.Parameter(torch.zeros(3))])
    opt.close()
    with pytest.raises(ballast.Closed):
        opt.step()
    assert not fake.attached


def test_a_forgotten_optimizer_leaves(fake):
    opt = stepped()
    del opt
    gc.collect()
    assert fake.last.calls[-1] == ("leave",)


def failed(fake, error):
    """An optimizer whose job has ended with that error in a step."""
    opt = stepped()
    fake.last.wait_error = fake.last.leave_error = error
    with pytest.raises(type(error)):
        opt.step()
    return opt


def test_an_error_that_a_step_has_raised_is_not_said_again(fake, capsys):
    opt = failed(fake, ballast.HyperparamMismatch("lr of slot 1 differs"))
    opt.close()
    assert fake.last.aborted
    opt = failed(fake, ballast.LayoutMismatch("slot 1 adds other tensors"))
    opt.close()
    assert fake.last.aborted
    assert capsys.readouterr().err == ""


def test_at_the_exit_neither(fake):
    opt = failed(fake, ballast.HyperparamMismatch("lr of slot 1 differs"))
    _exit_hooks._at_exit()
    assert fake.last.calls[-1] == ("leave_at_exit", "job", "HYPERPARAM_MISMATCH")
    with pytest.raises(ballast.Closed):
        opt.step()


def test_another_one_is(fake):
    opt = failed(fake, ballast.NonfiniteGradient("the round was halted"))
    fake.last.leave_error = ballast.ServerLost("server 1 is gone", server=1)
    with pytest.raises(ballast.ServerLost):
        opt.close()


def interrupted(fake, opt, times):
    """step() with Ctrl-C in its first waits; whether the client was aborted, by wait."""
    connection, waits = fake.last, []

    def on_wait():
        waits.append(connection.aborted)
        if len(waits) <= times:
            raise KeyboardInterrupt
        if connection.aborted and len(waits) == times + 2:
            connection.wait_error = ballast.BallastError("cancelled", code="CANCELLED")

    connection.polls = 2
    connection.on_wait = on_wait
    with pytest.raises(KeyboardInterrupt):
        opt.step()
    connection.on_wait = None
    return waits


def test_an_interrupted_round_that_ends_soon_is_whole(fake, capsys):
    opt = stepped()
    assert interrupted(fake, opt, 1) == [False] * 4
    assert "round 2 has 5 s to end" in capsys.readouterr().err
    assert opt.round == 2 and opt.last_report["round"] == 2
    assert opt.export_state()["state"][0]["step"] == 2
    opt.step()
    assert opt.round == 3 and len(fake.attached) == 1


def test_what_an_interrupted_round_ends_with_does_not_hide_the_interrupt(fake):
    opt = stepped()
    connection = fake.last

    def on_wait():
        connection.on_wait = None
        connection.wait_error = ballast.NonfiniteGradient("the round was halted")
        raise KeyboardInterrupt

    connection.on_wait = on_wait
    with pytest.raises(KeyboardInterrupt):
        opt.step()
    assert opt.skipped_steps == 1
    connection.wait_error = None
    opt.step()


AWAY = [("trainer_lost", 0, "", 2, 0.0, "gone", (1,))]


@pytest.mark.parametrize(("news", "times"), [([], 2), (AWAY, 1)], ids=["again", "away"])
def test_a_round_that_is_broken_off_gives_the_memory_back_and_the_state_can_be_had(
    fake, news, times
):
    """By a second interrupt, or because another trainer is away."""
    opt = stepped()
    fake.queue.news = news
    assert interrupted(fake, opt, times) == [False] * times + [True, True]
    with pytest.raises(ballast.Closed, match=r"interrupted during a round; opt.attach\(\) takes"):
        opt.step()
    fake.resumes = (1, 0.25, b"")
    (p,) = opt.param_groups[0]["params"]
    assert opt.export_state()["state"][0]["master"].tolist() == [0.25] * 3
    assert fake.last.options["resume"] == "must" and p.tolist() == [0.25] * 3
    opt.snapshot("now")
    opt.fetch_weights()
    for call in (opt.step, opt.upload_weights):  # The gradient is of other weights.
        with pytest.raises(ballast.Closed, match=r"call opt.attach\(\), and form new gradients"):
            call()
    assert opt.attach() is True
    opt.step()
    assert (len(fake.attached), opt.round) == (2, 2)


def test_micro_batches_of_a_round_that_is_broken_off_are_dropped(fake):
    p = nn.Parameter(torch.zeros(3))
    opt = bt.AdamW([("w", p)], accumulation_steps=2)
    for _ in range(2):
        p.grad = torch.ones(3)
        if opt.micro_steps:
            opt.attach()
            interrupted(fake, opt, 2)
        else:
            opt.step()
    fake.resumes = (0, 0.25, b"")
    opt.attach()
    assert opt.micro_steps == 0


def test_without_durability_an_interrupt_that_breaks_a_round_off_ends_the_job(fake):
    p = nn.Parameter(torch.zeros(3))
    p.grad = torch.ones(3)
    opt = bt.AdamW([("w", p)], durability="none")
    opt.step()
    interrupted(fake, opt, 2)
    for call in (opt.step, opt.attach, opt.export_state):
        with pytest.raises(ballast.Closed, match='durability="none" ends a job'):
            call()


def test_a_round_of_sums_ends_when_a_rank_is_away_for_too_long(fake):
    opt = stepped()
    opt._membership.session.need_these_processes(60.0)
    fake.last.polls = 1
    fake.queue.news = AWAY
    opt.step()  # It may come back yet.
    opt._membership.session.need_these_processes(0.0)
    fake.last.polls = 3
    with pytest.raises(ballast.TrainerLost, match="the push of round 3.*nothing is lost"):
        opt.step()
    assert fake.last.aborted


def test_a_signal_handler_runs_while_a_round_waits(fake):
    opt = stepped()
    connection = fake.last
    connection.polls = 3
    connection.on_wait = lambda: os.kill(os.getpid(), signal.SIGUSR1)
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    try:
        opt.step()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(seen) == 4


def test_a_forked_process_cannot_use_the_optimizer_and_ends_nothing(fake):
    opt = stepped()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            opt.close()
            opt.step()
        except ballast.Closed as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0 if ("leave",) not in fake.last.calls else 1)
    os.close(write)
    assert "forked" in os.read(read, 1000).decode()
    assert os.waitpid(child, 0)[1] == 0
    opt.step()


def test_data_loader_workers_after_the_first_step_change_nothing(fake):
    opt = stepped()
    loader = torch.utils.data.DataLoader(torch.arange(8), batch_size=2, num_workers=2)
    assert sum(len(b) for b in loader) == 8
    opt.step()
    assert ("leave",) not in fake.last.calls


# The trainer of rank 1, without torch, so that a case costs a tenth of a second.
SCRIPT = """
import ctypes, gc, os, sys, weakref
sys.path.insert(0, {client!r})
from ballast import _exit_hooks
from ballast.config import JobConfig
from ballast.session import Session, TensorSpec

class Owner: pass

weight = (ctypes.c_float * 8)()
config = JobConfig(({address!r},), {job!r}, 2, 1, durability="none", attach_timeout=60.0)
spec = TensorSpec("w", (8,), "float32", 0, ())
session = Session.attach(config, ("AdamW", {{}}), [spec], [ctypes.addressof(weight)], weight)
owner = Owner()  # as an optimizer owns its session
weakref.finalize(owner, _exit_hooks.end, session).atexit = False
{ending}
"""


def script_of(address: str, job: str, ending: str) -> str:
    return SCRIPT.format(client=str(CLIENT), address=address, job=job, ending=ending)


def first_trainer(address: str, job: str) -> bt.AdamW:
    """Rank 0, which step() attaches."""
    p = nn.Parameter(torch.zeros(8))
    p.grad = torch.ones(8)
    return bt.AdamW(
        [("w", p)], endpoints=address, job=job, world_size=2, rank=0, durability="none"
    )


def others_error(address: str, ending: str, rounds: int = 1) -> tuple[type, str]:
    """Rank 0's error when the script of rank 1 ends so, and that script's output. rounds: in
    the last of them at the latest."""
    job = fresh_job("ending")
    command = [sys.executable, "-c", script_of(address, job, ending)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        opt = first_trainer(address, job)
        with pytest.raises(ballast.BallastError) as caught:
            opt.attach()  # If the other is quick, its end is reported here.
            child.wait(timeout=60)
            for _ in range(rounds):
                opt.step()
        _, said = child.communicate(timeout=60)
    opt.close()
    return caught.type, said


LEFT, LOST = ballast.TrainerLeft, ballast.TrainerLost


@pytest.mark.parametrize(
    "ending, expected",
    [
        ("", LEFT),
        ("sys.exit(0)", LEFT),
        ("raise SystemExit", LEFT),
        ("session.leave()", LEFT),
        ("del owner", LEFT),
        ("del owner\nsys.exit(7)", LEFT),  # it has left by then
        ("sys.exit(7)", LOST),
        ("raise SystemExit('no more data')", LOST),
        ("exit(7)", LOST),
        ("raise ValueError('crash')", LOST),
        ("raise KeyboardInterrupt", LOST),
        ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass", LEFT),
        ("try:\n    sys.exit(7)\nexcept SystemExit:\n    pass", LEFT),
        ("os._exit(0)", LEFT),
        ("os._exit(7)", LOST),
        ("os.fork() or os._exit(0)\nos.wait()\nos._exit(7)", LOST),  # as a worker process ends
        # The exit frees the variables of a function before any exit handler runs.
        ("def main(owner):\n    globals().clear()\n    import sys; sys.exit(7)\nmain(owner)", LOST),
        ("def main(owner):\n    globals().clear()\n    import sys; sys.exit(0)\nmain(owner)", LEFT),
        # A child by os.fork() runs the exit handlers of its parent: it must say nothing.
        ("pid = os.fork()\nif pid: os.waitpid(pid, 0)\nelse: sys.exit(0)\nsys.exit(7)", LOST),
        ("pid = os.fork()\nif pid: os.waitpid(pid, 0)\nelse: sys.exit(7)", LEFT),
    ],
)
def test_the_end_of_a_script_is_told_as_what_it_is(shared_servers, ending, expected):
    (address,) = shared_servers(1)
    kind, said = others_error(address, ending)
    assert kind is expected
    assert "ballast:" not in said


# The round waits for rank 0, which begins none before this process has ended.
IN_A_ROUND = """
import signal
from ballast import interrupts
interrupts.FINISH_S = 0.0
gradient = (ctypes.c_float * 8)()
def at(signum, frame):
    {handler}
signal.signal(signal.SIGALRM, at)
signal.setitimer(signal.ITIMER_REAL, 0.01)
hyper = [(1e-3, 0.9, 0.999, 1e-8, 1e-2)]  # as rank 0's
try:
    session.step(hyper, [ctypes.addressof(gradient)], [ctypes.addressof(weight)], b"", gradient)
except interrupts.BallastError as error:
    assert error.reason == "CLOSED", error
"""


@pytest.mark.parametrize(
    "handler, expected",
    [
        ("sys.exit(0)", LEFT),
        ("sys.exit(7)", LOST),
        ("raise KeyboardInterrupt", LOST),
        ("session.leave()", LEFT),  # as opt.close()
        ("os._exit(0)", LEFT),
    ],
)
def test_the_end_in_the_middle_of_a_round_is_told_as_what_it_is(shared_servers, handler, expected):
    (address,) = shared_servers(1)
    kind, said = others_error(address, IN_A_ROUND.format(handler=handler), rounds=3)
    assert kind is expected
    assert "ballast:" not in said and "AssertionError" not in said


DIFFERING = """
from ballast.errors import HyperparamMismatch
gradient = (ctypes.c_float * 8)()
try:
    hyper = [(0.5, 0.9, 0.999, 1e-8, 0.0)]
    session.step(hyper, [ctypes.addressof(gradient)], [ctypes.addressof(weight)], b"", gradient)
except HyperparamMismatch:
    print("raised", file=sys.stderr)
"""


def test_the_exit_says_nothing_of_an_error_that_was_raised(shared_servers):
    (address,) = shared_servers(1)
    job = fresh_job("ending")
    command = [sys.executable, "-c", script_of(address, job, DIFFERING)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        opt = first_trainer(address, job)
        with pytest.raises(ballast.HyperparamMismatch):
            opt.step()
        assert child.communicate(timeout=60)[1] == "raised\n"
    assert child.returncode == 0
    opt.close()
