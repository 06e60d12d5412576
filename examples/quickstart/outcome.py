"""The output at the end of a quickstart run: the plot, the table, the JSON object.

Comes from: quickstart.py. Goes to: its stdout, and a PNG file. Thread safety: one thread.
"""

from __future__ import annotations

import argparse
import pathlib


# Whose time a round is, and its parts one after the other. Both begin with the round's first push.
TIMELINES = {"trainer": ("push", "wait", "pull"), "servers": ("collect", "vote", "step")}
COLOURS = {
    "push": "tab:blue", "wait": "0.8", "pull": "tab:cyan",
    "collect": "tab:olive", "vote": "tab:pink", "step": "tab:orange",
}  # fmt: skip
KILL = "tab:red"


def plot(result: dict, path: pathlib.Path) -> None:
    """The losses with the kills, and below them where a round's time went."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (losses, times) = pyplot.subplots(
        2, 1, figsize=(8, 6.4), dpi=110, height_ratios=(4, 1), layout="constrained"
    )
    draw_losses(losses, result)
    draw_times(times, result)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def draw_losses(axes, result: dict) -> None:
    """torch's curve is a broad band, so that ours on top of it does not hide it."""
    axes.plot(*zip(*result["losses"]), color="0.75", linewidth=1, label="training batch (rank 0)")
    steps, ours, theirs = zip(*result["evals"])
    axes.plot(steps, theirs, color="tab:orange", linewidth=9, alpha=0.45, solid_capstyle="round",
              label="held out: torch.optim.AdamW(fused)")  # fmt: skip
    axes.plot(steps, ours, "o-", color="tab:blue", linewidth=1.5, markersize=4,
              label="held out: Ballast")  # fmt: skip
    # A number above the frame for each kill; the words are in the legend, which covers nothing.
    for number, kill in enumerate(result["kills"], 1):
        pause = f"pause of {kill['pause_ms'] / 1e3:.1f} s"
        name = f"{number}: kill -9 of {kill['kind']} {kill['number']}, {pause}"
        axes.axvline(kill["step"], color=KILL, linestyle=":", label=name)
        axes.text(kill["step"], 1.01, number, color=KILL, ha="center", va="bottom",
                  weight="bold", transform=axes.get_xaxis_transform())  # fmt: skip
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per byte)")
    axes.set_title(
        f"{result['parameters'] / 1e6:.1f} M parameters: {differing_bits(result)} bits of the "
        "optimizer state differ from torch's",
        pad=18 if result["kills"] else 6,
    )
    axes.legend(framealpha=1, fontsize="small")


def draw_times(axes, result: dict) -> None:
    """Medians of the run: the trainer's parts of a round, and the servers' meanwhile."""
    for row, (whose, parts) in enumerate(TIMELINES.items()):
        begin = 0.0
        for part in parts:
            ms = result["phases_ms_p50"][part]
            axes.barh(row, ms, left=begin, color=COLOURS[part], label=f"{part} {ms:.1f}")
            begin += ms
    axes.set_yticks(range(len(TIMELINES)), TIMELINES)
    axes.invert_yaxis()
    axes.set_xlabel("ms since a round's first push (medians)")
    axes.set_title(f"where the {result['round_ms_p50']:.1f} ms of a round go", fontsize="medium")
    axes.legend(ncols=6, loc="upper center", bbox_to_anchor=(0.5, -0.55), fontsize="small",
                frameon=False, columnspacing=1.2, handlelength=1.2)  # fmt: skip


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
        f"  round (p50)         {result['round_ms_p50']:.1f} ms: {phases(result, 'trainer')}",
        f"                      servers meanwhile, from the first push on: "
        f"{phases(result, 'servers')}",
        f"  picture             {picture}",
    ]
    for kill in result["kills"]:
        lines.append(
            f"  kill -9             {kill['kind']} {kill['number']} in step {kill['step']}, "
            f"training paused for {kill['pause_ms'] / 1e3:.1f} s"
        )
    if args.dtype != "fp32":
        lines.append(f"  {precision(args)}")
    return "\n".join(lines)


def phases(result: dict, whose: str) -> str:
    """Such as: push 5.1, wait 9.0, pull 8.2; medians, in ms."""
    return ", ".join(f"{name} {result['phases_ms_p50'][name]:.1f}" for name in TIMELINES[whose])


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
