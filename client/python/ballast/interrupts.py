"""Interrupts (Ctrl-C) in the middle of a call: neither memory nor state is lost.

Comes from: ballast.session, ballast.torch.membership. Goes to: operations of the extension module.
Thread safety: one thread at a time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from ballast import collective_option
from ballast.config import JobConfig
from ballast.errors import BallastError
from ballast.pauses import PauseReporter

# Waits are cut into slices so that Python runs its signal handlers in between.
SLICE_S = 0.1
# After an interrupt in a round, how long to wait for its end.
FINISH_S = 5.0
# And then until the client has given the lent memory back.
DRAIN_S = 5.0

INTERRUPTED = "the optimizer was interrupted during a round"

# Calls that did not end after an interrupt, with the memory they may still touch: never freed.
_abandoned: list[Any] = []


def drain(wait: Callable[[float], Any], held: Any) -> bool:
    """Waits for the end of a call already asked to end; True: it ended well. Otherwise keeps `held`
    forever."""
    waited = 0.0
    while waited < DRAIN_S:
        try:
            if wait(SLICE_S):
                return True
        except BallastError:
            return False
        waited += SLICE_S
    _abandoned.append(held)
    return False


def await_attach(operation: Any, pauses: PauseReporter, keep: Any) -> None:
    """Waits for an attach and tells of pauses meanwhile; after an interrupt gives the seat back."""
    try:
        while not operation.wait(SLICE_S):
            pauses.tell()
    except BallastError:
        raise
    except BaseException:
        # The seat must be free again: for another try here, and for the message to the others.
        operation.stop()
        if drain(operation.wait, (operation, keep)):
            operation.result().abort()
        raise
    finally:
        pauses.tell()


def finish(
    wait: Callable[[float], Any], pauses: PauseReporter, round: int
) -> dict[str, Any] | None:
    """The report of the interrupted round, if that ends within FINISH_S seconds; else None.

    Does not wait while a server or another trainer is away. wait: of the client, whose errors pass
    through. A second interrupt ends the wait.
    """
    waited = 0.0
    pauses.tell()
    while waited < FINISH_S and not pauses.someone_is_away:
        report = wait(SLICE_S)
        if report is not None:
            return report
        pauses.tell()
        if waited == 0.0:
            pauses.say(f"interrupted; round {round} has {FINISH_S:g} s to end, or is broken off")
        waited += SLICE_S
    return None


def may_return(config: JobConfig) -> bool:
    """Whether a trainer whose call was interrupted may take its seat in the job again.

    Without durability the job ends with it, and of a collective the others' calls are broken off.
    """
    return config.durability != "none" and config.collective is None


def ends_well(interrupt: BaseException | None) -> bool:
    """Whether it is the end of a script with exit code 0, which leaves the job: sys.exit(0)."""
    return isinstance(interrupt, SystemExit) and interrupt.code in (None, 0)


def end_of(config: JobConfig) -> str:
    """Why the session of an interrupted call takes no further one, and what to do."""
    if may_return(config):
        what = "opt.attach() takes its seat again and brings the weights of the finished rounds"
    elif config.durability == "none":
        what = 'durability="none" ends a job with its first lost trainer; begin a new one'
    else:
        what = 'with collective= its seat stays empty; start all trainers with resume="must"'
    return f"{INTERRUPTED}; {what}"


class Interruptible:
    """The part of ballast.session.Session that waits for the client.

    Session sets the attributes declared here.
    """

    config: JobConfig
    _client: Any
    _pauses: PauseReporter
    _told: str
    _pid: int

    _interrupted = False
    _others_away_max_s: float | None = None  # after that a round is aborted; None: never
    # Whether interrupts wait for the end of interrupts_last(), and the waiting one.
    _holds = False
    _held: BaseException | None = None

    @property
    def interrupted(self) -> bool:
        """Whether an interrupt has ended it in a call, and the job waits for its trainer."""
        return os.getpid() == self._pid and self._interrupted and may_return(self.config)

    def need_these_processes(self, away_max_s: float) -> None:
        """From now on a round ends when another trainer is away for this many seconds."""
        self._others_away_max_s = away_max_s

    @contextlib.contextmanager
    def interrupts_last(self) -> Iterator[None]:
        """Around a round and its consequences: an interrupt that did not abort the round is raised
        at the end."""
        self._holds = True
        try:
            yield
        finally:
            held, self._holds, self._held = self._held, False, None
            if held is not None:
                raise held

    def _round(self, begin: Callable[[], None], keep: Any) -> dict[str, Any]:
        self._begin()
        report = None
        try:
            begin()
            while report is None:
                report = self._client.wait(SLICE_S)
                self._pauses.tell()
                if report is None:
                    self._give_up_on_the_lost(keep)
        except BallastError as error:
            self._told = error.reason
            raise
        except BaseException as interrupt:
            report = self._finished(interrupt, keep)
        finally:
            self._pauses.tell()
        return dict(report)

    def _finished(self, interrupt: BaseException, keep: Any) -> dict[str, Any]:
        """The report of the interrupted round, if it ends soon, or its error.

        `interrupt` is raised later then, see interrupts_last(), and nothing is lost, neither here
        nor for the others. Else it is raised, and ends the session; in a job with a collective at
        once, since the others may wait for a call of this trainer's.
        """
        report = None
        try:
            if self.config.collective is None:
                report = finish(self._client.wait, self._pauses, self.round + 1)
        except BallastError:
            self._held = interrupt if self._holds else None
            raise
        except BaseException:
            pass  # the second interrupt
        if report is None:
            self._interrupt(self._client.wait, keep, interrupt)
        if report is None or not self._holds:
            raise interrupt
        self._held = interrupt
        return report

    def _give_up_on_the_lost(self, keep: Any) -> None:
        limit = self._others_away_max_s
        lost = None if limit is None else self._pauses.lost_for(limit)
        if lost is None:
            return
        epoch, round = self.epoch, self.round + 1
        self._interrupt(self._client.wait, keep)
        outcome = f"The servers wait for the sums of round {round}; nothing is lost"
        where = f"the push of round {round}"
        raise collective_option.lost([lost[0]], epoch, lost[1], where, outcome)

    def _run(self, operation: Any, keep: Any) -> Any:
        try:
            while not operation.wait(SLICE_S):
                self._pauses.tell()
        except BallastError as error:
            self._told = error.reason
            raise
        except BaseException as interrupt:
            self._interrupt(operation.wait, keep, interrupt)
            raise
        finally:
            self._pauses.tell()
        return operation.result()

    def _interrupt(self, wait: Any, keep: Any, by: BaseException | None = None) -> None:
        # Lent memory must not be freed or changed before the client has let go of it.
        if ends_well(by):
            with contextlib.suppress(BallastError):  # the script has to see `by`
                self.leave()
        else:
            self.abandon(end_of(self.config))
            self._interrupted = True
        drain(wait, (self._client, keep))
