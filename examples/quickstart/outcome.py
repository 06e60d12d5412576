"""What a run of the quickstart shows at its end: the plot, the table, the JSON object.

Comes from: quickstart.py. Goes to: its stdout, and a PNG file. Thread safety: one thread.
"""

from __future__ import annotations

import argparse
import pathlib


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
    axes.set_title(f"held-out loss; {differing_bits(result)} differing bits of state")
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


def differing_bits(result: dict) -> int:
    """Bits of state in which Ballast and torch differ."""
    return sum(result["differing"].values())


def summary(args: argparse.Namespace, result: dict, picture: pathlib.Path) -> dict:
    """What --json prints."""
    return {
        "differing_bits": differing_bits(result),
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
