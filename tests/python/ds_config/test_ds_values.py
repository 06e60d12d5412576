"""Values that frameworks and other configurations write, read as DeepSpeed reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ballast.ds_config import Verdict, check

ROOT = Path(__file__).resolve().parents[3]
MICRO = "train_micro_batch_size_per_gpu"


def one(config, path):
    """The only finding about a key."""
    (finding,) = check({MICRO: 1, **config}).of(path)
    return finding


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("fp32", "fp32"),
        ("float", "fp32"),
        ("torch.float32", "fp32"),
        ("half", "fp16"),
        ("float16", "fp16"),
        ("bfloat16", "bf16"),
        ("torch.bfloat16", "bf16"),
    ],
)
def test_data_types_take_the_names_of_torch(written, meant):
    finding = one({"data_types": {"param_dtype": written}}, "data_types.param_dtype")
    assert finding.effective == meant


def test_the_dtype_of_links_has_three_names_only():
    links = {"communication_data_type": "bfloat16"}
    assert one(links, "communication_data_type").code == "wrong_value"


def test_modules_that_stay_in_fp32_are_auto_or_a_list():
    path = "data_types.keep_in_fp32_modules"
    for value in ("auto", ["norm"], []):
        assert one({"data_types": {"keep_in_fp32_modules": value}}, path).code == "key"
    assert one({"data_types": {"keep_in_fp32_modules": "norm"}}, path).code == "wrong_value"


@pytest.mark.parametrize(
    ("config", "path", "code"),
    [
        ({"torch_autocast": {"dtype": "fp8"}}, "torch_autocast.dtype", "wrong_value"),
        ({"torch_autocast": {"dtype": "int8"}}, "torch_autocast.dtype", "key"),
        ({"tensor_parallel": {"dtype": "fp16"}}, "tensor_parallel.dtype", "key"),
        ({"tensor_parallel": {"injection_policy_tuple": "a"}},
         "tensor_parallel.injection_policy_tuple", "wrong_value"),
        ({"comms_logger": {"prof_ops": "all_reduce"}}, "comms_logger.prof_ops", "wrong_value"),
        ({"expert_parallel": {"load_balance_coeff": 0.1}},
         "expert_parallel.load_balance_coeff", "key"),
        ({"autotuning": {"results_dir": ""}}, "autotuning.results_dir", "wrong_value"),
        ({"zero_optimization": {"max_live_parameters": None}},
         "zero_optimization.max_live_parameters", "wrong_value"),
    ],
)  # fmt: skip
def test_what_deepspeed_refuses_is_refused(config, path, code):
    """Each of them was taken until both readers got the same configurations."""
    finding = one(config, path)
    assert finding.code == code
    assert (finding.verdict is Verdict.REFUSED) == (finding.effective != "int8")


def test_a_deprecated_switch_may_be_null():
    assert check({MICRO: 1, "zero_optimization": {"cpu_offload": None}}).exit_code == 0


def test_infinite_steps_per_print_of_accelerate_means_never():
    report = check({MICRO: 1, "steps_per_print": float("inf")})
    (finding,) = report.of("steps_per_print")
    assert (finding.verdict, finding.effective) == (Verdict.SDK, None)
    assert '"refused": 0' in report.as_json()
    for value in (float("-inf"), float("nan"), 0, "inf"):
        assert one({"steps_per_print": value}, "steps_per_print").code == "wrong_value"


def test_compression_is_on_only_when_one_of_its_parts_is():
    parts = {"shared_parameters": {"enabled": False}, "different_groups": {}}
    off = {"compression_training": {"weight_quantization": parts}}
    assert one(off, "compression_training").verdict is Verdict.NO_EFFECT
    parts["shared_parameters"] = {"enabled": True}
    assert one(off, "compression_training").verdict is Verdict.REFUSED
    layers = {"compression_training": {"layer_reduction": {"enabled": True}}}
    assert one(layers, "compression_training").verdict is Verdict.REFUSED


def test_a_reader_that_closes_the_pipe_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "ballast.ds_config", str(ROOT / "configs/ds/stage3.json")],
            env={"PYTHONPATH": str(ROOT / "client" / "python")},
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (1, "")
