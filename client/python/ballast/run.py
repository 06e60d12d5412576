"""ballast-run: a script on N trainers, here or on several hosts, with M local state servers.

Comes from: the shell. Goes to: launcher.servers, launcher.trainers, launcher.stragglers.
Exit code: 0 when all trainers succeed; that of the first trainer that failed and was not started
again (128 + signal when a signal ended it); 128 + signal when ballast-run itself was interrupted; 1
when the servers did not start or ended and were not started again, or a round waits in vain for a
trainer that ended with 0; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ballast import _standard_descriptors, job_name, task_launchers
from ballast.config import check_environment, time_scale
from ballast.ds_config import launched
from ballast.errors import BadArgument, Unsupported
from ballast.launcher import output, process, program, trainers, workspace
from ballast.launcher.certificates import Certificates
from ballast.launcher.command_line import parser
from ballast.launcher.ds_config import checked
from ballast.launcher.given_servers import GivenServers
from ballast.launcher.placement import Placement, placed
from ballast.launcher.restarts import ServerRestarts, TrainerRestarts
from ballast.launcher.servers import LaunchError, Servers, UsageError, find_ballastd
from ballast.launcher.stragglers import StragglerWatch
from ballast.launcher.trainers import FAILURE_GRACE_S, Trainers

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Interrupts:
    """Counts SIGINT, SIGTERM and SIGHUP instead of dying of them, so that children are stopped.

    An ignored SIGHUP (nohup) stays ignored.
    """

    def __init__(self) -> None:
        self.signum = 0
        self.count = 0
        for signum in _SIGNALS:
            if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
                signal.signal(signum, self._note)

    def _note(self, signum: int, frame: object) -> None:
        self.signum = self.signum or signum
        self.count += 1


class _Run:
    """One launch: servers, trainers, and the decision when and how all of it ends."""

    def __init__(
        self,
        options: argparse.Namespace,
        placement: Placement,
        servers: Servers | GivenServers,
        run_dir: Path,
        certificates: Certificates | None = None,
    ) -> None:
        self._options = options
        self._program = program.from_stdin(options.program, run_dir)
        self._placement = placement
        self._servers = servers
        self._certificates = certificates
        config = None if options.ds_config is None else str(options.ds_config)
        self._configured = launched.environment(config, options.mixed_precision)
        prefix = len(placement.seats) > 1 and not options.no_prefix
        self._trainers = Trainers(
            self._program, prefix, run_dir, placement.hosts, options.ssh
        )
        self._server_restarts = ServerRestarts(
            self._servers, options.max_server_restarts, self._say
        )
        self._trainer_restarts = TrainerRestarts(self._trainers, options.max_restarts, self._say)
        self._stragglers = StragglerWatch(
            lambda: self._servers.admin_addresses, self._say, self._trainers.ended_well
        )
        self._interrupts = _Interrupts()

    def execute(self) -> int:
        """Runs until the trainers have ended or something stops them; returns the exit code."""
        try:
            self._servers.start(os.environ, lambda: self._interrupts.count > 0)
            if not self._interrupts.count:
                self._start_trainers()
                self._stragglers.start(time_scale(os.environ))
            return self._supervise()
        finally:
            self._stragglers.stop()
            self._trainers.stop(self._interrupts.signum or signal.SIGTERM, self._hurry)
            self._servers.stop(self._hurry)

    def _hurry(self) -> bool:
        return self._interrupts.count > 1  # a second Ctrl-C means: now

    def _say(self, text: str) -> None:
        if not self._options.quiet:
            output.say(sys.stderr.buffer, f"ballast-run: {text}")

    def _start_trainers(self) -> None:
        place = self._placement
        world = len(place.seats)
        job = self._options.job or job_name.fresh(self._program.name)
        secured = {} if self._certificates is None else self._certificates.of_trainers()
        made_up = {} if self._options.job else {"BALLAST_JOB_MADE_UP": job}
        base = {**os.environ, **self._configured, **secured, **made_up}
        self._trainers.start(
            [
                trainers.environment(
                    base,
                    seat.rank,
                    world,
                    endpoints=self._servers.addresses,
                    admin=self._servers.admin_addresses,
                    job=job,
                    master_addr=place.address,
                    master_port=place.port,
                    restarts=self._options.max_restarts > 0,
                    seat=seat,
                )
                for seat in place.seats
            ]
        )
        self._say(f"job {job}: {world} trainer(s), servers {' '.join(self._servers.addresses)}")

    def _supervise(self) -> int:
        first_failed: int | None = None
        give_up = float("inf")
        dead_server: int | None = None
        in_vain: str | None = None
        while time.monotonic() < give_up and not self._interrupts.count:
            if dead_server is None and (dead_server := self._server_restarts.poll()) is not None:
                self._say(self._servers.report(dead_server))
                give_up = min(give_up, time.monotonic() + FAILURE_GRACE_S)
            if in_vain is None and (in_vain := self._stragglers.in_vain) is not None:
                self._say(f"{in_vain}; the others have {FAILURE_GRACE_S:g} s")
                give_up = min(give_up, time.monotonic() + FAILURE_GRACE_S)
            # Without its servers no trainer can continue.
            going_on = first_failed is None and dead_server is None and in_vain is None
            # Before the look at failures: a trainer that ends after it is for the next turn.
            over = self._all_ended(going_on)
            if going_on and (first_failed := self._trainer_restarts.poll()) is not None:
                self._say(
                    f"{self._trainers.name(first_failed)} failed; it "
                    f"{self._trainers.how_ended(first_failed)}; the others have "
                    f"{FAILURE_GRACE_S:g} s"
                )
                give_up = min(give_up, time.monotonic() + FAILURE_GRACE_S)
            if over and self._all_ended(going_on):
                break
            time.sleep(process.POLL_S)
        if self._interrupts.count:
            return 128 + self._interrupts.signum
        if first_failed is None:
            first_failed = self._trainers.failed()
        if first_failed is not None:
            return self._trainers.children[first_failed].code()
        return 1 if dead_server is not None or in_vain is not None else 0

    def _all_ended(self, going_on: bool) -> bool:
        """Whether no trainer runs or will be started again. going_on: else none will be."""
        awaited = going_on and self._trainer_restarts.pending()
        return not awaited and not self._trainers.running()


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit code."""
    _standard_descriptors.hold_streams()
    options = parser().parse_args(argv)
    try:
        return _launch(options)
    except LaunchError as error:
        text, code = str(error), error.exit_code
    except (BadArgument, Unsupported) as error:
        text, code = error.message, UsageError.exit_code
    except OSError as error:
        text, code = str(error), LaunchError.exit_code
    print(f"ballast-run: {text}", file=sys.stderr)
    return code


def _launch(options: argparse.Namespace) -> int:
    options.program = program.chosen(
        options.script, options.args, options.module, not options.no_python
    )
    if options.job is not None:
        job_name.check(options.job, "--job")
    check_environment(os.environ)
    placement = placed(options, os.environ)
    _check_stdin(options, placement)
    _check_tls(options, placement)
    if options.ds_config is not None:
        world = len(placement.seats)
        options.ds_config = checked(options.ds_config, options.mixed_precision, world)
    _say_of_tasks(options)
    data_dir = None if options.data_dir is None else _made(options.data_dir)
    binary = None if placement.endpoints else find_ballastd(options.server_binary, os.environ)
    if data_dir is not None:
        return _run(options, placement, binary, data_dir, ())
    stale = workspace.remove_stale()
    if stale and not options.quiet:
        names = " ".join(map(str, stale))
        print(f"ballast-run: removed what killed runs left behind: {names}", file=sys.stderr)
    space = _workspace()
    try:
        return _run(options, placement, binary, space.path, (space.lock,))
    finally:
        space.remove()


def _say_of_tasks(options: argparse.Namespace) -> None:
    found = task_launchers.task(os.environ)
    if found is not None and not options.quiet:
        text = (
            f"ballast-run: this is {found}: each starts servers and a job of its own; for one job "
            "start ballast-run once, with --hostfile"
        )
        print(text, file=sys.stderr, flush=True)


def _check_stdin(options: argparse.Namespace, placement: Placement) -> None:
    if placement.hosts and options.program.words[0] == "-":
        raise UsageError("other hosts do not have the script on standard input; name a file")


def _check_tls(options: argparse.Namespace, placement: Placement) -> None:
    if options.tls and placement.endpoints:
        raise UsageError(
            "--tls makes certificates for servers of its own, and BALLAST_ENDPOINTS names running "
            "ones; leave --tls out, and set BALLAST_TLS_CA and the rest for those"
        )
    if options.tls and placement.hosts:
        raise UsageError(
            "--tls: trainers on other hosts do not have its files; start servers with certificates "
            "of your own there, and name them with BALLAST_ENDPOINTS (docs/security.md)"
        )


def _run(
    options: argparse.Namespace,
    placement: Placement,
    binary: Path | None,
    data_dir: Path,
    inherited: Sequence[int],
) -> int:
    """binary: ballastd; None: the servers run already."""
    run_dir = data_dir / "run"
    run_dir.mkdir(parents=True, exist_ok=True)
    if binary is None:
        return _Run(options, placement, GivenServers(placement.endpoints), run_dir).execute()
    count, budget = options.servers or 1, options.dram_budget
    certificates = None
    if options.tls:
        certificates = Certificates(run_dir / "tls", count, placement.address)
    folder = None if certificates is None else certificates.folder
    servers = Servers(binary, count, data_dir, budget, inherited, placement.address, folder)
    return _Run(options, placement, servers, run_dir, certificates).execute()


def _made(data_dir: Path) -> Path:
    # The folder "run" in it is made here too, which shows whether it can be written.
    try:
        (data_dir / "run").mkdir(parents=True, exist_ok=True)
        return data_dir.resolve()
    except OSError as error:
        raise UsageError(
            f"--data-dir {data_dir}: cannot create {error.filename} ({error.strerror}); name a "
            "directory that you may write to"
        ) from error


def _workspace() -> workspace.Workspace:
    try:
        return workspace.Workspace()
    except OSError as error:
        raise LaunchError(
            f"no temporary directory ({error.strerror}); set TMPDIR to one that you may write to, "
            "or use --data-dir"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
