"""Front of the quickstart: runs train.py under ballast-run, draws progress, shows the result.

Comes from: scripts/quickstart.sh. Progress goes to stderr; with --json stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time

import chaos
import outcome

HERE = pathlib.Path(__file__).resolve().parent
# Shorter than a round, so that a kill falls into the round that it was meant for.
WATCH_S = 0.01
WAIT_S = 0.1
# The referee's time limit for the remaining work once all trainers have ended.
VERDICT_S = 120.0
# On a terminal, by how a line begins: a kill, the run's continuation, a message.
COLOURS = {
    "quickstart: kill": "1;31",
    "quickstart: training continues": "1;32",
    "ballast-run: ": "2",
    "[": "2",
}


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="quickstart.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=positive, default=150, help="training steps (default 150)")
    parser.add_argument("--servers", type=positive, default=2, help="state servers (default 2)")
    parser.add_argument("--trainers", type=positive, default=2, help="trainers (default 2)")
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), default="fp32")
    parser.add_argument("--batch", type=positive, default=4, help="sequences per trainer and step")
    parser.add_argument(
        "--durability",
        choices=("power", "process", "none"),
        help="what a finished round survives; power loss, kill -9 of every server, or nothing",
    )
    parser.add_argument(
        "--chaos",
        action="store_true",
        help="kill -9 servers and a trainer while it trains; durability power unless given",
    )
    parser.add_argument(
        "--tier",
        choices=("auto", "cpu", "nvme"),
        default="auto",
        help="where the servers keep the optimizer state: in memory, or on disk with as much of it "
        "in memory as --dram-budget allows (auto: on disk if it does not fit)",
    )
    parser.add_argument(
        "--dram-budget",
        metavar="SIZE",
        help="memory for optimizer state per server, such as 9MiB",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parents[1] / "out")
    parser.add_argument("--verify-flags", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if problem := check(args):
        parser.error(problem)
    if args.chaos and args.durability is None:
        args.durability = "power"
    return args


def check(args: argparse.Namespace) -> str:
    """Why these flags do not go together; "" when they do."""
    if problem := check_out(args.out):
        return problem
    if args.chaos and args.durability == "none":
        return "--chaos kills processes, which a job with --durability none does not survive"
    if args.tier == "nvme" and args.durability == "none":
        return "--tier nvme: a job with --durability none has no files to keep its state in"
    if args.chaos and args.steps < chaos.STEPS_MIN:
        return f"--steps {args.steps}: --chaos needs at least {chaos.STEPS_MIN}"
    return ""


def check_out(folder: pathlib.Path) -> str:
    """Why the plot cannot be written to `folder`, which is made; "" when it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"--out {folder}: cannot write there ({error.strerror}); name another directory"


class Signals:
    """SIGINT, SIGTERM and SIGHUP are counted and obeyed by check(): the work under way ends first.

    An ignored SIGHUP (nohup) stays ignored.
    """

    def __init__(self) -> None:
        self.signum = 0
        self.count = 0
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
                signal.signal(signum, self._note)

    def check(self) -> None:
        """SystemExit with 128 + signal when there was one."""
        if self.count:
            raise SystemExit(128 + self.signum)

    def _note(self, signum: int, frame: object) -> None:
        self.signum = self.signum or signum
        self.count += 1


class Bar:
    """A progress bar on stderr; a line every ten percent where stderr is no terminal."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._tty = sys.stderr.isatty()
        self._shown = -1
        self._line = ""  # of the terminal, now
        self._start = time.monotonic()

    def show(self, step: int, loss: float, round_ms: float) -> None:
        if step == self._shown or (not self._tty and step * 10 // self._steps == self._tenth()):
            return
        self._shown = step
        width = 30
        filled = width * step // self._steps
        left = (time.monotonic() - self._start) / step * (self._steps - step)
        line = (
            f"[{'#' * filled}{'.' * (width - filled)}] {step}/{self._steps}  "
            f"loss {loss:.3f}  round {round_ms:.0f} ms  {left:.0f} s left"
        )
        if self._tty:
            self._line = line
        self._print(f"\r{line}  " if self._tty else f"{line}\n")

    def say(self, text: str) -> None:
        """A line above the bar."""
        if self._tty and "NO_COLOR" not in os.environ:
            colour = next((c for begin, c in COLOURS.items() if text.startswith(begin)), "0")
            text = f"\033[{colour}m{text}\033[0m"
        wiped = f"\r{' ' * (len(self._line) + 2)}\r" if self._line else ""
        self._print(f"{wiped}{text}\n{self._line}")

    def close(self) -> None:
        self._print("\n" if self._tty else "")

    def _print(self, text: str) -> None:
        print(text, end="", file=sys.stderr, flush=True)

    def _tenth(self) -> int:
        return self._shown * 10 // self._steps if self._shown >= 0 else -1


class Training:
    """ballast-run with train.py; its output goes above the bar, never into the JSON."""

    def __init__(
        self, args: argparse.Namespace, folder: pathlib.Path, signals: Signals
    ) -> None:
        # Imported here: --help needs no torch.
        from referee import Referee

        self._signals = signals
        self._referee = Referee(args, folder)
        self._bar = Bar(args.steps)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        kills = chaos.plan(args.steps, args.servers, args.trainers) if args.chaos else []
        self.chaos = chaos.Chaos(kills, folder / "servers", self._bar.say)
        env = dict(os.environ)
        if args.durability is not None:
            env["BALLAST_DURABILITY"] = args.durability
        env["BALLAST_DEVICE"] = args.tier
        self._child = subprocess.Popen(
            self._command(args, folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            text=True,
            errors="replace",
            start_new_session=True,  # a Ctrl-C reaches it through us, once
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def run(self) -> int:
        """Watches it to its end; returns its exit code. SystemExit after a signal."""
        while self._child.poll() is None:
            self._signals.check()
            time.sleep(WATCH_S)
            self._show()
        self._reader.join()
        self._show()
        self.chaos.end()
        self._bar.close()
        return self._child.returncode

    def verdict(self) -> dict:
        """The referee's. SystemExit after a signal."""
        give_up = time.monotonic() + VERDICT_S
        while not self._referee.done(WAIT_S) and time.monotonic() < give_up:
            self._signals.check()
        return self._referee.verdict()

    def close(self) -> None:
        """Ends ballast-run if it still runs, and waits for it; a further signal makes it hurry."""
        passed_on = 0
        while self._child.poll() is None:
            if passed_on < max(1, self._signals.count):
                passed_on += 1
                self._child.send_signal(signal.SIGTERM)
            time.sleep(WATCH_S)
        self._referee.close()

    def _command(self, args: argparse.Namespace, folder: pathlib.Path) -> list[str]:
        return [
            str(pathlib.Path(sys.executable).with_name("ballast-run")),
            *("--servers", str(args.servers), "--nproc", str(args.trainers)),
            *(("--data-dir", str(folder / "servers"), "--max-restarts", "3") if args.chaos else ()),
            *(("--dram-budget", args.dram_budget) if args.dram_budget else ()),
            str(HERE / "train.py"),
            *("--steps", str(args.steps), "--dtype", args.dtype, "--batch", str(args.batch)),
            *("--referee", self._referee.address),
            *(("--small-extents",) if args.dram_budget else ()),
        ]

    def _read(self) -> None:
        for line in self._child.stdout:
            self._lines.put(line.rstrip("\n"))

    def _show(self) -> None:
        while not self._lines.empty():
            self._bar.say(self._lines.get())
        now = self._referee.progress()
        if now.loss is not None:
            self._bar.show(now.loss_step, now.loss, now.round_ms)
        self.chaos.watch(now.begun, now.finished)


def train(args: argparse.Namespace, folder: pathlib.Path, signals: Signals) -> dict:
    """Runs servers and trainers; returns the referee's verdict, and the kills. Exits on failure,
    and with 128 + signal when one interrupted it."""
    training = Training(args, folder, signals)
    try:
        code = training.run()
        if code != 0:
            print(f"quickstart: training failed with exit code {code}", file=sys.stderr)
            raise SystemExit(code)
        kills = [dataclasses.asdict(kill) for kill in training.chaos.done]
        return {**training.verdict(), "kills": kills}
    finally:
        training.close()


def main() -> None:
    args = parse()
    if args.verify_flags:
        return
    signals = Signals()
    start = time.monotonic()
    print(f"training with {outcome.who_trains(args)} ...", file=sys.stderr)
    if args.json and args.dtype != "fp32":  # else the table says it
        print(outcome.precision(args), file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="ballast-quickstart-") as folder:
        result = train(args, pathlib.Path(folder), signals)
    signals.check()
    picture = args.out / "quickstart-loss.png"
    outcome.plot(result, picture)
    bits = outcome.differing_bits(result)
    if args.json:
        print(json.dumps(outcome.summary(args, result, picture)))
    else:
        print(outcome.table(args, result, picture, time.monotonic() - start))
    if bits != 0:
        print(f"quickstart: {bits} bits differ from torch", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
