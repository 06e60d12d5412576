"""The dtype of each parameter and buffer, as DeepSpeed 0.19.8's initialize() leaves them.

The expected dtypes were read off DeepSpeed, with the same modules and configurations.
"""

from __future__ import annotations

import ballast.deepspeed as deepspeed
import pytest
import torch
from ballast.errors import BadArgument, Unsupported

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
NAMES = {"bf16": BF16, "fp16": FP16, "fp32": FP32}


class Cnn(torch.nn.Module):
    """Buffers of each dtype, shared ones, and names of which transformers' lists have a part."""

    _keep_in_fp32_modules_strict = ["bias_of"]
    _keep_in_fp32_modules = ["gate*scale"]

    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)
        self.wide = torch.nn.Parameter(torch.ones(2, dtype=FP64))
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("plain", torch.ones(2))
        self.norm.register_buffer("twin", self.plain)
        self.register_buffer("precise", torch.ones(2, dtype=FP64), persistent=False)
        self.register_buffer("whole", torch.ones(2, dtype=torch.int64))
        self.register_buffer("complex", torch.ones(2, dtype=torch.complex64))
        self.register_buffer("bias_of_router", torch.ones(2, dtype=BF16))
        self.register_buffer("gate_x_scale", torch.ones(2))


def cast(mode, inside=False, **data_types):
    """(parameters' dtypes, buffers' by their last names)."""
    module = Cnn()
    if inside:  # its lists are about names below it
        module = torch.nn.ModuleDict({"net": module})
        module.register_buffer("bias_of", torch.ones(2))
    config = {
        "train_micro_batch_size_per_gpu": 1, "data_types": data_types,
        "optimizer": {"type": "SGD", "params": {"lr": 1.0}}, mode: {"enabled": True},
    }  # fmt: skip
    kept = [p for n, p in module.named_parameters() if not n.endswith("wide")]
    engine = deepspeed.initialize(model=module, model_parameters=kept, config=config)[0]
    assert engine.module is module
    named = module.named_buffers(remove_duplicate=False)
    return {p.dtype for p in module.parameters()}, {n.split(".")[-1]: b.dtype for n, b in named}


AS_THEY_ARE = {
    "running_mean": FP32, "running_var": FP32, "num_batches_tracked": torch.int64, "plain": FP32,
    "twin": FP32, "precise": FP64, "whole": torch.int64, "complex": torch.complex64,
    "bias_of_router": FP32, "gate_x_scale": FP32,
}  # fmt: skip
FLOATING = ("running_mean", "running_var", "plain", "twin", "precise", "gate_x_scale")


@pytest.mark.parametrize("mode", ["bf16", "fp16"])
def test_parameters_are_cast_and_buffers_stay(fake, mode):
    assert cast(mode) == ({NAMES[mode]}, AS_THEY_ARE)
    assert cast(mode, keep_in_fp32_modules=[]) == (
        {NAMES[mode]}, {**AS_THEY_ARE, "bias_of_router": BF16})  # fmt: skip
    assert cast(mode, inside=True)[1] == {**AS_THEY_ARE, "bias_of": FP32}


@pytest.mark.parametrize("mode", ["bf16", "fp16"])
@pytest.mark.parametrize("buffers", ["bf16", "fp16", "fp32"])
def test_buffer_dtype_is_of_all_buffers_but_those_that_are_kept(fake, mode, buffers):
    expected = {**AS_THEY_ARE, **dict.fromkeys(FLOATING, NAMES[buffers])}
    if mode == "fp16":
        expected["gate_x_scale"] = FP32  # the second list is for fp16 alone
    assert cast(mode, buffer_dtype=buffers) == ({NAMES[mode]}, expected)
    inside = cast(mode, inside=True, buffer_dtype=buffers)[1]
    assert inside == {**expected, "bias_of": NAMES[buffers]}


def test_names_are_patterns_of_which_a_part_matches(fake):
    expected = {**AS_THEY_ARE, **dict.fromkeys(FLOATING, BF16), "bias_of_router": BF16,
                "running_var": FP32}  # fmt: skip
    given = {"buffer_dtype": "bf16", "keep_in_fp32_modules": ["run*var", "inv_freq"]}
    assert cast("bf16", **given)[1] == expected
    assert cast("fp16", **given)[1] == expected
    with pytest.raises(BadArgument, match=r"keep_in_fp32_modules: '\(' is no pattern"):
        cast("bf16", keep_in_fp32_modules=["("])


def test_a_dtype_of_parameters_that_contradicts_is_refused(fake):
    with pytest.raises(Unsupported, match="param_dtype: it contradicts fp16.enabled"):
        cast("bf16", param_dtype="fp16")
    assert cast("bf16", param_dtype="bf16")[0] == {BF16}


def test_nothing_is_cast_in_fp32(fake):
    config = {"train_micro_batch_size_per_gpu": 1, "data_types": {"buffer_dtype": "bf16"},
              "optimizer": {"type": "SGD", "params": {"lr": 1.0}}}  # fmt: skip
    module = torch.nn.BatchNorm1d(2)
    deepspeed.initialize(model=module, config=config)
    assert {b.dtype for b in module.buffers()} == {FP32, torch.int64}
    assert {p.dtype for p in module.parameters()} == {FP32}
