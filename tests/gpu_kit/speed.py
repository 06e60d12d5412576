"""Speed as ratios within one run: copies, a step's bytes, the GPU's idle time, and the influences
on them.

Each number is a median of alternating repeats, and each result is verified. A rehearsal on the
stand-in has small sizes, and judges nothing.
Comes from: the runner. Goes to: copies.py, step_rate.py, and a GPT in bf16.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import ballast.torch as bt
import torch

from gpu_kit import checks, copies, peer_model, place, step_rate

MIB = copies.MIB
OUR_COPIES, STEP = 0.9, 0.8  # the bars


def run(stage: checks.Stage) -> None:
    where = place.chosen(stage.cpu)
    with stage.trial("our copies"):
        our_copies(stage)
    with stage.trial("torch's copies"):
        torch_copies(stage, where)
    with stage.trial("a step's bytes"):
        a_steps_bytes(stage, where)
    with stage.trial("a training step"):
        training(stage, where)
    with stage.trial("what moves the rate of a step"):
        sweep(stage, where)
    stage.not_run("overlap with backward, and shared memory", "this version has neither")


def least(stage: checks.Stage, bar: float) -> float | None:
    return None if stage.cpu else bar


# --- Copies --------------------------------------------------------------------------------------


def our_copies(stage: checks.Stage) -> None:
    """The pipeline's pinned buffers, packs and unpacks next to bare copies of the same bytes."""
    if not copies.program().exists():
        stage.not_run("our copies", f"the kit has no program {copies.program().name}")
        return
    frame, buffers = (64 << 10, 8) if stage.cpu else (MIB, 32)
    bytes, repeats = (2 * MIB, 3) if stage.cpu else (256 * MIB, 7)
    plans = [
        copies.plan(copies.FP32, frame, buffers),
        copies.plan(copies.BF16, frame, buffers),
        copies.plan(copies.BF16, 4 * frame, buffers // 4 if not stage.cpu else buffers),
        copies.plan(copies.BF16, frame, buffers, piece=frame // 128),
        copies.plan(copies.BF16, frame, buffers, ahead=6 if stage.cpu else 16),
    ]
    judged = 2  # The first plans are those of a session.
    for i, of in enumerate(copies.rates(bytes, repeats, plans, stage.left() / 2)):
        tell_rates(stage, of, judged=i < judged)
    planted = list(copies.rates(2 * frame * buffers, 1, plans[:1], stage.left() / 2, lose=True))
    differing = planted[0]["differing"]
    stage.check("planted fault: a lost frame of weights is noticed", differing > 0,
                f"{differing} frames differ")  # fmt: skip


def tell_rates(stage: checks.Stage, of: dict[str, Any], judged: bool) -> None:
    """One line for each way of one plan."""
    what = (f"{of['dtype']}, frames of {of['frame'] >> 10} KiB, {of['ahead']} ahead, tensors of "
            f"{of['piece'] / 1024:g} KiB")  # fmt: skip
    stage.check(f"copied bytes are right ({what})", of["differing"] == 0)
    for way, called in (("up", "gradients"), ("down", "weights"), ("both", "both at once")):
        rates = of[way]
        ratio = rates["ours_gb_s"] / rates["bare_gb_s"]
        bar = least(stage, OUR_COPIES) if judged else None
        frames = rates["frames_gb_s"] / rates["bare_gb_s"]
        stage.measured(f"our copies as a share of bare ones: {called} ({what})", round(ratio, 3),
                       "", bar, f"ours {rates['ours_gb_s']:.1f} GB/s, bare "
                       f"{rates['bare_gb_s']:.1f} GB/s, bare in frames {frames:.2f} of that",
                       **rates)  # fmt: skip


def torch_copies(stage: checks.Stage, where: place.RealGpu | place.Standin) -> None:
    bare = copies.Bare((2 if stage.cpu else 256) * MIB, where.device)
    calls = {"up": bare.up, "down": bare.down, "one after the other": bare.one_after_the_other}
    if where.real:
        calls["both at once"] = bare.at_once
    taken = copies.alternating(3 if stage.cpu else 7, list(calls.values()))
    stage.check("torch's bare copies arrive", bare.wrong() == 0)
    for (name, _), seconds in zip(calls.items(), taken):
        ways = 1 if name in ("up", "down") else 2
        stage.measured(f"torch's bare copies, {name}", round(ways * bare.bytes / seconds / 1e9, 2),
                       "GB/s")  # fmt: skip


# --- Steps ---------------------------------------------------------------------------------------


def a_steps_bytes(stage: checks.Stage, where: place.RealGpu | place.Standin) -> None:
    """A step whose work is its bytes, through one server on this host, next to bare copies."""
    cases = [(torch.bfloat16, "none"), (torch.float32, "none"), (torch.bfloat16, "process")]
    elements, repeats = (1 << 16, 2) if stage.cpu else (64 << 20, 5)
    with place.servers(stage.folder / "steps", 1) as running:
        for dtype, durability in cases:
            name = f"a step's bytes, {str(dtype)[6:]}, durability {durability}"
            if stage.left() < 12 and not stage.cpu:
                stage.not_run(name, f"{stage.left():.0f} s were left")
                continue
            bytes = elements * dtype.itemsize
            found = step_rate.measured(
                where, running, bytes, dtype, repeats, copies.Bare(bytes, where.device),
                durability=durability,
            )  # fmt: skip
            stage.check(f"the weights are the sum of the updates ({name})", found["wrong"] == 0,
                        f"{found['wrong']} are wrong")  # fmt: skip
            stage.measured(f"{name}, as a share of bare copies both ways", found["ratio"], "",
                           least(stage, STEP), summary(found), **found)  # fmt: skip
            if durability == "none":
                beside_the_host(stage, running, bytes, dtype, repeats, found)


def beside_the_host(
    stage: checks.Stage, running: Any, bytes: int, dtype: torch.dtype, repeats: int,
    there: dict[str, Any],
) -> None:  # fmt: skip
    """The same step with tensors of the host: the part without the GPU."""
    host = step_rate.measured(place.Host(), running, bytes, dtype, repeats, durability="none")
    name = f"the same step with tensors of the host, {str(dtype)[6:]}: its time / the GPU's"
    stage.measured(name, round(host["step_s"] / there["step_s"], 3), "", None, summary(host),
                   **host)  # fmt: skip


def summary(found: dict[str, Any]) -> str:
    parts = ", ".join(f"{name} {ms:.0f}" for name, ms in found["parts_ms"].items())
    bare = f" of {found['bare_gb_s']:.1f}" if "bare_gb_s" in found else ""
    return (f"{found['gb_s']:.2f}{bare} GB/s; CPU seconds of a step: trainer "
            f"{found['trainer_cpu_s']}, server {found['server_cpu_s']}; ms: {parts}")  # fmt: skip


class Marks:
    """Moments of the GPU (or, in a rehearsal, of the clock)."""

    def __init__(self, real: bool) -> None:
        self._real = real
        self._all: list[Any] = []

    def note(self) -> None:
        event = torch.cuda.Event(enable_timing=True) if self._real else time.perf_counter()
        if self._real:
            event.record()
        self._all.append(event)

    def ms(self, first: int, last: int) -> float:
        """From one moment to a later one, by their numbers."""
        begin, end = self._all[first], self._all[last]
        return begin.elapsed_time(end) if self._real else 1000 * (end - begin)


def training(stage: checks.Stage, where: place.RealGpu | place.Standin) -> None:
    """A GPT in bf16: for how long the GPU has no work between a backward and the next forward."""
    sizes = peer_model.SMALLEST if stage.cpu else peer_model.Sizes(
        width=768, layers=12, heads=12, vocabulary=50304, sequence=1024, batch=16)  # fmt: skip
    steps = 4 if stage.cpu else 8
    model = where.put(peer_model.model(sizes, where.device, torch.bfloat16))
    batches = peer_model.batches(sizes, where.device)
    with place.servers(stage.folder / "training", 1) as running:
        opt = bt.AdamW(model.named_parameters(), lr=3e-4, job=place.fresh_job("gpt"), rank=0,
                       world_size=1, endpoints=",".join(running.addresses), durability="process",
                       max_grad_norm=1.0)  # fmt: skip
        marks, losses = Marks(where.real), []
        pids = [child.pid for child in running.children]
        for step in range(steps):
            if step == 1:  # The first one attaches.
                servers_began, own_began = step_rate.cpu_seconds(pids), time.process_time()
            marks.note()
            loss = model(batches[step % len(batches)])
            loss.backward()
            marks.note()
            opt.step()
            opt.zero_grad()
            losses.append(loss.detach())
        marks.note()
        where.finish()
        spent = (time.process_time() - own_began, step_rate.cpu_seconds(pids) - servers_began)
        parts = step_rate.parts(opt.last_report or {})
        opt.close()
    tell_training(stage, marks, steps, spent, parts, sum(p.numel() for p in model.parameters()))
    losses = [float(loss) for loss in losses]
    stage.check("the loss falls", losses[-1] < losses[0], f"{losses[0]:.3f} to {losses[-1]:.3f}")


def tell_training(
    stage: checks.Stage, marks: Marks, steps: int, spent: tuple[float, float],
    parts: dict[str, float], parameters: int,
) -> None:  # fmt: skip
    """marks: before each forward and after each backward, and one at the end."""
    whole = [marks.ms(2 * i, 2 * i + 2) for i in range(1, steps)]
    idle = [marks.ms(2 * i + 1, 2 * i + 2) for i in range(1, steps)]
    share = statistics.median(of / all for of, all in zip(idle, whole))
    text = ", ".join(f"{name} {ms:.0f}" for name, ms in parts.items())
    stage.measured("the GPU's idle time as a share of a training step", round(share, 3), "", None,
                   f"{parameters / 1e6:.0f} M parameters in bf16: {statistics.median(idle):.0f} of "
                   f"{statistics.median(whole):.0f} ms; ms of a round: {text}",
                   idle_ms=round(statistics.median(idle), 2),
                   step_ms=round(statistics.median(whole), 2), parts_ms=parts)  # fmt: skip
    for name, seconds in zip(("trainer", "server"), spent):
        stage.measured(f"CPU seconds of a training step: {name}", round(seconds / (steps - 1), 3),
                       "s")  # fmt: skip


# --- Influences on the rate ----------------------------------------------------------------------


def sweep(stage: checks.Stage, where: place.RealGpu | place.Standin) -> None:
    """One setting differs from the first line's in each."""
    long = {"BALLAST_ROUNDS_CHUNK_BYTES": "4MiB", "BALLAST_LIMITS_MAX_FRAME_BYTES": "8MiB"}
    cases: list[tuple[str, int, dict[str, str], dict[str, Any]]] = [
        ("as delivered: 1 server, frames of 1 MiB, 32 MiB pinned", 1, {}, {}),
        ("2 servers", 2, {}, {}),
        ("4 servers", 4, {}, {}),
        ("frames of 4 MiB", 1, long, {}),
        ("16 MiB pinned", 1, {}, {"pinned_bytes": 16 * MIB}),
        ("256 MiB pinned", 1, {}, {"pinned_bytes": 256 * MIB}),
        ("4 servers, frames of 4 MiB, 256 MiB pinned", 4, long, {"pinned_bytes": 256 * MIB}),
    ]  # fmt: skip
    bytes, repeats = (MIB, 2) if stage.cpu else (128 * MIB, 5)
    first: list[float] = []
    for i, (name, count, environ, options) in enumerate(cases):
        name = f"bytes of a step: {name}"
        if stage.left() < 6 and not stage.cpu:
            stage.not_run(name, f"{stage.left():.0f} s were left")
            continue
        with (
            stage.trial(name),
            place.servers(stage.folder / f"sweep-{i}", count, environ) as running,
        ):
            found = step_rate.measured(where, running, bytes, torch.bfloat16, repeats,
                                       durability="none", **options)  # fmt: skip
            first.append(found["gb_s"])
            stage.check(f"right weights ({name})", found["wrong"] == 0)
            stage.measured(name, found["gb_s"], "GB/s", None, f"{first[-1] / first[0]:.2f} of the "
                           f"first; {summary(found)}", **found)  # fmt: skip


if __name__ == "__main__":
    checks.main("speed", run)
