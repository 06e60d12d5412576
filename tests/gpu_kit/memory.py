"""Peak GPU memory of a training step: with Ballast, with torch's AdamW, and of the passes alone.

Each way trains in a process of its own: the memory of a process ends with it. Counted are torch's
allocations at their peak, and the device memory of everything else in the process by then (CUDA's
context, Ballast's staging): the used memory less torch's.
Comes from: the runner. Goes to: processes forked before this one uses CUDA.
"""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import ballast.torch as bt
import torch

from gpu_kit import checks, peer_model, place

MIB = 1 << 20
OURS_MAX = 64 * MIB  # in addition to 16-bit weights, gradients and activations
PLANTED = 2 * OURS_MAX  # kept by the planted fault
STEPS = 3
PARTS = ("torch", "rest")
PASSES, BALLAST = "forward and backward alone", "Ballast"
FAULTY = "Ballast with a planted fault, which keeps 128 MiB"
ADAMW, MASTERS = "torch.optim.AdamW, all in bf16", "torch.optim.AdamW, weights in fp32, autocast"

Step = Callable[[], None]


def sizes(cpu: bool) -> peer_model.Sizes:
    if cpu:
        return peer_model.SMALLEST
    return peer_model.Sizes(width=1024, layers=24, heads=16, vocabulary=50304, sequence=1024,
                            batch=1, checkpointing=True)  # fmt: skip


def run(stage: checks.Stage) -> None:
    peaks: dict[str, dict[str, float]] = {}
    for way in (PASSES, BALLAST, FAULTY, ADAMW, MASTERS):
        with stage.trial(f"peak memory: {way}"):
            if stage.left() < 4:
                stage.not_run(f"peak memory: {way}", f"{stage.left():.0f} s were left")
                continue
            peaks[way] = apart(stage, way)
            tell(stage, way, peaks[way])
    if PASSES in peaks and BALLAST in peaks:
        judge(stage, peaks[PASSES], peaks[BALLAST])
    if PASSES in peaks and FAULTY in peaks:
        left = room_left(peaks[PASSES], peaks[FAULTY])
        stage.check("memory that is kept is noticed", left < 0,
                    f"with {PLANTED // MIB} MiB kept, {left / MIB:.1f} MiB of 64 are left")


def apart(stage: checks.Stage, way: str) -> dict[str, float]:
    """What `way` needed, from a process of its own. RuntimeError with its words."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=one, args=(stage, way, there), daemon=False)
    child.start()
    there.close()
    try:
        if not here.poll(max(1.0, stage.left() - 1)):
            raise RuntimeError(f"no answer within {stage.left():.0f} s")
        answer = here.recv()
    except EOFError:
        raise RuntimeError("its process ended without a word") from None
    finally:
        child.join(5)
        if child.is_alive():
            child.kill()
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return answer


def one(stage: checks.Stage, way: str, to: Connection) -> None:
    """In a process of its own: trains STEPS steps, sends their memory, or an error's text."""
    try:
        to.send(measured(stage, way))
    except Exception as error:
        to.send(f"{type(error).__name__}: {error}")
    to.close()


def measured(stage: checks.Stage, way: str) -> dict[str, float]:
    where = place.chosen(stage.cpu)
    size = sizes(stage.cpu)
    dtype = torch.float32 if way == MASTERS else torch.bfloat16
    model = where.put(peer_model.model(size, where.device, dtype))
    batch = peer_model.batches(size, where.device)[0]
    if way in (BALLAST, FAULTY):
        kept = torch.ones(PLANTED if way == FAULTY else 0, dtype=torch.uint8, device=where.device)
        with place.servers(stage.folder / f"servers-{kept.numel()}", 1) as running:
            opt = bt.AdamW(model.named_parameters(), endpoints=",".join(running.addresses),
                           job=place.fresh_job("memory"), rank=0, world_size=1,
                           durability="none")  # fmt: skip
            found = train(where, model, batch, opt.step, way)
            opt.close()
            return {**found, "kept": kept.numel()}
    if way == PASSES:
        return train(where, model, batch, lambda: None, way)
    fused = True if where.real else None
    return train(where, model, batch, torch.optim.AdamW(model.parameters(), fused=fused).step, way)


def train(
    where: place.RealGpu | place.Standin, model: torch.nn.Module, batch: torch.Tensor, step: Step,
    way: str,
) -> dict[str, float]:  # fmt: skip
    """The peak, in bytes: of torch, of the rest of the process, and of what torch had reserved."""
    if where.real:
        torch.cuda.reset_peak_memory_stats()  # Making the model took more.
    for _ in range(STEPS):
        with torch.autocast(where.device.type, torch.bfloat16, enabled=way == MASTERS):
            loss = model(batch)
        loss.backward()
        step()
        where.finish()
        model.zero_grad()
    count = sum(p.numel() for p in model.parameters())
    found: dict[str, float] = {"parameters": count, "loss": float(loss.detach())}
    if not where.real:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {**found, "torch": peak, "rest": 0, "reserved": peak}
    free, total = torch.cuda.mem_get_info()
    return {
        **found, "torch": torch.cuda.max_memory_allocated(),
        "rest": total - free - torch.cuda.memory_reserved(),
        "reserved": torch.cuda.max_memory_reserved(),
    }  # fmt: skip


def tell(stage: checks.Stage, way: str, peak: dict[str, Any]) -> None:
    whole, count = peak["torch"] + peak["rest"], peak["parameters"]
    what = "of the host's, the whole process" if stage.cpu else "of the GPU's"
    stage.measured(f"peak memory: {way}", round(peak["torch"] / count, 2), "bytes per parameter",
                   None, f"{count / 1e6:.0f} M parameters; {peak['torch'] / MIB:.0f} MiB by torch "
                   f"(reserved: {peak['reserved'] / MIB:.0f}), {peak['rest'] / MIB:.0f} MiB by "
                   f"CUDA and Ballast, {what}", whole_mib=round(whole / MIB, 1),
                   **peak)  # fmt: skip


def room_left(passes: dict[str, float], ours: dict[str, float]) -> float:
    """Bytes of OURS_MAX that Ballast did not take; less than 0 when it took more."""
    return OURS_MAX - sum(ours[part] - passes[part] for part in PARTS)


def judge(stage: checks.Stage, passes: dict[str, float], ours: dict[str, float]) -> None:
    """Ballast may add OURS_MAX to weights, gradients and activations."""
    left = room_left(passes, ours)
    more = {part: ours[part] - passes[part] for part in PARTS}
    stage.measured("what is left of 64 MiB besides weights, gradients and activations",
                   round(left / MIB, 2), "MiB", None if stage.cpu else 0,
                   f"Ballast added {more['torch'] / MIB:.1f} MiB in torch's memory and "
                   f"{more['rest'] / MIB:.1f} MiB besides", **more)  # fmt: skip


if __name__ == "__main__":
    checks.main("memory", run)
