"""Import statements of DeepSpeed scripts, after `sed s/deepspeed/ballast.deepspeed/`.

deepspeed_names.txt has every module of DeepSpeed 0.19.8, and the names of those modules here, too.
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
from ballast.deepspeed.refused import REFUSED
from ballast.errors import BadArgument, Unsupported

TEXT = re.compile(r"ballast\.deepspeed(\.[\w.]+)? has no '\w+': (?!docs/deepspeed.md)\S.{7}")
LINES = Path(__file__).with_name("deepspeed_names.txt").read_text().splitlines()
RECORDED = {module: names.split() for module, _, names in (line.partition(":") for line in LINES)}


def absolute(module):
    return f"ballast.deepspeed.{module}" if module else "ballast.deepspeed"


def taken(statement):
    """The value that the statement binds; None where it raises the error that says what to use."""
    bound = {}
    try:
        exec(statement, bound)
    except ModuleNotFoundError as error:
        assert TEXT.match(str(error)), f"{statement}: {error}"
        return None
    bound.pop("__builtins__")
    return bound


def logged(monkeypatch):
    """Lines of deepspeed.utils.logger from now on, each with the file that wrote it."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append((record.getMessage(), record.filename))
    monkeypatch.setattr(deepspeed.utils.logger, "handlers", [handler])
    return lines


def test_every_module_of_deepspeed_is_there_or_says_what_to_use():
    there = {module for module in RECORDED if taken(f"import {absolute(module)}") is not None}
    assert there == {"", "accelerator", "comm", "utils", *submodules.MODULES}
    assert set(REFUSED) <= there


@pytest.mark.parametrize("module", [module for module, names in RECORDED.items() if names])
def test_every_name_of_a_module_that_is_here_is_there_or_says_what_to_use(module):
    there = {n for n in RECORDED[module] if taken(f"from {absolute(module)} import {n}")}
    ours = submodules.MODULES.get(module, {})
    # DeepSpeed's op_builder and git_version_info make their names when they are imported.
    if isinstance(ours, dict) and module not in ("ops", "git_version_info"):
        assert {name for name in ours if name[0] != "_"} <= there
    for name in set(RECORDED[module]) - there:
        assert not hasattr(importlib.import_module(absolute(module)), name)


@pytest.mark.parametrize("module", [module for module, names in REFUSED.items() if names])
def test_what_is_refused_at_its_use_can_be_imported(module):
    names = REFUSED[module].split()
    if RECORDED[module]:  # else they come from a submodule
        assert set(names) <= set(RECORDED[module])
    for name in names:
        found = taken(f"from {absolute(module)} import {name}")[name]
        assert not isinstance(torch.nn.Linear(1, 1), found)
        for use in (found, type("Own", (torch.nn.Module, found), {})):
            with pytest.raises(Unsupported, match=TEXT):
                use(1, key=2)
        with pytest.raises(AttributeError, match=TEXT):
            found.anything


@pytest.mark.parametrize(("statement", "says"), [
    ("import ballast.deepspeed.runtime.zenflow", "runtime has no 'zenflow': .*initialize"),
    ("from ballast.deepspeed.runtime.zero import stage4", "runtime.zero has no 'stage4': .*whole"),
    ("from ballast.deepspeed.utils.zero_to_fp32 import load", "use ballast-zero-to-fp32"),
    ("from ballast.deepspeed.runtime.lr_schedules import CosineLR", "schedules.WarmupLR"),
    ("from ballast.deepspeed.comm import gossip", "comm has no 'gossip': .*distributed"),
    ("from ballast.deepspeed.checkpoint.utils import x", "utils has no 'x': .*fp32"),
    ("from ballast.deepspeed import nonsense", "has no 'nonsense': docs/deepspeed.md has the"),
    ("import ballast.deepspeed.nonsense", "has no 'nonsense': docs/deepspeed.md has the"),
])  # fmt: skip
def test_both_kinds_of_import_say_what_to_use(statement, says):
    with pytest.raises(ModuleNotFoundError, match=says):
        exec(statement, {})
    assert "ballast.deepspeed.nonsense" not in sys.modules


def test_names_that_mean_nothing_below_stage_3_do_nothing():
    module = torch.nn.Sequential(torch.nn.Linear(1, 1))
    # As scripts have it that also run at stage 3.
    from ballast.deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

    with deepspeed.zero.Init(config_dict_or_path={}, enabled=True):
        inside = torch.nn.Linear(1, 1)
    with deepspeed.zero.GatheredParameters(inside.weight, modifier_rank=0):
        assert not hasattr(inside.weight, "ds_id") and ZeroParamStatus.NOT_AVAILABLE.value == 2
    assert deepspeed.runtime.zero.GatheredParameters is deepspeed.zero.GatheredParameters
    utils = deepspeed.utils
    assert utils.set_z3_leaf_modules(module, [torch.nn.Linear]) == [module[0]]
    assert utils.get_z3_leaf_modules(module) == [module[0]]
    assert utils.unset_z3_leaf_modules(module, ["Linear"]) == [module[0]]
    assert utils.get_z3_leaf_modules(module) == []
    with pytest.raises(BadArgument, match="no module of .*Conv2d.* is in the model"):
        utils.set_z3_leaf_modules(module, [torch.nn.Conv2d])
    assert utils.set_z3_leaf_modules(module, ["Conv2d"], raise_if_not_found=False) == []
    assert deepspeed.__version__ == "0.19.8" and deepspeed.__version_minor__ == 19
    assert deepspeed.__git_hash__ == deepspeed.__git_branch__ == deepspeed.git_version_info.git_hash
    assert deepspeed.moe.utils.has_moe_layers(module) == (False, 0)


def test_small_tools_of_scripts(monkeypatch):
    from ballast.deepspeed.runtime.utils import see_memory_usage, set_random_seed
    from ballast.deepspeed.utils.torch import required_torch_version

    lines = logged(monkeypatch)
    see_memory_usage("quiet")
    see_memory_usage("loud", force=True)
    ((said, _),) = lines
    assert re.match(r"loud\nMA \d+\.\d\d GB, Max_MA", said)
    set_random_seed(5)
    first = torch.rand(1)
    set_random_seed(5)
    assert torch.equal(first, torch.rand(1))
    assert required_torch_version(min_version=2.6) and not required_torch_version(min_version=99)
    assert not required_torch_version(max_version="1.13")
    flat = torch.arange(4.0)
    clones = deepspeed.checkpoint.utils.clone_tensors_for_torch_save
    copy = clones({"a": [flat[:2], (flat[2:], 3)]})
    flat.zero_()
    assert copy["a"][0].tolist() == [0, 1] and copy["a"][1][0].untyped_storage().nbytes() == 8
    assert copy["a"][1][1] == 3


def test_the_accelerator_of_a_cpu(monkeypatch):
    from ballast.deepspeed.accelerator.real_accelerator import get_accelerator

    monkeypatch.setenv("LOCAL_RANK", "3")
    device = get_accelerator()
    assert device is deepspeed.get_accelerator() is get_accelerator()
    assert isinstance(device, deepspeed.accelerator.DeepSpeedAccelerator)
    assert torch.ones(1, device=device.device_name(0)).device.type == device.device_name() == "cpu"
    assert (device.current_device(), device.current_device_name()) == (3, "cpu")
    assert device.communication_backend_name() == "gloo" and device.is_bf16_supported()
    assert 0 < device.memory_allocated() <= device.max_memory_allocated()
    assert device.available_memory() <= device.total_memory()
    device.set_device(0)
    device.empty_cache()
    device.synchronize()
    with device.stream(device.current_stream()):
        assert device.on_accelerator(torch.ones(1))
    assert device.FloatTensor([1]).dtype == torch.float32
    with pytest.raises(AttributeError, match="accelerator of ballast.deepspeed has no 'warp'"):
        device.warp()


def test_op_builders_are_gates():
    from ballast.deepspeed.ops import op_builder

    ops = deepspeed.ops.__compatible_ops__
    assert ops["cpu_adam"] and ops["fused_lamb"] and not ops["transformer"]
    assert op_builder.CPUAdamBuilder().is_compatible()
    with pytest.raises(AttributeError, match="cpu_adam has no 'create_adam'.*needs no op"):
        op_builder.CPUAdamBuilder().load().create_adam(0)
    with pytest.raises(Unsupported, match="TransformerBuilder: Ballast has no op transformer"):
        op_builder.TransformerBuilder().load()
    flat = op_builder.UtilsBuilder().load().flatten([torch.ones(2), torch.zeros(1)])
    assert flat.tolist() == [1, 1, 0]


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
    from ballast.deepspeed.utils import log_dist

    lines = logged(monkeypatch)
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
