"""The training script of the quickstart; run by ballast-run, one process per trainer.

An ordinary data-parallel loop: the two lines that mention Ballast are the import and the optimizer.
Everything else that is not training is the shadow optimizer and the report.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics

import torch
import torch.distributed as dist

import ballast.torch as bt

from model import ByteGPT, batch_at, learning_rate, loss_of, standard_library_text
from shadow import Shadow

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PHASES = ("push_ns", "collect_ns", "vote_ns", "step_ns", "pull_ns")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--dtype", choices=DTYPES, required=True)
    parser.add_argument("--batch", type=int, required=True, help="sequences per trainer and step")
    parser.add_argument("--progress", type=pathlib.Path, required=True)
    parser.add_argument("--result", type=pathlib.Path, required=True)
    return parser.parse_args()


def widened(model: torch.nn.Module) -> dict[str, torch.Tensor] | None:
    """fp32 views of 16-bit parameters for the forward pass; their gradients come back as 16-bit."""
    if next(model.parameters()).dtype == torch.float32:
        return None
    return {name: p.float() for name, p in model.named_parameters()}


def evaluate(model: torch.nn.Module, batches: list[torch.Tensor], params: dict | None) -> float:
    with torch.no_grad():
        return sum(float(loss_of(model, b, params)) for b in batches) / len(batches)


class Report:
    """What rank 0 tells the quickstart: progress while it runs, the numbers at the end."""

    def __init__(self, args: argparse.Namespace, rank: int) -> None:
        self._path = args.progress
        self._active = rank == 0
        self.losses: list[list[float]] = []  # step, train loss
        self.evals: list[list[float]] = []  # step, Ballast, torch
        self.rounds: list[dict] = []

    def begin(self) -> None:
        """The next round is about to run."""
        self._tell(round=len(self.rounds) + 1)

    def step(self, step: int, loss: float, report: dict) -> None:
        self.losses.append([step, loss])
        self.rounds.append(report)
        self._tell(round=step, loss=loss, round_ms=round_ms(report))

    def _tell(self, **state: float) -> None:
        if not self._active:
            return
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"step": len(self.rounds), **state}))
        temporary.replace(self._path)


def round_ms(report: dict) -> float:
    return (report["push_ns"] + report["wait_ns"] + report["pull_ns"]) / 1e6


def main() -> None:
    args = parse()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world > 1:
        dist.init_process_group("gloo")
    loss_scale = 1024.0 if args.dtype == "fp16" else 1.0

    torch.manual_seed(0)
    text = standard_library_text()
    held_out = len(text) // 10
    train, valid = text[:-held_out], text[-held_out:]
    model = ByteGPT().to(DTYPES[args.dtype])
    params = list(model.parameters())
    opt = bt.AdamW(model.named_parameters(), lr=1e-3, loss_scale=loss_scale)

    shadow = Shadow(params, rank, world, 1.0 / (world * loss_scale))
    shadow_model = ByteGPT() if rank == 0 else None
    valid_batches = [batch_at(valid, i, 0, 4) for i in range(2)]
    report = Report(args, rank)

    def compare(step: int) -> None:
        if rank != 0:
            return
        # The shadow's weights as the trainer would see them: masters rounded to the job's dtype.
        names = [name for name, _ in model.named_parameters()]
        seen = [m.detach().to(DTYPES[args.dtype]).float() for m in shadow.masters]
        mine = {n: p.detach().float() for n, p in model.named_parameters()}
        report.evals.append(
            [
                step,
                evaluate(shadow_model, valid_batches, mine),
                evaluate(shadow_model, valid_batches, dict(zip(names, seen))),
            ]
        )

    compare(0)
    for step in range(args.steps):
        lr = learning_rate(step, args.steps)
        for group in opt.param_groups:
            group["lr"] = lr
        loss = loss_of(model, batch_at(train, step, rank, args.batch), widened(model))
        (loss * loss_scale).backward()
        shadow.step(lr)
        report.begin()
        opt.step()
        opt.zero_grad()
        report.step(step + 1, float(loss.detach()), opt.last_report)
        if (step + 1) % max(1, args.steps // 5) == 0 or step + 1 == args.steps:
            compare(step + 1)

    write_result(args, opt, shadow, report, rank, world)
    opt.close()
    if world > 1:
        dist.destroy_process_group()


def write_result(args, opt, shadow, report, rank, world) -> None:
    counters = torch.tensor(
        [opt.counters["payload_up_bytes"], opt.counters["payload_down_bytes"]], dtype=torch.int64
    )
    if world > 1:
        dist.all_reduce(counters)
    if rank != 0:
        return
    rounds = report.rounds[1:] or report.rounds  # the first one also warms everything up
    result = {
        "durability": opt.durability,
        "pauses_ms": [r["paused_ms"] for r in report.rounds if r["reconnects"]],
        "parameters": sum(m.numel() for m in shadow.masters),
        "differing": shadow.differing_bits(opt.export_state()),
        "losses": report.losses,
        "evals": report.evals,
        "bytes_up": int(counters[0]),
        "bytes_down": int(counters[1]),
        "round_ms_p50": statistics.median(round_ms(r) for r in rounds),
        "phases_ms_p50": {p[:-3]: statistics.median(r[p] for r in rounds) / 1e6 for p in PHASES},
    }
    args.result.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
