"""Other threads than the one that trains: calls wait for its rounds, and its rounds for calls."""

import os
import signal
import threading

import pytest
import torch
from torch import nn

import ballast
import ballast.torch as bt
from ballast.torch.turns import Turn


def stepped():
    p = nn.Parameter(torch.zeros(3))
    p.grad = torch.ones(3)
    opt = bt.AdamW([("w", p)])
    opt.step()
    return opt


CALLS = {
    "export_state": lambda opt: opt.export_state(),
    "snapshot": lambda opt: opt.snapshot("beside"),
    "fetch_weights": lambda opt: opt.fetch_weights(),
    "state_dict": lambda opt: opt.load_state_dict(opt.state_dict()),
    "upload_weights": lambda opt: opt.upload_weights(),
}


class Busy:
    """The connection of `opt` from now on: an error when two of its calls overlap, as the client's.

    `meanwhile(opt)` begins in another thread within the next call, which ends no earlier than it
    has had its chance.
    """

    def __init__(self, fake, opt, meanwhile):
        self.real, self.opt = fake.last, opt
        self.thread = threading.Thread(target=lambda: self._do(meanwhile))
        self.errors, self.busy, self.intruded = [], threading.Lock(), threading.Event()
        opt._membership.session._client = self

    def _do(self, call):
        try:
            call(self.opt)
        except ballast.BallastError as error:
            self.errors.append(error)

    def _begin(self):
        if not self.busy.acquire(blocking=False):
            self.intruded.set()
            raise ballast.BadArgument("round 2 is still running; Wait for it first")
        if not self.thread.ident:
            self.thread.start()
            self.intruded.wait(0.05)

    def __getattr__(self, name):
        found = getattr(self.real, name)
        if name == "wait":
            return lambda timeout_s: self._ended(found(timeout_s))
        if name.startswith("begin_"):
            return lambda *given: (self._begin(), found(*given))
        if not name.startswith("start_") or name == "start_leave":
            return found

        def start(*given):
            self._begin()
            operation = found(*given)
            waits = operation.wait
            operation.wait = lambda timeout_s: self._ended(waits(timeout_s))
            return operation

        return start

    def _ended(self, result):
        if result:
            self.busy.release()
        return result


@pytest.mark.parametrize("call", CALLS)
def test_another_threads_call_waits_for_the_round(fake, call):
    opt = stepped()
    busy = Busy(fake, opt, CALLS[call])
    opt.step()
    busy.thread.join(30)
    assert not busy.errors and opt.round == 2 + (call == "upload_weights")


@pytest.mark.parametrize("call", ["export_state", "fetch_weights"])
def test_a_round_waits_for_another_threads_call(fake, call):
    opt = stepped()
    busy = Busy(fake, opt, lambda opt: opt.step())
    CALLS[call](opt)
    busy.thread.join(30)
    assert not busy.errors and opt.round == 2


def wait_for_a_waiter(turn):
    for _ in range(10**5):
        if not turn._next.acquire(blocking=False):
            return
        turn._next.release()


def test_who_calls_in_a_loop_lets_others_in():
    turn = Turn()

    def other(order):
        with turn:
            order.append("other")

    for _ in range(20):
        order = []
        with turn:
            thread = threading.Thread(target=other, args=(order,))
            thread.start()
            wait_for_a_waiter(turn)
            with turn:  # as a signal's handler does
                order.append("first")
        with turn:
            order.append("again")
        thread.join(30)
        assert order == ["first", "other", "again"]


def test_a_forked_process_does_not_wait_for_a_thread_that_it_does_not_have(fake):
    opt = stepped()
    held, over = threading.Event(), threading.Event()

    def hold():
        with opt._turn:
            held.set()
            over.wait(60)

    # Forked from the main thread: a child frees what other threads had, and what torch keeps for
    # a thread that used DTensors is a process group, whose end would wait in a child forever.
    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(30)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        try:
            opt.step()
        except ballast.Closed:
            os._exit(0)
        finally:
            os._exit(1)
    ended = os.waitpid(child, 0)[1]
    over.set()
    holder.join()
    assert ended == 0

