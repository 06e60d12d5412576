"""Ctrl-C in an attach over real servers: the process ends, and its seat is free again."""

import signal
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest
import torch
from torch import nn

import ballast
import ballast.torch as bt
from ballast import backend
from real_training import CLIENT, SMALL, in_threads

WAITING = """
import signal, sys
# Who starts the tests in the background of a script has them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {client!r})
import torch, ballast.torch as bt
from ballast import backend

class Announcing:
    JobOptions, PauseQueue = backend.core().JobOptions, backend.core().PauseQueue

    @staticmethod
    def start_attach(real=backend.core(), **arguments):
        operation = real.start_attach(**arguments)
        print("waiting", flush=True)
        return operation

backend.use(Announcing)
p = torch.nn.Parameter(torch.ones(8))
bt.AdamW([p], endpoints={endpoint!r}, job="j", world_size=2, rank=0).step()
"""


def test_ctrl_c_ends_a_trainer_that_waits_for_others(start_servers):
    script = WAITING.format(client=str(CLIENT), endpoint=start_servers(1)[0])
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "waiting\n"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert "KeyboardInterrupt" in err
    assert child.returncode in (1, -signal.SIGINT)


class Interrupted:
    """The extension module, whose start_attach is interrupted when `when(operation)` says so, in
    the thread that made this; for all others it is as it was."""

    def __init__(self, when):
        self.when, self.thread, self.real = when, threading.get_ident(), backend.core()

    def __getattr__(self, name):
        return getattr(self.real, name)

    def start_attach(self, **arguments):
        operation = self.real.start_attach(**arguments)
        if threading.get_ident() != self.thread:
            return operation
        when = self.when

        class Waited:
            stop, result = operation.stop, operation.result
            polls = 0

            def wait(self, timeout_s):
                self.polls += 1
                if self.polls == 1:
                    when(operation)
                    raise KeyboardInterrupt
                return operation.wait(timeout_s)

        return Waited()


def interrupted_attach(monkeypatch, endpoint, when, **arguments):
    p = nn.Parameter(torch.ones(8))
    opt = bt.AdamW([p], endpoints=endpoint, job="j", world_size=2, **arguments, **SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "_module", Interrupted(when))
        with pytest.raises(KeyboardInterrupt):
            opt.step()


def test_after_ctrl_c_in_an_attach_the_seat_is_free_again(start_servers, monkeypatch):
    endpoint = start_servers(1)[0]
    for _ in range(3):
        interrupted_attach(monkeypatch, endpoint, lambda _: time.sleep(0.3), rank=0)
    results = [None, None]

    def train(rank):
        p = nn.Parameter(torch.ones(8))
        opt = bt.AdamW([p], endpoints=endpoint, job="j", world_size=2, rank=rank, **SMALL)
        with closing(opt):
            opt.step()
            results[rank] = opt.round

    in_threads(lambda: train(0), lambda: train(1))
    assert results == [1, 1]


def test_ctrl_c_when_the_attach_has_just_ended_is_no_trainer_that_is_there(
    start_servers, monkeypatch
):
    endpoint = start_servers(1)[0]
    errors = []

    def other():
        p = nn.Parameter(torch.ones(8))
        one = {"world_size": 2, "rank": 1, "durability": "none"}
        opt = bt.AdamW([p], endpoints=endpoint, job="j", **one, **SMALL)
        try:
            opt.step()
        except ballast.BallastError as error:
            errors.append(error)

    def ended(operation):
        while not operation.wait(1.0):
            pass

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    interrupted_attach(monkeypatch, endpoint, ended, rank=0, durability="none")
    thread.join(30)
    assert not thread.is_alive()
    assert [(type(error), error.slot) for error in errors] == [(ballast.TrainerLost, 0)]
