"""The referee: torch.optim.AdamW(fused=True) on fp32 masters, fed the gradients that trainers push.

Comes from: train.py, over a socket (Line). Goes to: quickstart.py, which it lives in: outside the
trainers, so that it sees all of a run with kills. Gradients are summed in slot order; their
mean (and the unscaling) is one multiplication, as in the service (docs/numerics.md).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import threading
import zlib
from collections.abc import Iterable
from multiprocessing.connection import Client, Connection, Listener

import numpy as np
import torch

from model import ByteGPT, batch, learning_rate, loss_of, standard_library_text

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LOSS_SCALES = {"fp32": 1.0, "bf16": 1.0, "fp16": 1024.0}
ARRAYS = ("master", "exp_avg", "exp_avg_sq")
PHASES = ("push_ns", "wait_ns", "pull_ns", "collect_ns", "vote_ns", "step_ns")
# Trainers are at most this many steps ahead of the referee.
AHEAD = 8


def eval_steps(steps: int) -> set[int]:
    """After which steps the held-out loss is computed, 0 for before the first."""
    return {*range(0, steps + 1, max(1, steps // 5)), steps}


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """All values as one fp32 vector."""
    return torch.cat([t.detach().float().reshape(-1) for t in tensors])


class Line:
    """A trainer's line to the referee."""

    def __init__(self, address: str, rank: int) -> None:
        self._connection = Client(address)
        self._rank = rank

    def tell(self, what: str, step: int, values: torch.Tensor | None = None, **more) -> None:
        """`values`: an fp32 vector. Returns when it is on its way."""
        count = -1 if values is None else values.numel()
        header = {"what": what, "rank": self._rank, "step": step, "values": count, **more}
        self._connection.send_bytes(json.dumps(header).encode())
        if values is not None:
            self._connection.send_bytes(values.numpy())


@dataclasses.dataclass
class Progress:
    """begun, finished: steps, by whichever trainer is the furthest; the rest of rank 0's newest,
    which is loss_step."""

    begun: int = 0
    finished: int = 0
    loss_step: int = 0
    loss: float | None = None
    round_ms: float = 0.0


def round_ms(report: dict) -> float:
    return (report["push_ns"] + report["wait_ns"] + report["pull_ns"]) / 1e6


class Shadow:
    """The torch optimizer, and the model on which both are evaluated."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self._dtype, self._steps = DTYPES[args.dtype], args.steps
        self._model = ByteGPT().to(self._dtype)
        self.masters = [torch.nn.Parameter(flat([p]).view_as(p)) for p in self._model.parameters()]
        self._model.float()
        self._opt = torch.optim.AdamW(self.masters, lr=1e-3, fused=True)
        scale = 1.0 / (args.trainers * LOSS_SCALES[args.dtype])  # in double, used as fp32
        self._scale = torch.tensor(np.float32(scale))
        text = standard_library_text()
        valid = text[-(len(text) // 10) :]
        self._batches = [batch(valid, torch.Generator().manual_seed(i), 4) for i in range(2)]

    def step(self, number: int, gradients: list[torch.Tensor]) -> None:
        """Skips as the service must: judged by the sum here, not by the service's report."""
        total = gradients[0].clone()
        for other in gradients[1:]:
            total += other
        if not torch.isfinite(total).all():
            return
        total *= self._scale
        for master, gradient in zip(self.masters, self._split(total), strict=True):
            master.grad = gradient
        for group in self._opt.param_groups:
            group["lr"] = learning_rate(number - 1, self._steps)
        self._opt.step()

    def weights(self) -> torch.Tensor:
        """As a trainer would see them: masters rounded to the job's dtype."""
        return flat(master.detach().to(self._dtype) for master in self.masters)

    def loss(self, weights: torch.Tensor) -> float:
        """Held-out loss of a model with these weights."""
        names = [name for name, _ in self._model.named_parameters()]
        params = dict(zip(names, self._split(weights), strict=True))
        with torch.no_grad():
            losses = [float(loss_of(self._model, b, params)) for b in self._batches]
        return sum(losses) / len(losses)

    def differing_bits(self, state: torch.Tensor) -> dict[str, int]:
        """Bits that differ between the service's state and this one's, by array."""
        mine = [flat(self.masters), self._moments("exp_avg"), self._moments("exp_avg_sq")]
        theirs = state.split(len(state) // len(ARRAYS))
        return {n: _differing(a, b) for n, a, b in zip(ARRAYS, mine, theirs, strict=True)}

    def _moments(self, key: str) -> torch.Tensor:
        # torch has none before the first step not skipped.
        state = self._opt.state
        return flat(state[m].get(key, torch.zeros_like(m)) for m in self.masters)

    def _split(self, values: torch.Tensor) -> list[torch.Tensor]:
        parts = values.split([m.numel() for m in self.masters])
        return [part.view_as(m) for part, m in zip(parts, self.masters, strict=True)]


def _differing(a: torch.Tensor, b: torch.Tensor) -> int:
    left, right = a.numpy().view(np.uint32), b.numpy().view(np.uint32)
    return int(np.unpackbits((left ^ right).view(np.uint8)).sum())


class Referee:
    """Listens to all trainers, and steps alongside them. Any thread."""

    def __init__(self, args: argparse.Namespace, folder: pathlib.Path) -> None:
        torch.set_num_threads(1)
        self._world, self._steps = args.trainers, args.steps
        self._shadow = Shadow(args)
        # The path of a socket has at most 107 bytes, and that of the folder may be longer.
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        place = f"/proc/{os.getpid()}/fd/{self._folder}/referee"
        self._listener = Listener(place, "AF_UNIX", backlog=args.trainers)
        self._changed = threading.Condition()
        # Messages not yet dealt with.
        self._gradients: dict[tuple[int, int], torch.Tensor] = {}  # by step and rank
        self._weights: dict[int, torch.Tensor] = {}  # by step
        self._state: torch.Tensor | None = None
        self._durability = ""
        # Results so far.
        self._progress = Progress()
        self._stepped = 0  # by the shadow
        self._losses: dict[int, float] = {}  # of rank 0's batches
        self._reports: list[dict] = []  # of all ranks
        # By step: the service's held-out loss, and torch's.
        self._evals: dict[int, list[float | None]] = {}
        for step in eval_steps(self._steps):
            self._evals[step] = [None, None]
        self._evals[0][1] = self._shadow.loss(self._shadow.weights())
        self._verdict: dict | None = None
        self._failure: BaseException | None = None
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._start(self._accept)
        self._start(self._guard, self._judge)

    @property
    def address(self) -> str:
        return self._listener.address

    def progress(self) -> Progress:
        with self._changed:
            return dataclasses.replace(self._progress)

    def done(self, timeout_s: float) -> bool:
        """Waits up to timeout_s for the verdict or the error that prevents it; returns whether
        there was one."""
        with self._changed:
            return bool(
                self._changed.wait_for(lambda: self._verdict or self._failure, timeout_s)
            )

    def verdict(self) -> dict:
        """What quickstart.py shows, once all trainers have ended well and it is done()."""
        with self._changed:
            if self._verdict is None:
                raise RuntimeError(f"the referee came to step {self._stepped}") from self._failure
            return self._verdict

    def close(self) -> None:
        """Once all trainers have ended: takes no more lines, and its place in the folder is gone.

        Waits for its threads. A thread inside torch while the interpreter ends would take the
        whole process down with "terminate called without an active exception".
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        Client(self.address).close()  # accept() does not end by itself
        for thread in self._threads:
            thread.join()
        self._listener.close()
        os.close(self._folder)

    def _start(self, target, *args) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    # ---- listening

    def _accept(self) -> None:
        while True:
            try:
                line = self._listener.accept()
            except OSError:
                return
            with self._changed:
                if self._closed:
                    line.close()
                    return
                self._start(self._guard, self._listen, line)

    def _guard(self, work, *args) -> None:
        try:
            work(*args)
        except Exception as error:
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()

    def _listen(self, line: Connection) -> None:
        while True:
            try:
                told = json.loads(line.recv_bytes())
                values = None
                if told["values"] >= 0:
                    values = torch.empty(told["values"])
                    line.recv_bytes_into(memoryview(values.numpy()).cast("B"))
            except (EOFError, OSError):
                return  # The trainer has ended, or was killed; half a message is none.
            with self._changed:
                self._take(told, values)
                self._changed.notify_all()
                self._changed.wait_for(
                    lambda: told["step"] <= self._stepped + AHEAD or self._failure or self._closed
                )

    def _take(self, told: dict, values: torch.Tensor | None) -> None:
        step, progress = told["step"], self._progress
        if told["what"] == "gradient":
            # A killed trainer that continues says it again.
            self._gradients[step, told["rank"]] = values
            progress.begun = max(progress.begun, step)
        elif told["what"] == "weights":
            self._weights[step] = values
        elif told["what"] == "state":
            self._state, self._durability = values, told["durability"]
        elif told["what"] == "finished":
            progress.finished = max(progress.finished, step)
            if told["report"] is not None:
                self._reports.append({**told["report"], "rank": told["rank"]})
            if told["rank"] == 0:
                progress.loss_step = step
                self._losses[step] = progress.loss = told["loss"]
                if told["report"] is not None:  # else by a restarted trainer
                    progress.round_ms = round_ms(told["report"])

    # ---- judging

    def _judge(self) -> None:
        while self._verdict is None:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._next_step() or self._weights or self._done() or self._closed
                )
                if self._closed:
                    return
                gradients, weights = self._next_step(), dict(self._weights)
                self._weights.clear()
            if gradients:
                self._step(gradients)
            for step, values in weights.items():
                self._evals[step][0] = self._shadow.loss(values)
            if self._done():
                self._conclude()

    def _next_step(self) -> list[torch.Tensor] | None:
        """The gradients of the next step, in slot order, if it is finished."""
        step = self._stepped + 1
        told = [self._gradients.get((step, rank)) for rank in range(self._world)]
        ready = step <= self._progress.finished and all(g is not None for g in told)
        return told if ready else None

    def _step(self, gradients: list[torch.Tensor]) -> None:
        step = self._stepped + 1
        self._shadow.step(step, gradients)
        if step in self._evals:
            self._evals[step][1] = self._shadow.loss(self._shadow.weights())
        with self._changed:
            self._stepped = step
            self._gradients = {k: g for k, g in self._gradients.items() if k[0] > step}
            self._changed.notify_all()

    def _done(self) -> bool:
        return (
            self._state is not None
            and self._stepped == self._steps
            and all(ours is not None for ours, _ in self._evals.values())
        )

    def _conclude(self) -> None:
        differing = self._shadow.differing_bits(self._state)
        mine = [r for r in self._reports if r["rank"] == 0]
        rounds = mine[1:] or mine  # the first one also warms everything up
        with self._changed:
            self._verdict = {
                "durability": self._durability,
                "parameters": len(self._state) // len(ARRAYS),
                "differing": differing,
                "state_crc32": zlib.crc32(self._state.numpy()),
                "losses": sorted(self._losses.items()),
                "evals": [[step, *losses] for step, losses in sorted(self._evals.items())],
                "bytes_up": sum(r["bytes_up"] for r in self._reports),
                "bytes_down": sum(r["bytes_down"] for r in self._reports),
                "round_ms_p50": statistics.median(round_ms(r) for r in rounds),
                "phases_ms_p50": {
                    phase[:-3]: statistics.median(r[phase] for r in rounds) / 1e6
                    for phase in PHASES
                },
            }
            self._changed.notify_all()
