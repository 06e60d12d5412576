"""How a trainer ends: close, exit, crash, Ctrl-C, garbage, forks."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import ballast
import ballast.torch as bt

REPO = Path(__file__).resolve().parents[2]


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


def test_after_the_job_has_failed_there_is_nothing_to_leave(fake):
    opt = stepped()
    fake.last.wait_error = ballast.ServerLost("server 1 is gone", server=1)
    with pytest.raises(ballast.ServerLost):
        opt.step()
    opt.close()
    assert ("leave",) not in fake.last.calls
    assert fake.last.aborted


def test_an_interrupt_in_a_round_waits_until_the_memory_is_back(fake):
    opt = stepped()
    connection = fake.last
    waits = []

    def on_wait():
        waits.append(connection.aborted)
        if len(waits) == 1:
            raise KeyboardInterrupt
        if len(waits) == 3:
            connection.wait_error = ballast.BallastError("cancelled", code="CANCELLED")

    connection.polls = 10
    connection.on_wait = on_wait
    with pytest.raises(KeyboardInterrupt):
        opt.step()
    assert waits == [False, True, True]
    connection.on_wait = None
    with pytest.raises(ballast.Closed, match="interrupted"):
        opt.step()


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


# Without torch, so that a case costs a tenth of a second.
SCRIPT = """
import sys
sys.path.insert(0, {client!r})
from ballast import lifetime
from ballast.config import JobConfig
from ballast.session import Session

class Client:
    def start_leave(self):
        print("LEAVE", flush=True)
        return self
    def wait(self, timeout_s):
        return True
    def abort(self):
        print("ABORT", flush=True)

session = Session(Client(), JobConfig(("a:1",), "job", 1, 0), None)
lifetime.track(session)
{ending}
"""


def ending_of(ending: str) -> list[str]:
    script = SCRIPT.format(client=str(REPO / "client" / "python"), ending=ending)
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.stdout.split()


@pytest.mark.parametrize(
    "ending, expected",
    [
        ("", ["LEAVE"]),
        ("sys.exit(0)", ["LEAVE"]),
        ("session.leave()", ["LEAVE"]),
        ("raise ValueError('crash')", ["ABORT"]),
        ("raise KeyboardInterrupt", ["ABORT"]),
        ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass", ["LEAVE"]),
        ("import os\nos._exit(0)", []),
        # A child by os.fork() runs the exit handlers of its parent: it must say nothing.
        ("import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)", ["LEAVE"]),
    ],
)
def test_the_end_of_a_script_is_told_as_what_it_is(ending, expected):
    assert ending_of(ending) == expected
