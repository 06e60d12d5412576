"""The process of one contestant: builds it and takes steps when its standard input says so.

Comes from: peer_turns.py. Lines of JSON: a spec as argument, commands on stdin, answers on the
process's original stdout; other output goes to stderr. Ends at the end of stdin.

    {"do": "build"}               {"parameters", "seconds"}
    {"do": "run", "steps": N}     {"seconds", "losses"}: of N whole steps, from idle to idle
    {"do": "split", "steps": N}   {"forward_backward", "step", ...}: seconds of each part, in steps
                                  with a wait after each part
    {"do": "memory"}              bytes: peaks since the process began, and of the steps
    {"do": "bits", "steps": N}    Ballast only, on the CPU: bits that differ from torch's AdamW
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import signal
import statistics
import sys
import time
import traceback
from typing import Any

import torch
from gpu_kit import peer_contestants, peer_reference


class Process:
    """The object of the commands."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.cuda = spec["device"] == "cuda"
        self.contestant: peer_contestants.Contestant | None = None

    def finish(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def build(self) -> dict[str, Any]:
        began = time.perf_counter()
        self.contestant = peer_contestants.KINDS[self.spec["kind"]](self.spec)
        self.finish()
        count = sum(p.numel() for p in self.contestant.module.parameters())
        return {"parameters": count, "seconds": time.perf_counter() - began}

    def run(self, steps: int) -> dict[str, Any]:
        losses = []
        self.finish()
        began = time.perf_counter()
        for _ in range(steps):
            losses.append(self.contestant.forward_backward())
            self.contestant.step()
        self.finish()
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "losses": [float(loss) for loss in losses]}

    def split(self, steps: int) -> dict[str, Any]:
        before, after, losses = [], [], []
        for _ in range(steps):
            self.finish()
            began = time.perf_counter()
            losses.append(self.contestant.forward_backward())
            self.finish()
            between = time.perf_counter()
            self.contestant.step()
            self.finish()
            before.append(between - began)
            after.append(time.perf_counter() - between)
        return {
            "forward_backward": statistics.median(before), "step": statistics.median(after),
            "losses": [float(loss) for loss in losses], **self.contestant.said(),
        }  # fmt: skip

    def memory(self) -> dict[str, Any]:
        found = {"host_peak": high_water(), "host_now": resident()}
        if self.cuda:
            free, total = torch.cuda.mem_get_info()
            found |= {
                "gpu_peak": torch.cuda.max_memory_allocated(),
                "gpu_reserved": torch.cuda.max_memory_reserved(),
                "gpu_at_rest": torch.cuda.memory_allocated(),
                "gpu_free": free, "gpu_total": total,
            }  # fmt: skip
        return found

    def bits(self, steps: int) -> dict[str, Any]:
        return peer_reference.differing_bits(self.contestant, steps)

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        name = command.pop("do")
        if name not in ("build", "run", "split", "memory", "bits"):
            raise ValueError(f"unknown command {name!r}")
        return getattr(self, name)(**command)


def high_water() -> int:
    """The most bytes of memory that this process has had, of mapped files, too."""
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident() -> int:
    return _status("VmRSS")


def _status(key: str) -> int:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    return 0


def main() -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    faulthandler.register(signal.SIGUSR1)  # A process that hangs is asked where.
    spec = json.loads(sys.argv[1])
    if spec.get("threads"):
        torch.set_num_threads(spec["threads"])

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    process = Process(spec)
    try:
        say({"version": peer_contestants.prepare(spec), "host_now": resident()})
        for line in sys.stdin:
            say(process.answer(json.loads(line)))
        if process.contestant is not None:
            process.contestant.close()
    except Exception as error:
        traceback.print_exc()
        say({"error": f"{type(error).__name__}: {error}"[:600]})
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # Others leave threads that would be waited for.
