"""collective="nccl": a communicator of Ballast's own among the trainers of a job, one per epoch.

    epoch -> id, over the job's home -> init of all ranks -> every rank is ready -> sums and shares
Where a rank is lost, all communicators of the process end, the call raises TrainerLost, and the
next step() makes a communicator of the newest epoch. See docs/nccl.md.
Comes from: ballast.torch.membership, .shares. Goes to: the extension module ballast._nccl and
ballast.rendezvous. Tested with a fake NCCL on tensors of the host; with NCCL by the GPU kit.
Thread safety: used by one thread at a time.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import torch

from ballast import _rank_liveness, collective_option
from ballast.config import JobConfig
from ballast.errors import BallastError, TrainerLost, Unsupported
from ballast.pauses import say
from ballast.rendezvous import Phase, Rendezvous
from ballast.session import SLICE_S, Session
from ballast.torch import gpu
from ballast.torch.collective import Agreement, Place

TAG = "gradients"
_DTYPES = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
# How often a rank that waits asks the home whether another rank has given the communicator up.
ASK_S = 1.0
ON_HOST = "BALLAST_NCCL_ON_HOST"
_AGAIN = (
    "This rank's gradients are as they were: call step() again, which waits for the rank's new "
    "process and makes a new communicator"
)


class _Over(Exception):
    """The communicator cannot be used any more: its epoch or its generation is over."""


@functools.cache
def _comms() -> Any:
    # All communicators of the process: they are aborted together.
    native = importlib.import_module("ballast._nccl")
    try:
        return native.open()
    except RuntimeError as error:
        raise Unsupported(_text(error)) from None


def check(tensors: list[tuple[str, torch.Tensor]]) -> None:
    """Unsupported unless these named tensors are all on a GPU and NCCL is there and new enough.

    BadArgument when BALLAST_COLLECTIVE_TIMEOUT is no time.
    """
    collective_option.timeout_s(os.environ)
    here = [name for name, tensor in tensors if not gpu.on_gpu(tensor)]
    # The fake NCCL of the tests takes memory of the host.
    if here and os.environ.get(ON_HOST) != "1":
        raise Unsupported(
            f'collective="nccl" needs all parameters on a GPU, and {here[0]!r} is on the CPU; give '
            "a process group of gloo for parameters on the CPU"
        )
    _comms()


class Nccl(Agreement):
    """The calls of one trainer on the communicator of its epoch, for tensors that check() takes.

    on: the GPU of the job's tensors; None: the host, with the fake NCCL of the tests.
    """

    recovers = True

    def __init__(self, config: JobConfig, session: Session, on: gpu.Gpu | None) -> None:
        self._waits_s = collective_option.timeout_s(os.environ)
        super().__init__(config, session, self._waits_s * config.time_scale)
        self._gpu = on
        self._comms = _comms()
        self._link: Any = None
        self._meeting: Rendezvous
        self._epoch, self._generation = 0, 0
        self._id, self._met = b"", False  # of the newest meeting; it is over, and all were ready
        self._asked = 0.0
        self._device = torch.device("cpu") if on is None else torch.device("cuda", on.ordinal)
        self._stream = 0 if on is None else gpu.current_stream(on.ordinal)

    def agree(self, present: list[bool], scale: float, places: Sequence[Place] = ()) -> list[bool]:
        """As Agreement.agree; makes a communicator where there is none of the present epoch."""
        self._connect()
        agreed = super().agree(present, scale, places)
        self.epoch = self._epoch  # of the communicator, which no later record changes
        return agreed

    def _everyones(self, mine: bytes) -> list[bytes]:
        given = torch.tensor(list(mine), dtype=torch.uint8, device=self._device)
        everyones = given.new_empty(self.world * given.numel())
        self._gather(everyones, given, 0, "the agreement", self._session.round + 1)
        return [bytes(row.tolist()) for row in everyones.cpu().view(self.world, -1)]

    def reduce_scatter(self, share: torch.Tensor, bucket: torch.Tensor, number: int) -> None:
        """Sums `bucket` over the ranks; part `rank` of it goes to `share`."""
        round = self._session.round + 1
        what = f"reduce-scatter of bucket {number} of round {round}"
        with self._during(what, Phase.REDUCE_SCATTER, number, round):
            self._link.reduce_scatter(
                bucket.data_ptr(), share.data_ptr(), share.numel(), _DTYPES[share.dtype], round,
                number,
            )  # fmt: skip

    def all_gather(self, bucket: torch.Tensor, share: torch.Tensor, number: int) -> None:
        """Puts every rank's `share` into its part of `bucket`."""
        where = f"all-gather of bucket {number}"
        self._gather(bucket, share, number, where, self._session.round, True)

    def _gather(
        self,
        bucket: torch.Tensor,
        share: torch.Tensor,
        number: int,
        where: str,
        round: int,
        applied: bool = False,
    ) -> None:
        bytes = share.numel() * share.element_size()
        phase = Phase.ALL_GATHER if applied else Phase.AGREEMENT
        with self._during(f"{where} of round {round}", phase, number, round, applied):
            self._link.all_gather(share.data_ptr(), bucket.data_ptr(), bytes, round, number)

    def _connect(self) -> None:
        if self._link is not None and self._epoch == self._session.epoch:
            return
        self._close()
        while self._link is None:
            if self._epoch != self._session.epoch:
                self._epoch, self._generation = self._session.epoch, 1
            try:
                self._link = self._begin()
            except _Over:
                self._close()
            except BallastError as error:
                self._close()
                if error.reason == "STALE_EPOCH":
                    self._await_epoch()
                elif error.reason != "RENDEZVOUS_ENDED":
                    self._generation += 1
                    raise
                else:
                    self._generation = max(self._generation + 1, self._newest())

    def _begin(self) -> Any:
        # A communicator that every rank has. Raises the meeting's errors, _Over and TrainerLost.
        began = time.monotonic()
        # The client stretches the time by time_scale itself.
        self._meeting = Rendezvous(self._session, self._generation, self._waits_s)
        self._meeting.doing(Phase.INIT)
        lowest = self.rank == 0
        given = self._comms.new_id() if lowest else b""
        id = self._id = self._meeting.exchange(TAG, given)
        self._met = False
        native = importlib.import_module("ballast._nccl")
        on = self._gpu
        memory = (
            native.host() if on is None else native.gpu(str(gpu.LIBRARY), on.ordinal, self._stream)
        )
        seat = (self.rank, self.world)
        try:
            link = native.Communicator(
                self._comms, memory, id, seat, self._epoch, self.timeout_s, self._look
            )
        except BallastError:
            raise
        except RuntimeError as error:
            self._fail("the init of the communicator", began, False, error)
        try:
            self._meeting.ready(TAG, id)
        except BaseException:
            link.close()
            raise
        self._met = True
        if lowest:
            say(0, f"NCCL {self._comms.version}: communicator of epoch {self._epoch} is ready")
        return link

    def _look(self) -> None:
        # While a call waits: whether it is of use still.
        self._session.check_open()
        if self._session.epoch != self._epoch:
            raise _Over(f"epoch {self._session.epoch} has begun")
        if time.monotonic() - self._asked >= ASK_S:
            self._asked = time.monotonic()
            try:
                call = self._roll_call()
            except BallastError as error:
                if _rank_liveness.is_away(error):
                    return
                if error.reason not in ("STALE_EPOCH", "RENDEZVOUS_ENDED"):
                    raise
                raise _Over(error.message) from None
            if call.ended and call.generation >= self._generation:
                raise _Over(call.ended)

    def _roll_call(self) -> Any:
        # A restarted home knows nothing of the meeting. Ranks may wait there for an id that the
        # lowest rank gave earlier, or for ranks already declared "ready".
        call = self._meeting.roll_call()  # First: it says soon when the home is away.
        if not self._met and self.rank == 0:
            self._meeting.exchange(TAG, self._id)
        if self._met and any(news.phase == Phase.INIT for news in call.ranks):
            self._meeting.ready(TAG, self._id)
        return call

    @contextlib.contextmanager
    def _during(
        self, what: str, phase: Phase, bucket: int, round: int, applied: bool = False
    ) -> Iterator[None]:
        # Around a call on the communicator: tells the home of it, and turns errors into
        # TrainerLost.
        if self._link is None:
            raise TrainerLost(f"there is no communicator ({what})", job=self._config.job)
        self._meeting.doing(phase, bucket, round)
        self._order_behind_torch()
        began = self._asked = time.monotonic()
        try:
            yield
        except (RuntimeError, _Over) as error:
            if isinstance(error, BallastError):
                self._leave()
                raise
            self._fail(what, began, applied, error)
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        # An id is never used twice: the next communicator is of another generation.
        self._close()
        self._generation += 1

    def _order_behind_torch(self) -> None:
        # The communicator's stream sees what torch's current one holds.
        if self._gpu is not None:
            # ExternalStream(0) is a new stream, not the default one.
            ours = (
                torch.cuda.ExternalStream(self._stream, device=self._device)
                if self._stream
                else torch.cuda.default_stream(self._device)
            )
            ours.wait_stream(torch.cuda.current_stream(self._device))

    def _fail(self, where: str, began: float, applied: bool, error: Exception) -> NoReturn:
        took = time.monotonic() - began
        found = _rank_liveness.look(self._session, self._epoch)
        self._give_up(f"rank {self.rank} has lost another in {where}")
        self._leave()
        outcome = "The service has applied the round" if applied else "The round was not applied"
        raise collective_option.lost(
            found.ranks,
            self._epoch,
            took,
            "; ".join([where, *_said(error), *found.notes]),
            f"{outcome}; nothing is lost",
            _AGAIN,
        ) from error

    def _give_up(self, why: str) -> None:
        # An ended epoch has no meeting to end.
        with contextlib.suppress(BallastError):
            self._meeting.give_up(TAG, why)

    def _newest(self) -> int:
        try:
            return int(self._meeting.roll_call().generation)
        except BallastError:
            return 0

    def _await_epoch(self) -> None:
        # The home has sealed the epoch; the next one is on its way to this trainer.
        while self._session.epoch == self._epoch:
            self._session.check_open()
            try:
                self._meeting.roll_call()  # Raises the error that ends the session meanwhile.
            except BallastError as error:
                if error.reason != "STALE_EPOCH" and not _rank_liveness.is_away(error):
                    raise
            time.sleep(SLICE_S)

    def _close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


def _text(error: Exception) -> str:
    # Without the code of the status, which the class says.
    text = str(error).strip()
    code, _, rest = text.partition(": ")
    return rest if code.isupper() and rest else text


def _said(error: Exception) -> list[str]:
    # What NCCL says, without the words around it, or that another job's communicator has failed;
    # [] when nothing was said in time.
    text = " ".join(_text(error).split())
    if text.startswith("another communicator of this process failed"):
        return [text.removesuffix("; take the step again")]
    found = re.search(r"NCCL \S+ says: .*", text)
    if found:
        return [found.group().removesuffix(")")]
    return [_text(error)] if isinstance(error, _Over) else []
