"""Trainer in each of several processes; run by test_two_trainers.py.

Arguments: the folder, steps, and "resume" to continue from the newest folder. What two trainers
have resumed, torch trains from the beginning afterwards, in the same processes.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ballast.hf  # noqa: E402
from hf_trainer import tiny  # noqa: E402


def trained(folder, kind, steps, resume):
    """After `steps` of 6 the process ends. The weights are in folder/kind then."""
    args = tiny.arguments(
        folder, max_steps=6, save_strategy="steps" if kind == "ballast" else "no", save_steps=2,
        gradient_accumulation_steps=2)
    ours = kind == "ballast"
    optimizer = ballast.hf.optimizer(args=args) if ours else tiny.fused(args)
    run = tiny.trainer(
        tiny.model(), args, optimizer, [ballast.hf.Callback()] if ours else [])
    if steps < 6:
        run.add_callback(tiny.StopAt(steps))
    run.train(resume_from_checkpoint=resume)
    if args.process_index == 0:
        run.model.save_pretrained(Path(folder) / kind)
    return run


def main(folder, steps, resume):
    run = trained(folder, "ballast", steps, resume)
    if run.args.process_index == 0:
        inner = run.optimizer.optimizer
        print(inner.world_size, inner.opt_step, type(run.model_wrapped).__name__)
    if run.args.world_size > 1:
        trained(folder, "torch", 6, None)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:] == ["resume"])
