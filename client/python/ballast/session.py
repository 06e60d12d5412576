"""One trainer's connection to its job: blocking calls of the C++ client, made interruptible.

Comes from: ballast.torch.membership, .rounds. Goes to: the extension module
(ballast.backend), ballast._exit_hooks.
Knows neither torch nor parameter groups: tensors are tuples, memory is integer addresses.
Thread safety: used by one thread at a time. A process forked from the owner gets Closed from every
call and never touches the connection.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ballast import _exit_hooks, backend, interrupts
from ballast.config import JobConfig
from ballast.errors import BallastError, Closed
from ballast.interrupts import SLICE_S
from ballast.pauses import PauseReporter, say

LEAVE_S = 10.0


class TensorSpec(NamedTuple):
    """A tensor of the job's manifest. dtype: "float32", "bfloat16" or "float16"."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    group: int
    aliases: tuple[str, ...]


def job_options(
    config: JobConfig, optimizer: tuple[str, dict[str, float]], schedule_groups: Sequence[int]
) -> Any:
    """The extension module's JobOptions. AttributeError, with its name, for a field it lacks."""
    options = backend.core().JobOptions()
    for name, value in config.for_core().items():
        setattr(options, name, value)
    options.optimizer, options.optimizer_options = optimizer
    if (schedule := config.lr_schedule) is not None:
        options.schedule = (
            schedule.name, schedule.arguments(), list(schedule_groups), schedule.groups
        )  # fmt: skip
    return options


class Session(interrupts.Interruptible):
    """An attached trainer. Create with `Session.attach`."""

    def __init__(
        self, client: Any, config: JobConfig, pauses: PauseReporter, gpu: Any = None
    ) -> None:
        self._client = client
        self._gpu = gpu
        self._pauses = pauses
        self._pid = os.getpid()
        self._end = ""  # why no further call is possible; empty: open
        self._told = ""  # reason of the last raised error: not to be said again at the end
        self.config = config

    @classmethod
    def attach(
        cls,
        config: JobConfig,
        optimizer: tuple[str, dict[str, float]],
        tensors: list[TensorSpec],
        weights: list[int],
        keep: Any,
        schedule_groups: Sequence[int] = (),
        gpu: Any = None,
    ) -> Session:
        """Attaches, uploads or receives the initial weights, and waits for the other trainers.

        optimizer: its name, and the job's fixed options. weights: one address per tensor,
        contiguous row-major memory of the tensor's dtype; read, and with init="broadcast" written
        on every rank but 0. keep: owner of that memory; it is held while the client may touch it,
        also when an interrupt ends the call early. In an existing job (`resumed`) that memory holds
        the servers' weights afterwards, on every rank. schedule_groups: per group of the
        tensors, the group of the configuration's lr_schedule that it belongs to. gpu: a
        ballast.torch.gpu.Gpu when some of the memory is a GPU's; its stream is noted before each
        call that lends memory.
        Raises the errors of ballast::client::Client::Attach (client/cpp/ballast/client.h).
        """
        began = time.monotonic()
        queue = backend.core().PauseQueue()
        pauses = PauseReporter(
            queue,
            config.rank,
            config.reconnect_timeout * config.time_scale,
            config.attach_timeout,
        )
        if gpu is not None:
            gpu.note_stream()
        operation = backend.core().start_attach(
            options=job_options(config, optimizer, schedule_groups),
            pauses=queue,
            tensors=[tuple(t) for t in tensors],
            weights=weights,
            gpu=None if gpu is None else gpu.handle,
        )
        interrupts.await_attach(operation, pauses, keep)
        session = cls(operation.result(), config, pauses, gpu)
        _exit_hooks.track(session)
        if session.resumed:
            took = f"{time.monotonic() - began:.1f} s"
            say(config.rank, f"job {config.job}: resumed at round {session.round + 1} ({took})")
        return session

    @property
    def ended(self) -> bool:
        return bool(self._end)

    @property
    def round(self) -> int:
        """Rounds finished so far, skipped ones included."""
        return int(self._client.round) - 1 if self._client is not None else 0

    @property
    def world(self) -> int:
        """Trainers that take part in the next round."""
        return int(self._client.world)

    @property
    def epoch(self) -> int:
        return int(self._client.epoch)

    def dealt(self) -> list[tuple[int, int, list[tuple[int, int, int]]]]:
        """Per extent (group, rank, [(tensor, first element, elements)]); see Client::dealt."""
        return list(self._client.dealt())

    @property
    def opt_step(self) -> int:
        """Rounds applied so far."""
        return int(self._client.opt_step)

    @property
    def resumed(self) -> bool:
        """Whether attach took a seat in an existing job."""
        return bool(self._client.resumed)

    @property
    def user_state(self) -> bytes:
        """In a resumed job, this seat's user state of the newest finished round; b"" for none."""
        return bytes(self._client.user_state)

    @property
    def policy(self) -> dict[str, Any]:
        """Loss scale and schedule before the next round: ballast::client::Policy by field.

        "rates" has (lr, beta1, beta2) per group of the newest round with gradients.
        """
        return dict(self._client.policy())

    @property
    def job_id(self) -> int:
        return int(self._client.job_id)

    def set_doing(self, phase: int, bucket: int, round: int) -> None:
        """Sets this rank's activity with its communicator, for the home; see ballast.rendezvous."""
        self._client.set_doing(phase, bucket, round)

    def counters(self) -> dict[str, int]:
        return dict(self._client.counters())

    def check_open(self) -> None:
        """Raises Closed when this session can take no call, with the reason."""
        if os.getpid() != self._pid:
            raise Closed(
                "this process was forked from the trainer: only the trainer process itself can use "
                "its Ballast optimizer",
                job=self.config.job,
                slot=self.config.rank,
            )
        if self._end:
            raise Closed(self._end, job=self.config.job, slot=self.config.rank)

    def step(
        self,
        hyper: list[tuple[float, ...]],
        grads: list[int],
        weights: list[int],
        user_state: bytes,
        keep: Any,
        loss_scale: float = 0.0,
        sums_of: int = 0,
    ) -> dict[str, Any]:
        """One round. hyper: the optimizer's numbers, in the wire's order, per service group.

        grads: address per tensor of its gradient, 0 for none. weights: address per tensor that
        receives its stepped weight. user_state: committed with the round (ballast.user_state).
        loss_scale: the factor on the gradients; 0: the job's static loss scale.
        sums_of: the epoch over whose members `grads` are sums; 0: none (Client::SetSumsOf). keep:
        owner of all that memory. Returns the RoundReport's fields. Raises as Client::Step of
        ballast::client; after an error in the round the weights may hold a mix of both versions.
        """
        given = (hyper, grads, weights, user_state, loss_scale, sums_of)
        return self._round(lambda: self._client.begin_step(*given), keep)

    def upload(self, weights: list[int], user_state: bytes, keep: Any) -> dict[str, Any]:
        """A round that makes the tensors at `weights` the service's; see Client::BeginUpload.

        They are read on the lowest rank, and written with equal or, after init="broadcast", the
        lowest rank's values on all. The other arguments and the result are those of step().
        """
        return self._round(lambda: self._client.begin_upload(weights, user_state), keep)

    def upload_state(
        self,
        array: int,
        low: bool,
        bits: list[int],
        weights: list[int],
        tensor_step: list[int],
        opt_step: int,
        schedule_index: int | None,
        user_state: bytes,
        keep: Any,
    ) -> dict[str, Any]:
        """A round that makes the bits at `bits` a plane of the state; Client::BeginStateUpload.

        array, low: which state array, in the service's order, and which half of 16-bit tensors.
        bits: address per tensor, 0 for those that lack the plane. weights: address per tensor that
        receives the weights after the round.
        tensor_step: the step counts from this round on, with opt_step the job's, and the position
        of its schedule, None: it stays; [] leaves all of them.
        The other arguments and the result are those of step().
        """
        return self._round(
            lambda: self._client.begin_state_upload(
                array=array,
                low=low,
                bits=bits,
                weights=weights,
                tensor_step=tensor_step,
                opt_step=opt_step,
                schedule_index=schedule_index,
                user_state=user_state,
            ),
            keep,
        )

    def _begin(self) -> None:
        # Before a call that lends memory. check_open: for the reason, if there is one.
        self.check_open()
        if self._gpu is not None:
            self._gpu.note_stream()

    def extend(
        self, tensors: list[TensorSpec], weights: list[int], schedule_groups: list[int], keep: Any
    ) -> None:
        """Appends tensors in new groups before the next round; see Client::Extend.

        schedule_groups: of the new groups, as for attach().
        """
        self._begin()
        specs, groups = [tuple(t) for t in tensors], schedule_groups
        groups = [] if self.config.lr_schedule is None else groups
        self._run(self._client.start_extend(specs, weights, self.config.init, groups), keep)

    def fetch_state(self, arrays: list[list[int]], keep: Any) -> list[int]:
        """Copies fp32 state into the given memory; returns the step count per tensor.

        arrays: per state array, in the service's order, an address per tensor (0: skip).
        """
        self._begin()
        return self._run(self._client.start_fetch_state(arrays), keep)

    def fetch_weights(self, weights: list[int], keep: Any) -> None:
        """Receives the current weights again into the given memory."""
        self._begin()
        self._run(self._client.start_fetch_weights(weights), keep)

    def snapshot(self, name: str, keep: int) -> int:
        """Keeps the present state under a name; returns the rounds it has. See Client::Snapshot."""
        return self.call(lambda client: client.start_snapshot(name, keep)) - 1

    def call(self, start: Callable[[Any], Any]) -> Any:
        """The result of `start(client)`, an operation that lends no memory."""
        self.check_open()
        return self._run(start(self._client), None)

    def leave(self) -> None:
        """Says that this trainer takes no further round. Idempotent; nothing in a forked child.

        A round that runs, as in a signal's handler, is broken off.
        """
        if self._end or os.getpid() != self._pid:
            return
        self._end = "the optimizer was closed"
        client = self._client
        try:
            operation = client.start_leave()
            deadline = LEAVE_S * self.config.time_scale
            waited = 0.0
            while not operation.wait(SLICE_S):
                waited += SLICE_S
                if waited >= deadline:
                    client.abort()
                    break
        except BaseException as error:
            client.abort()
            if not isinstance(error, BallastError) or error.reason != self._told:
                raise

    def leave_at_exit(self) -> None:
        """As leave(), when the process ends with exit code 0; else this trainer counts as lost."""
        if self._end or os.getpid() != self._pid:
            return
        self._end = "the script has ended"
        timeout_s = LEAVE_S * self.config.time_scale
        self._client.leave_at_exit(self.config.job, self._told, timeout_s)

    def abandon(self, why: str) -> None:
        """Closes the connection without Leave, so that the others see this trainer as lost."""
        if self._end or os.getpid() != self._pid:
            return
        self._end = why
        self._client.abort()
