"""No key of a ds_config is passed over when the table honours it before the engine does."""

from __future__ import annotations

import pytest
from ballast.deepspeed import settings
from ballast.deepspeed.unbuilt import unbuilt
from ballast.ds_config.check import effective
from ballast.errors import Unsupported

ADAMW = {"optimizer": {"type": "AdamW", "params": {"lr": 0.1}}, "train_micro_batch_size_per_gpu": 1}
FP16 = {"enabled": True, "loss_scale": 8}


CASES = {
    "fp16.auto_cast": {"fp16": {**FP16, "auto_cast": True}},
    "gradient_allreduce_op": {"gradient_allreduce_op": "sum"},
    "communication_data_type": {"communication_data_type": "fp32", "fp16": FP16},
    "data_types.grad_accum_dtype": {"data_types": {"grad_accum_dtype": "bf16"}, "fp16": FP16},
    "zero_optimization.stage": {"zero_optimization": {"stage": 3}},
}


@pytest.mark.parametrize("path", CASES)
def test_a_key_that_the_engine_lacks_is_named(path):
    _, values = effective({**ADAMW, **CASES[path]}, 1)
    (line,) = unbuilt(values)
    assert line.startswith(f"{path}: the engine has it not yet; ")


@pytest.mark.parametrize(
    "more", [{}, {"fp16": FP16}, {"bf16": {"enabled": True}}, {"communication_data_type": "fp32"},
             {"data_types": {"grad_accum_dtype": "fp32"}, "fp16": FP16},
             {"zero_optimization": {"stage": 2}}, {"ballast": {"deepspeed_compat": "0.19.6"}},
             {"ballast": {"durability": "none", "job": "j", "profile": "exact"}}])
def test_what_the_engine_does_is_let_through(more):
    assert unbuilt(effective({**ADAMW, **more}, 1)[1]) == []


def test_it_is_refused_although_the_table_honours_it(monkeypatch):
    report, values = effective(ADAMW, 1)
    monkeypatch.setattr(
        settings, "effective", lambda *_: (report, {**values, "gradient_allreduce_op": "sum"}))
    with pytest.raises(Unsupported, match="1 keys .*\n  gradient_allreduce_op: the engine has it"):
        settings.Settings(ADAMW, 1)
