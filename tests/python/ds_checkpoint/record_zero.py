"""Writes the DeepSpeed checkpoints that tests of ballast.ds_checkpoint read, and their contents.

Comes from: a developer's shell, where DeepSpeed 0.19.8 can be imported. Goes to: an archive of each
of VARIANTS. `python record_zero.py DIRECTORY [VARIANT ...] [--large N] [--keep]`.

Each holds a checkpoint of two ranks after three steps, `step3`; what DeepSpeed's own converters
made of it, `step3_universal` and `zero_to_fp32.pt`; and `next.pt`, the masters after the next step.
--large N makes a model with N times the width. --keep leaves the folders.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

STEPS = 3
# By name: the stage, and whether the ranks take the parameters in turns.
VARIANTS = {"stage1": (1, False), "stage2": (2, False), "turns": (2, True), "stage3": (3, False)}


class Toy(torch.nn.Module):
    """Odd sizes, a tied and a frozen weight, buffers of three dtypes."""

    def __init__(self, width):
        super().__init__()
        self.embedding = torch.nn.Embedding(13, 5 * width)
        self.middle = torch.nn.Linear(5 * width, 7 * width)
        self.norm = torch.nn.LayerNorm(7 * width)
        self.down = torch.nn.Linear(7 * width, 5 * width, bias=False)
        self.frozen = torch.nn.Parameter(torch.randn(3, 5 * width), requires_grad=False)
        self.scale = torch.nn.Parameter(torch.tensor([1.5]))
        self.head = torch.nn.Linear(5 * width, 13, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("count", torch.tensor(12345678901))
        self.register_buffer("shift", torch.rand(7 * width))

    def forward(self, tokens):
        hidden = self.middle(self.embedding(tokens))
        hidden = self.norm(hidden + self.shift.to(hidden.dtype)).relu()
        hidden = self.down(hidden) * self.scale + self.frozen[0]
        return torch.nn.functional.cross_entropy(self.head(hidden), (tokens + 1) % 13)


def config(stage, turns):
    return {
        "train_micro_batch_size_per_gpu": 6,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": stage,
            "offload_optimizer": {"device": "cpu"},
            "stage3_param_persistence_threshold": 0,
            "sub_group_size": 40,
            "round_robin_gradients": turns,
        },
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1000,
    }


def named_groups(model):
    """The trained parameters with and without weight decay."""
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    return [(n, p) for n, p in trained if p.dim() > 1], [(n, p) for n, p in trained if p.dim() <= 1]


def names_of_groups(width=1):
    return [[n for n, _ in group] for group in named_groups(Toy(width))]


def groups_of(model):
    matrices, vectors = ([p for _, p in group] for group in named_groups(model))
    return [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]


def engine_of(variant, width, extra=None):
    import deepspeed

    torch.manual_seed(7)
    model = Toy(width)
    optimizer = torch.optim.AdamW(groups_of(model), lr=0.01)
    settings = {**config(*VARIANTS[variant]), **(extra or {})}
    return deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0]


def train(engine, rank, first=0, count=STEPS):
    for step in range(first, first + count):
        generator = torch.Generator().manual_seed(100 * step + rank)
        loss = engine(torch.randint(0, 13, (6,), generator=generator))
        engine.backward(loss)
        engine.step()


def rank_main(variant, directory, width):
    import deepspeed

    deepspeed.init_distributed("gloo")
    engine = engine_of(variant, width)
    train(engine, int(os.environ["RANK"]))
    engine.save_checkpoint(directory, tag="step3", client_state={"note": "ten\u00e9"})
    train(engine, int(os.environ["RANK"]), first=STEPS, count=1)
    engine.save_checkpoint(directory / "next", tag="step4")


def continue_from(variant, directory, width, universal):
    """Loads a universal checkpoint, saves it as ZeRO's, and again after a step."""
    import deepspeed

    deepspeed.init_distributed("gloo")
    engine = engine_of(variant, width, {"checkpoint": {"load_universal": True}})
    engine.load_checkpoint(universal)
    engine.save_checkpoint(directory, tag="loaded")
    # Stage 3 of 0.19.8 gives one tensor of steps to all sub-groups, and torch counts in place.
    for state in engine.optimizer.optimizer.state.values():
        state["step"] = state["step"].clone()
    train(engine, int(os.environ["RANK"]), first=STEPS, count=1)
    engine.save_checkpoint(directory, tag="continued")


def run_ranks(arguments, world=2, port=29531):
    """Starts this script once per rank; raises when one fails."""
    ranks = []
    for rank in range(world):
        environ = {
            **os.environ, "DS_ACCELERATOR": "cpu", "MASTER_ADDR": "127.0.0.1",
            "OMP_NUM_THREADS": "1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        ranks.append(subprocess.Popen([sys.executable, *arguments], env=environ))
    codes = [rank.wait() for rank in ranks]
    if any(codes):
        raise SystemExit(f"ranks ended with {codes}")


def expect(folder, name):
    """What DeepSpeed's own converter says, for the tests to compare with."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    values = get_fp32_state_dict_from_zero_checkpoint(folder)
    torch.save({key: value.clone() for key, value in values.items()}, name)


def to_universal(folder):
    from deepspeed.checkpoint import ds_to_universal

    ds_to_universal.main(argparse.Namespace(
        input_folder=str(folder / "step3"), output_folder=str(folder / "step3_universal"),
        num_extract_workers=1, num_merge_workers=1, keep_temp_folder=False, strict=True,
        inject_missing_state=True))


def record(directory, variant, width, keep):
    folder = directory / variant
    shutil.rmtree(folder, ignore_errors=True)
    run_ranks([__file__, str(folder), variant, "--large", str(width), "--as-rank"])
    for script in folder.glob("**/zero_to_*.py"):
        script.unlink()
    expect(folder, folder / "zero_to_fp32.pt")
    expect(folder / "next", folder / "next.pt")
    shutil.rmtree(folder / "next")
    to_universal(folder)
    shutil.make_archive(str(folder), "xztar", folder)
    if not keep:
        shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--large", type=int, default=1)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--as-rank", action="store_true", help="for the ranks that this starts")
    parser.add_argument("--continue-from", help="a universal checkpoint")
    options = parser.parse_args()
    if options.continue_from:
        return continue_from(
            options.variants[0], options.directory, options.large, options.continue_from)
    if options.as_rank:
        return rank_main(options.variants[0], options.directory, options.large)
    for variant in options.variants:
        record(options.directory, variant, options.large, options.keep)
    return None


if __name__ == "__main__":
    main()
