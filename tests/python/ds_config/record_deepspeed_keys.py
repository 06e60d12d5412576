"""Records the keys and defaults of a DeepSpeed release, read from its sources without importing it.

Comes from: an unpacked source release, `pip download --no-deps --no-binary :all: deepspeed==V`.
Goes to: deepspeed_keys.json, which test_ds_table.py compares with the table:

python record_deepspeed_keys.py VERSION=FOLDER... > deepspeed_keys.json
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODELS = (
    ("zero_optimization", "runtime/zero/config.py", "DeepSpeedZeroConfig"),
    (
        "zero_optimization.offload_param",
        "runtime/zero/offload_config.py",
        "DeepSpeedZeroOffloadParamConfig",
    ),
    (
        "zero_optimization.offload_optimizer",
        "runtime/zero/offload_config.py",
        "DeepSpeedZeroOffloadOptimizerConfig",
    ),
    (
        "zero_optimization.leaf_module",
        "runtime/zero/leaf_module_config.py",
        "DeepSpeedZeroLeafModuleConfig",
    ),
    ("zero_optimization.zenflow", "runtime/zenflow/zenflow_config.py", "ZenFlowConfig"),
    ("fp16", "runtime/precision_config.py", "DeepSpeedFP16Config"),
    ("bf16", "runtime/precision_config.py", "DeepSpeedBF16Config"),
    ("tensorboard", "monitor/config.py", "TensorBoardConfig"),
    ("wandb", "monitor/config.py", "WandbConfig"),
    ("csv_monitor", "monitor/config.py", "CSVConfig"),
    ("comet", "monitor/config.py", "CometConfig"),
    ("compile", "compile/config.py", "CompileConfig"),
    ("hybrid_engine", "runtime/config.py", "HybridEngineConfig"),
    ("timers.throughput", "utils/config.py", "DeepSpeedThroughputTimerConfig"),
    ("tensor_parallel", "runtime/tensor_parallel/config.py", "TPTrainingConfig"),
    ("tensor_parallel.tp", "runtime/tensor_parallel/config.py", "TPConfig"),
    ("weight_quantization", "inference/config.py", "BaseQuantConfig"),
    ("weight_quantization", "inference/config.py", "WeightQuantConfig"),
)
SCHEDULES = "runtime/lr_schedules.py"
SCHEDULERS = ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "LRRangeTest", "OneCycle")
REQUIRED = "must be written"
OTHER = "not a constant"
# They take objects of a running process, which no file holds.
NOT_IN_FILES = ("mpu", "tp_group")


def constant(node: ast.expr | None) -> Any:
    """A default as JSON has it; OTHER where the source computes it."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Field", "pp_int"):
        named = {k.arg: k.value for k in node.keywords}
        first = node.args[0] if node.args else named.get("default")
        found = constant(first) if first is not None else OTHER
        return int(found) if ast.unparse(node.func) == "pp_int" and found != OTHER else found
    if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.maxsize":
        return sys.maxsize
    if isinstance(node, ast.Name) and node.id == "WARMUP_LOG_RATE":
        return "log"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return constant(node.left) * constant(node.right)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return OTHER


def alias(node: ast.expr | None) -> str | None:
    """The name that files use, where a field says that it is another one."""
    keywords = node.keywords if isinstance(node, ast.Call) else []
    return next((k.value.value for k in keywords if k.arg == "alias"), None)


def classes(path: Path) -> Iterator[ast.ClassDef]:
    yield from (n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ClassDef))


def model(path: Path, name: str) -> dict[str, Any]:
    """The fields of a pydantic class."""
    (found,) = (c for c in classes(path) if c.name == name)
    fields = [n for n in found.body if isinstance(n, ast.AnnAssign)]
    named = {alias(n.value) or n.target.id: constant(n.value) for n in fields}
    return {k: v for k, v in named.items() if k not in NOT_IN_FILES}


def arguments(found: ast.ClassDef) -> dict[str, Any]:
    """The arguments of a constructor, but for the optimizer."""
    (init,) = (n for n in found.body if getattr(n, "name", "") == "__init__")
    names = [a.arg for a in init.args.args]
    defaults = [REQUIRED] * (len(names) - len(init.args.defaults))
    values = [*defaults, *(constant(d) for d in init.args.defaults)]
    return dict(zip(names[2:], values[2:], strict=True))


def record(folder: Path) -> dict[str, Any]:
    source = folder / "deepspeed"
    keys: dict[str, Any] = {}
    for section, file, name in MODELS:
        fields = model(source / file, name).items()
        keys.update((f"{section}.{key}", value) for key, value in fields)
    schedulers = {c.name: arguments(c) for c in classes(source / SCHEDULES) if c.name in SCHEDULERS}
    return {"keys": keys, "schedulers": schedulers}


if __name__ == "__main__":
    releases = dict(argument.split("=", 1) for argument in sys.argv[1:])
    recorded = {version: record(Path(folder)) for version, folder in releases.items()}
    print(json.dumps(recorded, indent=1))
