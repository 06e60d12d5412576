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

HERE = pathlib.Path(__file__).resolve().parent
# Shorter than a round, so that a kill falls into the round that it was meant for.
WATCH_S = 0.01
WAIT_S = 0.1
# How long the referee may take for what is left to do once all trainers have ended.
VERDICT_S = 120.0
# On a terminal, by how a line begins: what was done to the run, how it went on, what was said.
COLOURS = {
    "quickstart: kill": "1;31",
    "quickstart: training goes on": "1;32",
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
    if problem := check_out(args.out):
        parser.error(problem)
    if args.chaos and args.durability == "none":
        parser.error("--chaos kills processes, which a job with --durability none does not survive")
    if args.tier == "nvme" and args.durability == "none":
        parser.error("--tier nvme: a job with --durability none has no files to keep its state in")
    if args.chaos and args.steps < chaos.STEPS_MIN:
        parser.error(f"--steps {args.steps}: --chaos needs at least {chaos.STEPS_MIN}")
    if args.chaos and args.durability is None:
        args.durability = "power"
    return args


def check_out(folder: pathlib.Path) -> str:
    """Why the plot cannot be written to `folder`, which is made; "" when it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"--out {folder}: cannot write there ({error.strerror}); name another directory"


class Signals:
    """SIGINT, SIGTERM and SIGHUP are counted and obeyed by check(): whoever runs ends its work.

    A SIGHUP that is ignored (nohup) stays so.
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
    """ballast-run with train.py; what it prints goes above the bar, never into the JSON."""

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


def plot(result: dict, path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=110)
    axes.plot(*zip(*result["losses"]), color="0.75", label="training batch (rank 0)")
    steps, ours, theirs = zip(*result["evals"])
    axes.plot(steps, theirs, "s-", markersize=9, fillstyle="none", label="torch.optim.AdamW(fused)")
    axes.plot(steps, ours, "o-", markersize=4, label="Ballast")
    for kill in result["kills"]:
        axes.axvline(kill["step"], color="tab:red", linestyle=":")
        name = f" kill -9 of {kill['kind']} {kill['number']}, {kill['pause_ms'] / 1e3:.1f} s"
        axes.text(
            kill["step"], 1.0, name, color="tab:red", rotation=90, ha="right", va="top",
            transform=axes.get_xaxis_transform(),
        )  # fmt: skip
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per byte)")
    axes.set_title(f"held-out loss; {sum(result['differing'].values())} differing bits of state")
    axes.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def who_trains(args: argparse.Namespace) -> str:
    """Such as: 2 trainers on 1 state server."""
    return f"{counted(args.trainers, 'trainer')} on {counted(args.servers, 'state server')}"


def precision(args: argparse.Namespace) -> str:
    """What 16-bit numbers are used for."""
    return (
        f"{args.dtype}: parameters and gradients are stored and sent in {args.dtype}; the model "
        "computes in fp32 on the CPU, masters are fp32 in the service"
    )


def table(args: argparse.Namespace, result: dict, picture: pathlib.Path, seconds: float) -> str:
    lines = [
        "",
        f"A byte-level GPT ({result['parameters'] / 1e6:.1f} M parameters, {args.dtype}), "
        f"{who_trains(args)}, durability {result['durability']}, {args.steps} steps in "
        f"{seconds:.0f} s",
        "",
        "  held-out loss       step    Ballast      torch",
    ]
    for step, ours, theirs in result["evals"]:
        lines.append(f"                    {step:6d}  {ours:9.6f}  {theirs:9.6f}")
    lines.append("")
    values = result["parameters"]
    for name, bits in result["differing"].items():
        lines.append(f"  differing bits      {name:<11} {bits} of {32 * values}")
    lines += [
        f"  bytes               up {result['bytes_up']:,}   down {result['bytes_down']:,}",
        f"  round (p50)         {result['round_ms_p50']:.1f} ms: "
        + ", ".join(f"{name} {ms:.1f}" for name, ms in result["phases_ms_p50"].items()),
        "                      (collect: from the first trainer's push on; push and pull overlap",
        "                      the servers' collect and step)",
        f"  loss plot           {picture}",
    ]
    for kill in result["kills"]:
        lines.append(
            f"  kill -9             {kill['kind']} {kill['number']} in step {kill['step']}, "
            f"training paused for {kill['pause_ms'] / 1e3:.1f} s"
        )
    if args.dtype != "fp32":
        lines.append(f"  {precision(args)}")
    return "\n".join(lines)


def main() -> None:
    args = parse()
    if args.verify_flags:
        return
    signals = Signals()
    start = time.monotonic()
    print(f"training with {who_trains(args)} ...", file=sys.stderr)
    if args.json and args.dtype != "fp32":  # else the table says it
        print(precision(args), file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="ballast-quickstart-") as folder:
        result = train(args, pathlib.Path(folder), signals)
    signals.check()
    picture = args.out / "quickstart-loss.png"
    plot(result, picture)
    bits = sum(result["differing"].values())
    if args.json:
        summary = {
            "differing_bits": bits,
            "steps": args.steps,
            "servers": args.servers,
            "trainers": args.trainers,
            "dtype": args.dtype,
            "parameters": result["parameters"],
            "loss_first": result["evals"][0][1],
            "loss_last": result["evals"][-1][1],
            "loss_torch_last": result["evals"][-1][2],
            "bytes_up": result["bytes_up"],
            "bytes_down": result["bytes_down"],
            "round_ms_p50": result["round_ms_p50"],
            "phases_ms_p50": result["phases_ms_p50"],
            "durability": result["durability"],
            "tier": args.tier,
            "dram_budget": args.dram_budget,
            "losses": [loss for _, loss in result["losses"]],
            "state_crc32": result["state_crc32"],
            "kills": result["kills"],
            "pauses_ms": [kill["pause_ms"] for kill in result["kills"]],
            "restarts": sum(kill["restarted"] for kill in result["kills"]),
            "plot": str(picture),
        }
        print(json.dumps(summary))
    else:
        print(table(args, result, picture, time.monotonic() - start))
    if bits != 0:
        print(f"quickstart: {bits} bits differ from torch", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
