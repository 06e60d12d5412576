"""The training script of the quickstart; run by ballast-run, one process per trainer.

An ordinary data-parallel loop that may be killed at any instant: the lines that mention Ballast are
the import, the optimizer, and those that continue where the last process of this rank was. The
messages to the referee are for the comparison with torch only.
"""

from __future__ import annotations

import argparse
import os

import torch

import ballast
import ballast.torch as bt

from model import ByteGPT, batch, learning_rate, loss_of, standard_library_text
from referee import ARRAYS, DTYPES, LOSS_SCALES, Line, eval_steps, flat


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--dtype", choices=DTYPES, required=True)
    parser.add_argument("--batch", type=int, required=True, help="sequences per trainer and step")
    parser.add_argument("--referee", required=True, help="the referee's address")
    parser.add_argument(
        "--small-extents",
        action="store_true",
        help="cut the state fine, so that a budget far below this small model's state makes sense",
    )
    return parser.parse_args()


def widened(model: torch.nn.Module) -> dict[str, torch.Tensor] | None:
    """fp32 views of 16-bit parameters for the forward pass; their gradients come back as 16-bit."""
    if next(model.parameters()).dtype == torch.float32:
        return None
    return {name: p.float() for name, p in model.named_parameters()}


def state_of(opt: bt.AdamW) -> torch.Tensor:
    """Masters and moments out of the service, array by array."""
    state = opt.export_state()["state"]
    return flat(state[i][array] for array in ARRAYS for i in sorted(state))


def main() -> None:
    args = parse()
    rank = int(os.environ["RANK"])
    text = standard_library_text()
    train = text[: -(len(text) // 10)]  # the rest is held out
    torch.manual_seed(0)
    model = ByteGPT().to(DTYPES[args.dtype])
    loss_scale = LOSS_SCALES[args.dtype]
    extents = {"extent_elements": 65536} if args.small_extents else {}
    opt = bt.AdamW(model.named_parameters(), lr=1e-3, loss_scale=loss_scale, **extents)
    sampler = torch.Generator().manual_seed(rank)  # draws this rank's batches
    line = Line(args.referee, rank)

    def show_weights() -> None:
        if rank == 0 and opt.round in eval_steps(args.steps):
            line.tell("weights", opt.round, flat(model.parameters()))

    opt.attach()
    if opt.user_state:  # an earlier process of this rank was killed after opt.round steps
        bt.set_random_state(opt.user_state["sampler"], sampler)
        line.tell("finished", opt.round, loss=opt.user_state["loss"], report=None)
    show_weights()
    for step in range(opt.round, args.steps):
        for group in opt.param_groups:
            group["lr"] = learning_rate(step, args.steps)
        loss = loss_of(model, batch(train, sampler, args.batch), widened(model))
        (loss * loss_scale).backward()
        line.tell("gradient", step + 1, flat(p.grad for p in model.parameters()))
        opt.user_state = {"sampler": bt.random_state(sampler), "loss": loss.item()}
        opt.step()
        opt.zero_grad()
        line.tell("finished", opt.round, loss=loss.item(), report=opt.last_report)
        show_weights()

    if rank == 0:
        line.tell("state", opt.round, state_of(opt), durability=opt.durability)
    opt.close()


if __name__ == "__main__":
    try:
        main()
    except ballast.BallastError as error:
        # The text holds the fault and the next step; a traceback would add nothing.
        raise SystemExit(f"train.py: {error}") from None
