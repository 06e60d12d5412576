"""Import statements of DeepSpeed scripts, after `sed s/deepspeed/ballast.deepspeed/`.

deepspeed_names.txt has every module of DeepSpeed 0.19.8, and the names of those that are here, too.
"""

from __future__ import annotations

import importlib
import logging
import re
import sys
from pathlib import Path

import ballast.deepspeed as deepspeed
import ballast.torch as bt
import pytest
import torch
from ballast.deepspeed import submodules
from ballast.errors import Unsupported

TEXT = re.compile(r"ballast\.deepspeed(\.[\w.]+)? has no '\w+': (?!docs/deepspeed.md)\S.{7}")
LINES = Path(__file__).with_name("deepspeed_names.txt").read_text().splitlines()
RECORDED = {module: names.split() for module, _, names in (line.partition(":") for line in LINES)}


def absolute(module):
    return f"ballast.deepspeed.{module}" if module else "ballast.deepspeed"


def taken(statement):
    """What the statement binds; None where it raises the error that says what to use."""
    bound = {}
    try:
        exec(statement, bound)
    except ModuleNotFoundError as error:
        assert TEXT.match(str(error)), f"{statement}: {error}"
        return None
    bound.pop("__builtins__")
    return bound


def test_every_module_of_deepspeed_is_there_or_says_what_to_use():
    there = {module for module in RECORDED if taken(f"import {absolute(module)}") is not None}
    assert there == {"", "checkpoint", "comm", "utils", *submodules.MODULES}


@pytest.mark.parametrize("module", [module for module, names in RECORDED.items() if names])
def test_every_name_of_a_module_that_is_here_is_there_or_says_what_to_use(module):
    there = {n for n in RECORDED[module] if taken(f"from {absolute(module)} import {n}")}
    # DeepSpeed's op_builder makes its names when it is imported.
    if module != "ops.op_builder":
        assert set(submodules.MODULES.get(module, {})) <= there
    for name in set(RECORDED[module]) - there:
        assert not hasattr(importlib.import_module(absolute(module)), name)


@pytest.mark.parametrize(("statement", "says"), [
    ("from ballast.deepspeed.ops.lamb import FusedLamb", "ops has no 'lamb': .*ballast.torch.LAMB"),
    ("from ballast.deepspeed.ops.adam import ZenFlowCPUAdam", "ops.adam has no 'ZenFlowCPUAdam'"),
    ("import ballast.deepspeed.runtime.zero.stage3", "runtime has no 'zero': .*zero.Init"),
    ("from ballast.deepspeed import zero", "deepspeed has no 'zero': .*zero.Init"),
    ("from ballast.deepspeed.utils import groups", "utils has no 'groups': .*torch.distributed"),
    ("from ballast.deepspeed.utils.zero_to_fp32 import load", "use ballast-zero-to-fp32"),
    ("from ballast.deepspeed.runtime.lr_schedules import WarmupLR", "schedules.WarmupLR"),
    ("from ballast.deepspeed.comm import all_reduce", "comm has no 'all_reduce': .*distributed"),
    ("from ballast.deepspeed.checkpoint.utils import x", "checkpoint has no 'utils': .*fp32"),
    ("from ballast.deepspeed import nonsense", "has no 'nonsense': docs/deepspeed.md has the"),
    ("import ballast.deepspeed.nonsense", "has no 'nonsense': docs/deepspeed.md has the"),
])  # fmt: skip
def test_both_kinds_of_import_say_what_to_use(statement, says):
    with pytest.raises(ModuleNotFoundError, match=says):
        exec(statement, {})
    assert "ballast.deepspeed.nonsense" not in sys.modules


def test_what_has_a_counterpart_is_it():
    from ballast.deepspeed.ops.aio import AsyncIOBuilder
    from ballast.deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint
    from ballast.deepspeed.runtime.engine import DeepSpeedEngine
    from ballast.deepspeed.utils.tensor_fragment import safe_get_full_fp32_param
    from ballast.ops.op_builder import AsyncIOBuilder as ours

    assert AsyncIOBuilder is ours is deepspeed.ops.op_builder.AsyncIOBuilder
    assert checkpoint is deepspeed.checkpointing.checkpoint
    assert DeepSpeedEngine is deepspeed.DeepSpeedEngine
    assert safe_get_full_fp32_param is deepspeed.utils.safe_get_full_fp32_param
    assert deepspeed.ops.adam.FusedAdam.__module__ == "ballast.deepspeed.optimizers"


def stepped(make, of):
    """The weights after two rounds, and those of torch's own optimizer `of`."""
    found = []
    for own in (False, True):
        torch.manual_seed(0)
        module = torch.nn.Linear(8, 8)
        optimizer = (of if own else make)(module.parameters())
        step, back = optimizer.step, torch.Tensor.backward
        if not own:
            engine, used, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config={
                "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.0})  # fmt: skip
            assert isinstance(used, bt.AdamW | bt.Adam | bt.Adagrad)
            step, back = engine.step, lambda loss, engine=engine: engine.backward(loss)
        for i in range(2):
            back(module(torch.full((2, 8), i + 0.5)).square().mean())
            step()
            module.zero_grad()
        found.append(module.weight.detach().clone())
    return found


@pytest.mark.parametrize(("name", "options", "of", "same"), [
    ("FusedAdam", {"lr": 0.1, "weight_decay": 0.5}, torch.optim.AdamW, None),
    ("DeepSpeedCPUAdam", {"lr": 0.1, "weight_decay": 0.5, "adamw_mode": False}, torch.optim.Adam,
     {"lr": 0.1, "weight_decay": 0.5}),
    ("DeepSpeedCPUAdam", {}, torch.optim.AdamW, {"weight_decay": 0.0}),
    ("DeepSpeedCPUAdagrad", {"lr": 0.1}, torch.optim.Adagrad, None),
])  # fmt: skip
def test_an_optimizer_class_is_taken_over(fake, name, options, of, same):
    kinds = {**vars(deepspeed.ops.adam), **vars(deepspeed.ops.adagrad)}
    same = options if same is None else same
    ours, torchs = stepped(
        lambda p: kinds[name](p, **options), lambda p: of(p, **same))
    assert torch.equal(ours, torchs)


def test_arguments_that_the_service_lacks_are_refused():
    p = [torch.nn.Parameter(torch.zeros(1))]
    adam = deepspeed.ops.adam
    with pytest.raises(Unsupported, match=r"FusedAdam\(bias_correction=False\): leave it out"):
        adam.FusedAdam(p, bias_correction=False)
    with pytest.raises(Unsupported, match="DeepSpeedCPUAdam or torch.optim.AdamW"):
        adam.FusedAdam(p, amsgrad=True)
    with pytest.raises(Unsupported, match=r"DeepSpeedCPUAdagrad\(amsgrad=True\)"):
        deepspeed.ops.adagrad.DeepSpeedCPUAdagrad(p, amsgrad=True)


@pytest.mark.parametrize(("rank", "world", "ranks", "shown"), [
    (0, 1, None, True), (0, 2, None, False), (0, 2, [0], True), (1, 2, [0], False),
    (1, 2, [-1], True), (1, 2, (0, 1), True),
])  # fmt: skip
def test_log_dist_logs_on_the_ranks_it_names(monkeypatch, rank, world, ranks, shown):
    from ballast.deepspeed.utils import log_dist, logger

    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append((record.getMessage(), record.filename))
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world))
    log_dist("begun", ranks=ranks)
    assert lines == [(f"[Rank {rank}] begun", "test_submodules.py")] * shown


def test_a_repeating_loader_begins_anew():
    batches = deepspeed.utils.RepeatingLoader([1, 2])
    assert [next(batches) for _ in range(5)] == [1, 2, 1, 2, 1]
    assert iter(batches) is batches
    with pytest.raises(StopIteration):
        next(deepspeed.utils.RepeatingLoader([]))
