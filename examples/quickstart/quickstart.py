"""Front of the quickstart: runs train.py under ballast-run, draws progress, shows the result.

Comes from: scripts/quickstart.sh. Progress goes to stderr; with --json stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent


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
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parents[1] / "out")
    return parser.parse_args()


class Bar:
    """A progress bar on stderr; a line every ten percent where stderr is no terminal."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._tty = sys.stderr.isatty()
        self._shown = -1
        self._start = time.monotonic()

    def show(self, state: dict) -> None:
        step = state["step"]
        if step == self._shown or (not self._tty and step * 10 // self._steps == self._tenth()):
            return
        self._shown = step
        width = 30
        filled = width * step // self._steps
        left = (time.monotonic() - self._start) / step * (self._steps - step)
        line = (
            f"[{'#' * filled}{'.' * (width - filled)}] {step}/{self._steps}  "
            f"loss {state['loss']:.3f}  round {state['round_ms']:.0f} ms  {left:.0f} s left"
        )
        print(f"\r{line}  " if self._tty else line, end="" if self._tty else "\n", file=sys.stderr)
        sys.stderr.flush()

    def close(self) -> None:
        if self._tty:
            print(file=sys.stderr)

    def _tenth(self) -> int:
        return self._shown * 10 // self._steps if self._shown >= 0 else -1


def train(args: argparse.Namespace, folder: pathlib.Path) -> dict:
    """Runs servers and trainers; returns what rank 0 wrote. Exits with their code on failure."""
    progress, result = folder / "progress.json", folder / "result.json"
    command = [
        *(str(pathlib.Path(sys.executable).with_name("ballast-run")),),
        *("--servers", str(args.servers), "--nproc", str(args.trainers)),
        str(HERE / "train.py"),
        *("--steps", str(args.steps), "--dtype", args.dtype, "--batch", str(args.batch)),
        *("--progress", str(progress), "--result", str(result)),
    ]
    bar = Bar(args.steps)
    # Trainers' own output, and ballast-run's, belongs beside the progress, never into the JSON.
    child = subprocess.Popen(command, stdout=sys.stderr, env=os.environ)
    try:
        while child.poll() is None:
            time.sleep(0.2)
            if progress.exists():
                bar.show(json.loads(progress.read_text()))
        if progress.exists():
            bar.show(json.loads(progress.read_text()))
    except KeyboardInterrupt:
        child.wait()
        raise SystemExit(130) from None
    bar.close()
    if child.returncode != 0:
        print(f"quickstart: training failed with exit code {child.returncode}", file=sys.stderr)
        raise SystemExit(child.returncode)
    return json.loads(result.read_text())


def plot(result: dict, path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=110)
    axes.plot(*zip(*result["losses"]), color="0.75", label="training batch (rank 0)")
    steps, ours, theirs = zip(*result["evals"])
    axes.plot(steps, theirs, "s-", markersize=9, fillstyle="none", label="torch.optim.AdamW(fused)")
    axes.plot(steps, ours, "o-", markersize=4, label="Ballast")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per byte)")
    axes.set_title(f"held-out loss; {sum(result['differing'].values())} differing bits of state")
    axes.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def table(args: argparse.Namespace, result: dict, picture: pathlib.Path, seconds: float) -> str:
    lines = [
        "",
        f"A byte-level GPT ({result['parameters'] / 1e6:.1f} M parameters, {args.dtype}), "
        f"{args.trainers} trainers, {args.servers} state servers, {args.steps} steps "
        f"in {seconds:.0f} s",
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
        "                      (push and pull overlap the servers' collect and step)",
        f"  loss plot           {picture}",
    ]
    if args.dtype != "fp32":
        lines.append(
            f"  {args.dtype}: parameters and gradients are stored and sent in {args.dtype}; the "
            "model computes in fp32 on the CPU, masters are fp32 in the service"
        )
    return "\n".join(lines)


def main() -> None:
    args = parse()
    start = time.monotonic()
    print(
        f"training with {args.trainers} trainers on {args.servers} state servers ...",
        file=sys.stderr,
    )
    with tempfile.TemporaryDirectory(prefix="ballast-quickstart-") as folder:
        result = train(args, pathlib.Path(folder))
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
