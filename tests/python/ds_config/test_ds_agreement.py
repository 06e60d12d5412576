"""DeepSpeed 0.19.8 and the reader agree on legality, on values and on batch sizes, or an entry
of ballast.ds_config.table.differences says why not.

Comes from: deepspeed_verdicts.jsonl and deepspeed_read.json, which deepspeed_oracle.py records, and
with `pytest -m deepspeed` from DeepSpeed itself.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ballast.ds_config.check import effective
from ballast.ds_config.report import Finding, Report
from ballast.ds_config.row import REQUIRED
from ballast.ds_config.table import (
    ALIASES,
    AUTO_IS_DEFAULT,
    OPTIMIZERS,
    ROWS,
    SCHEDULERS,
    SECTIONS,
)
from ballast.ds_config.table.differences import DIFFERENCES
from ds_draws import SIZES

HERE = Path(__file__).parent
COUNT = 10_000
# Classes of DeepSpeed whose fields are keys, as the errors of pydantic call them.
MODELS = {
    "DeepSpeedZeroConfig": "zero_optimization",
    "DeepSpeedFP16Config": "fp16",
    "DeepSpeedBF16Config": "bf16",
    "DeepSpeedMonitorConfig": "",
    "CommsLoggerConfig": "comms_logger",
    "HybridEngineConfig": "hybrid_engine",
    "CompileConfig": "compile",
    "DeepSpeedThroughputTimerConfig": "timers.throughput",
    "TPTrainingConfig": "tensor_parallel",
    "WeightQuantConfig": "weight_quantization",
}
# Words of DeepSpeed's other refusals, and the key that Ballast refuses by itself.
BESIDE = {
    "Fp16_master_weights_and_grads": "fp16.fp16_master_weights_and_grads",
    "Bf16_master_weights_and_grads": "bf16.bf16_master_weights_and_grads",
    "bf16_optimizer_states": "bf16.bf16_optimizer_states",
    "gradient_allreduce_op='sum'": "gradient_allreduce_op",
    "GDS currently": "aio.use_gds",
    "load_balance_coeff": "expert_parallel.load_balance_coeff",
    "torch.optim.lr_scheduler": "scheduler.type",
    "does not recognize LR scheduler": "scheduler.type",
}
# The same in errors of pydantic, by place and kind of error.
BESIDE_MODELS = {
    "DeepSpeedZeroConfig assertion_error": "zero_optimization.offload_optimizer.ratio",
    "TPTrainingConfig.dtype is_instance_of": "tensor_parallel.dtype",
}


def differences(line: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[str]:
    """The differences of the two on a draw: names of DIFFERENCES, and ":" with a text for those
    without an entry there."""
    report, values = effective(line["config"], line["world"])
    illegal = [f for f in report.refused if f.code != "key"]
    if "refused" in line:
        yield from _not_refused(line["refused"], report, illegal)
        return
    for finding in illegal:
        yield _why_refused(finding)
    if not illegal:
        yield from _other_values(report, values, {**defaults, **line["values"]})


def _not_refused(
    errors: list[list[str]], report: Report, illegal: list[Finding]
) -> Iterator[str]:
    """DeepSpeed refuses the draw."""
    keys = {f.path for f in report.refused}
    for place, text in errors:
        if place:
            if _path(place) not in keys and not _covered(_path(place), illegal):
                known = BESIDE_MODELS.get(f"{place} {text}") in keys
                yield "beside" if known else f": DeepSpeed refuses {place}: {text}"
        elif not illegal:
            yield _said(text, keys)


def _said(text: str, keys: set[str]) -> str:
    if "has been removed" in text:
        return "removed"
    if any(words in text for words in NULL):
        return "null"
    beside = any(word in text and key in keys for word, key in BESIDE.items())
    return "beside" if beside else f": DeepSpeed refuses: {text}"


def _path(place: str) -> str:
    """The key of an error of pydantic, by its first name."""
    model, *names = place.split(".")
    path = ".".join([name for name in (MODELS[model], *names) if name])
    return next((alias.new for alias in ALIASES if alias.old == path), path)


def _covered(path: str, illegal: list[Finding]) -> bool:
    """Whether the reader refuses the key, its section, something in it, or its second name."""
    for finding in illegal:
        names = {finding.path}
        names |= {alias.new for alias in ALIASES if alias.old == finding.path}
        for old, new in SECTIONS.items():
            names.add(finding.path.replace(old, new, 1))
        if any(f"{a}.".startswith(f"{b}.") for n in names for a, b in ((path, n), (n, path))):
            return True
    return False


def _why_refused(finding: Finding) -> str:
    """DeepSpeed takes the draw, and the reader says that it is illegal."""
    section = finding.path.split(".")[0]
    checked = section in AUTO_IS_DEFAULT or section == "bfloat16"
    if finding.code in ("unknown", "auto"):
        return finding.code
    if finding.code == "wrong_value":
        if not checked:
            return "unchecked"
        written = finding.text.partition(": ")[0]
        coerced = written[0] in '"tf' or ("true or false" in finding.text and written in NUMERALS)
        narrow = "must be true or false" not in finding.text
        if coerced and '"get"' not in finding.text:
            return "coerced"
        return "narrow" if narrow else f": {finding}"
    if finding.code == "conflict":
        if finding.path.startswith("scheduler.params"):
            return "schedule"
        if finding.path.startswith("fp16."):
            return "scale"
        if "without a type" in finding.text:
            return "typeless"
        if "is a second name of" in finding.text:
            return "twice"
    return f": {finding}"


# How DeepSpeed breaks on null where the table has a row open by default.
NULL = ("None is not a valid DtypeEnum", "'NoneType' object has no attribute")
NUMERALS = ("0", "1", "1.0", "0.0")


def _other_values(
    report: Report, values: Mapping[str, Any], wanted: Mapping[str, Any]
) -> Iterator[str]:
    """Both take the draw."""
    sizes = [getattr(report.batch, name) for name in ("train", "micro", "accumulation")]
    if sizes != [wanted[name] for name in SIZES]:
        yield f": batch {sizes}"
    for path, value in values.items():
        if path in wanted and _folded(value) != _folded(wanted[path]):
            yield _why_other(path, value, wanted[path])


def _folded(value: Any) -> Any:
    """DeepSpeed writes some words in capitals; values in objects are the user's."""
    if isinstance(value, str):
        return value.upper()
    if isinstance(value, Mapping):
        return None
    return list(value) if isinstance(value, (list, tuple)) else value


def _why_other(path: str, value: Any, wanted: Any) -> str:
    name = {
        "aio.intra_op_parallelism": "tool names",
        "zero_optimization.overlap_comm": "overlap_comm",
        "zero_optimization.offload_optimizer.nvme_path": "path",
        "zero_optimization.offload_param.nvme_path": "path",
    }.get(path)
    if path.startswith("zero_optimization.leaf_module"):
        name = "one or list"
    return name or f": {path} is {value!r}, in DeepSpeed {wanted!r}"


def explained(lines: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """How often each entry of DIFFERENCES was needed. Fails for a difference without an entry. The
    first line has all defaults."""
    found: Counter[str] = Counter()
    defaults: Mapping[str, Any] = {}
    open_ones = []
    for line in lines:
        defaults = defaults or line["values"]
        for name in differences(line, defaults):
            found[name] += 1
            if name.startswith(":"):
                open_ones.append(f"draw {line['draw']}, {line['config']}{name}")
    assert open_ones == []
    assert found.keys() <= {d.name for d in DIFFERENCES}
    return found


def recorded() -> list[dict[str, Any]]:
    text = (HERE / "deepspeed_verdicts.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


READ = json.loads((HERE / "deepspeed_read.json").read_text())


def test_recorded_verdicts_of_deepspeed_are_the_readers():
    lines = recorded()
    assert sum("values" in line for line in lines) > 100
    assert sum("refused" in line for line in lines) > 100
    assert explained(lines)["unknown"] > 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"config": {"train_batch_size": 3}, "world": 2, "values": {}}, "code='batch'"),
        ({"config": {"train_batch_size": 2}, "world": 1,
          "values": {"train_batch_size": 2, "gradient_accumulation_steps": 2,
                     "train_micro_batch_size_per_gpu": 1}},
         "in DeepSpeed"),
        ({"config": {"train_batch_size": 2}, "world": 1, "refused": [["", "ValueError: x"]]},
         "DeepSpeed refuses"),
        ({"config": {"train_batch_size": 2}, "world": 1,
          "refused": [["DeepSpeedFP16Config.enabled", "bool_type"]]}, "DeepSpeed refuses"),
        ({"config": {"train_batch_size": 2, "gradient_clipping": 0.5}, "world": 1,
          "values": {"gradient_clipping": 1.0, "train_micro_batch_size_per_gpu": 2,
                     "train_batch_size": 2, "gradient_accumulation_steps": 1}},
         "gradient_clipping is 0.5"),
    ],
)  # fmt: skip
def test_what_is_not_agreed_is_seen(line, said):
    found = [name for name in differences(line, recorded()[0]["values"]) if name.startswith(":")]
    assert any(said in name for name in found)


# Keys of DeepSpeed's own records, of sections whose inside is the user's.
INSIDE = ("autotuning.model_info.",)
# Where the table says less than DeepSpeed does: a choice, as the first of both spellings; open.
LESS = {
    "checkpoint.tag_validation", "checkpoint.writer.type", "zero_optimization.overlap_comm"
}  # fmt: skip


def test_each_key_that_deepspeed_reads_has_a_row_with_its_default():
    """From the fields of its pydantic models, and from its reads of the other sections."""
    rows = {row.path: row for row in ROWS}
    sections = {path[: path.rindex(".")] for path in rows if "." in path}
    sections |= {path.split(".")[0] for path in rows}
    second = {alias.old for alias in ALIASES} | set(SECTIONS)
    assert len(READ) > 300
    for path, wanted in READ.items():
        if path not in rows:
            assert path in sections | second or path.startswith(INSIDE), path
        elif path not in LESS:
            default = rows[path].default_at("0.19.8")
            default = list(default) if isinstance(default, tuple) else default
            assert wanted == (None if default is REQUIRED else default), path


def test_the_entries_have_one_name_each_and_plain_texts():
    assert len({d.name for d in DIFFERENCES}) == len(DIFFERENCES)
    for entry in DIFFERENCES:
        for text in dataclasses.astuple(entry):
            assert text.isascii() and text.isprintable() and "|" not in text


@pytest.mark.deepspeed
@pytest.mark.timeout(600)
def test_ten_thousand_draws_are_agreed_and_each_entry_is_needed():
    import deepspeed_oracle

    found = explained(deepspeed_oracle.lines(COUNT))
    print(f"{COUNT} draws; differences: {dict(found)}")
    assert found.keys() == {d.name for d in DIFFERENCES}


@pytest.mark.deepspeed
def test_the_records_are_those_of_this_deepspeed():
    import deepspeed_oracle

    assert deepspeed_oracle.read_keys() == READ
    for line in recorded():
        again = deepspeed_oracle.verdict(line["config"], line["world"])
        assert ("values" in again) == ("values" in line), line["draw"]


@pytest.mark.deepspeed
def test_the_types_of_optimizers_are_those_of_deepspeed():
    import torch
    from deepspeed.runtime.config import DEEPSPEED_OPTIMIZERS
    from deepspeed.runtime.lr_schedules import VALID_LR_SCHEDULES

    ours = {v.name.lower() for v in OPTIMIZERS if not v.until}
    assert set(DEEPSPEED_OPTIMIZERS) <= ours
    assert all(hasattr(torch.optim, v.name) or v.name.lower() in DEEPSPEED_OPTIMIZERS
               for v in OPTIMIZERS if not v.until)  # fmt: skip
    assert set(VALID_LR_SCHEDULES) == {v.name for v in SCHEDULERS}
