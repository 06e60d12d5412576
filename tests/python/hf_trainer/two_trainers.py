"""Trainer in each of several processes; run by test_two_trainers.py.

Arguments: the folder, "torch" or "ballast", steps, and "resume" to continue from the newest folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ballast.hf  # noqa: E402
from hf_trainer import tiny  # noqa: E402


def main(folder, kind, steps, resume):
    args = tiny.arguments(
        folder, max_steps=6, save_strategy="steps", save_steps=2,
        gradient_accumulation_steps=2)
    ours = kind == "ballast"
    optimizer = ballast.hf.optimizer(args=args) if ours else tiny.fused(args)
    run = tiny.trainer(
        tiny.model(), args, optimizer, [ballast.hf.Callback()] if ours else [])
    if steps < 6:
        run.add_callback(tiny.StopAt(steps))
    run.train(resume_from_checkpoint=resume)
    if args.process_index == 0:
        run.model.save_pretrained(Path(folder) / "end")
        if ours:
            inner = run.optimizer.optimizer
            print(inner.world_size, inner.opt_step, type(run.model_wrapped).__name__)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:] == ["resume"])
