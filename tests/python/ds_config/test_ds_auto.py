"""Training arguments fill "auto", and other values must be theirs, as in Hugging Face's Trainer."""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import sys
import types
from pathlib import Path

import pytest

from ballast.ds_config import Arguments, Verdict, check
from ballast.ds_config.filling import fill
from ballast.ds_config.select import select
from ballast.errors import BadArgument
from ballast.hf import resolve_auto
from test_ds_any_input import SEED, configuration

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = ROOT / "configs" / "ds"
MICRO = "train_micro_batch_size_per_gpu"
GIVEN = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "max_grad_norm": 0.5,
    "learning_rate": 2e-5,
    "adam_beta1": 0.8,
    "adam_beta2": 0.99,
    "adam_epsilon": 1e-6,
    "weight_decay": 0.1,
    "warmup_steps": 0.05,
    "max_steps": 1010,
    "fp16": False,
    "bf16": True,
    "world_size": 3,
    "seed": 42,
}


def model(**config):
    return types.SimpleNamespace(config=types.SimpleNamespace(**config))


def everything_auto(scheduler="WarmupDecayLR", stage=3):
    zero = ("reduce_bucket_size", "stage3_prefetch_bucket_size",
            "stage3_param_persistence_threshold", "allgather_bucket_size")  # fmt: skip
    warmup = ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps")
    params = ("lr", "betas", "eps", "weight_decay")
    return {
        "train_batch_size": "auto",
        MICRO: "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "optimizer": {"type": "AdamW", "params": dict.fromkeys(params, "auto")},
        "scheduler": {"type": scheduler, "params": dict.fromkeys(warmup, "auto")},
        "fp16": {"enabled": "auto"},
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": stage, **dict.fromkeys(zero, "auto")},
    }


def test_each_auto_is_filled_from_its_argument():
    config = everything_auto()
    filled = resolve_auto(config, GIVEN, model(hidden_size=100))
    assert filled == {
        "train_batch_size": 24,
        MICRO: 4,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 2e-5, "betas": [0.8, 0.99], "eps": 1e-6, "weight_decay": 0.1},
        },
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {
                "warmup_min_lr": 0,
                "warmup_max_lr": 2e-5,
                "warmup_num_steps": 51,
                "total_num_steps": 1010,
            },
        },
        "fp16": {"enabled": False},
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "reduce_bucket_size": 10_000,
            "stage3_prefetch_bucket_size": 9_000,
            "stage3_param_persistence_threshold": 1_000,
            "allgather_bucket_size": "auto",
        },
    }
    assert config == everything_auto()


def test_a_trainers_arguments_are_read_from_their_attributes_as_well():
    arguments = types.SimpleNamespace(**GIVEN)
    hidden = model(hidden_size=100)
    assert resolve_auto(everything_auto(), arguments, hidden) == resolve_auto(
        everything_auto(), GIVEN, hidden
    )


def test_a_report_takes_the_arguments_as_they_are():
    config = everything_auto()
    report = check(config, arguments=Arguments.of(GIVEN))
    assert check(config, arguments=GIVEN) == report
    assert check(config, arguments=types.SimpleNamespace(**GIVEN)) == report


def test_stage_3_numbers_stay_below_stage_3():
    zero = resolve_auto(everything_auto(stage=2), GIVEN, model(hidden_size=100))
    assert zero["zero_optimization"] == {
        "stage": 2,
        "reduce_bucket_size": 10_000,
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "allgather_bucket_size": "auto",
    }


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (model(hidden_size=64), 64),
        (model(hidden_sizes=[32, 128, 64]), 128),
        (model(text_config=types.SimpleNamespace(hidden_size=16)), 16),
        (model(text_config=types.SimpleNamespace(hidden_sizes=(8, 24))), 24),
        (model(), None),
        (types.SimpleNamespace(), None),
        (None, None),
    ],
)
def test_the_hidden_size_comes_from_the_models_config(config, size):
    assert Arguments.of({}, config).hidden_size == size


@pytest.mark.parametrize(
    ("given", "steps", "warmup"),
    [
        ({"warmup_steps": 0}, 1000, 1),
        ({"warmup_steps": 0}, None, 1),
        ({"warmup_steps": 20}, None, 20),
        ({"warmup_steps": 20.9}, 1000, 20),
        ({"warmup_steps": 1}, 1000, 1),
        ({"warmup_steps": 0.03}, 1001, 31),
        ({"warmup_steps": 0.03}, None, None),
        ({"warmup_steps": 1e-9}, 5, 1),
        ({"warmup_steps": 0, "warmup_ratio": 0.1}, 1000, 100),
        ({"warmup_steps": 7, "warmup_ratio": 0.1}, 1000, 7),
        ({"warmup_ratio": 1.0}, 1000, 1000),
        ({"warmup_ratio": 0.0}, None, 1),
        ({}, 1000, None),
    ],
)
def test_the_warm_up_is_a_number_or_a_share_and_at_least_one_step(given, steps, warmup):
    assert Arguments.of(given, num_steps=steps).warmup() == warmup


def test_steps_come_from_the_call_then_from_the_arguments():
    assert Arguments.of({"max_steps": 5}, num_steps=7).num_training_steps == 7
    assert Arguments.of({"max_steps": 5}).num_training_steps == 5
    assert Arguments.of({"max_steps": 5, "num_training_steps": 6}).num_training_steps == 6
    assert Arguments.of({"max_steps": -1}).num_training_steps is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"learning_rate": "2e-5"}, r'learning_rate="2e-5" must be a finite number'),
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size=0 must be: integer"),
        ({"fp16": 1}, "fp16=1 must be true or false"),
        ({"warmup_steps": -1}, "warmup_steps=-1 must be a finite number, at least 0"),
        ({"warmup_ratio": 2}, "warmup_ratio=2 must be"),
        ({"max_steps": "all"}, 'max_steps="all" must be'),
    ],
)
def test_an_argument_of_a_wrong_type_is_named(given, words):
    with pytest.raises(BadArgument, match=f"^training arguments: {words}"):
        Arguments.of(given)


def test_values_that_differ_from_the_arguments_are_listed():
    config = {
        MICRO: 8,
        "optimizer": {"type": "Lion", "params": {"lr": 1e-3, "betas": [0.8, 0.99]}},
        "fp16": {"enabled": True},
        "bf16": {"enabled": True},
        "gradient_clipping": None,
        "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-6}},
    }
    with pytest.raises(ValueError) as told:
        resolve_auto(config, GIVEN)
    assert told.value.message == (
        "the ds_config and the training arguments differ: "
        f"{MICRO} is 8, and per_device_train_batch_size is 4; fp16.enabled is true, and fp16 is "
        "false; optimizer.params.lr is 0.001, and learning_rate is 2e-05. "
        'Write "auto" into the ds_config, or the same value in both places'
    )
    report = check(config, arguments=Arguments.of(GIVEN))
    differing = {f.path: f.text for f in report.refused if f.code == "mismatch"}
    assert differing == {
        MICRO: "8 differs from per_device_train_batch_size: 4",
        "fp16.enabled": "true differs from fp16: false",
        "optimizer.params.lr": "0.001 differs from learning_rate: 2e-05",
    }


def test_batch_sizes_may_differ_while_the_trainer_looks_for_one():
    config = {MICRO: 8, "train_batch_size": 48}
    with pytest.raises(BadArgument, match=f"train_batch_size is 48.*; {MICRO} is 8"):
        resolve_auto(config, GIVEN)
    assert resolve_auto(config, {**GIVEN, "auto_find_batch_size": True}) == config


def test_a_value_of_a_wrong_type_is_no_mismatch():
    report = check({MICRO: "many"}, arguments=Arguments.of(GIVEN))
    assert [f.code for f in report.refused] == ["wrong_value"]


def test_a_report_says_where_a_filled_value_comes_from():
    report = check(SAMPLES / "stage2-auto.json", arguments=Arguments.of(GIVEN))
    assert not [f for f in report.refused if f.code == "auto"]
    (rate,) = report.of("optimizer.params.lr")
    assert (rate.effective, rate.origin) == (2e-5, '"auto", from learning_rate')
    assert rate.place.endswith("stage2-auto.json:4:16")
    assert rate.verdict is Verdict.SERVICE
    assert dataclasses.astuple(report.batch) == (24, 4, 2, 3)


def test_the_world_comes_from_the_call_or_from_the_arguments():
    alone = Arguments.of({k: v for k, v in GIVEN.items() if k != "world_size"})
    config = {"train_batch_size": "auto", MICRO: "auto", "gradient_accumulation_steps": "auto"}
    assert check(config, 5, alone).batch.train == 40
    open_size = check(config, arguments=alone)
    assert (open_size.batch.train, open_size.exit_code) == (None, 0)
    assert open_size.of("train_batch_size")[0].origin == "depends on the world: --world N"
    assert check(config, 3, Arguments.of(GIVEN)).batch.train == 24
    with pytest.raises(BadArgument, match="world=5: the training arguments have world_size 3"):
        check(config, 5, Arguments.of(GIVEN))


def test_what_no_argument_fills_is_refused_with_the_argument_or_the_value():
    config = {MICRO: 1, "gradient_clipping": "auto", "steps_per_print": "auto"}
    (clip,) = check(config).of("gradient_clipping")
    assert clip.text == '"auto": Trainer fills it from max_grad_norm'
    assert clip.verdict is Verdict.AUTO
    assert clip.instead == "outside of Trainer, write: number, at least 0; the default is 1.0"
    report = check(config, arguments=Arguments.of({}))
    (clip,) = report.of("gradient_clipping")
    assert clip.text == '"auto": the training arguments lack max_grad_norm, which fills it'
    assert report.of("steps_per_print")[0].text == '"auto" is filled by no framework'


def test_an_argument_out_of_range_is_refused_at_its_key():
    (finding,) = check({MICRO: 1, "gradient_clipping": "auto"},
                       arguments=Arguments.of({"max_grad_norm": -1})).refused  # fmt: skip
    assert (finding.path, finding.code) == ("gradient_clipping", "wrong_value")


@pytest.mark.parametrize("kind", ["AdamW", "Adam", "Adagrad", "Lion", "Lamb", "SGD", "Muon"])
def test_the_rate_of_each_optimizer_is_filled(kind):
    config = {"optimizer": {"type": kind, "params": {"lr": "auto", "weight_decay": "auto"}}}
    assert resolve_auto(config, GIVEN)["optimizer"]["params"] == {"lr": 2e-5, "weight_decay": 0.1}


def test_any_object_can_be_filled_and_stays_as_it_is():
    rng = random.Random(SEED)
    arguments = Arguments.of(GIVEN, model(hidden_size=8))
    for _ in range(300):
        config = configuration(rng)
        before = json.dumps(config)
        report = check(config, arguments=arguments)
        assert json.loads(report.as_json())["refused"] == len(report.refused)
        filled = fill(config, select(config).rows.values(), arguments)
        assert json.dumps(config) == before
        again = fill(filled.values, select(filled.values).rows.values(), arguments)
        assert (again.values, again.sources) == (filled.values, {})


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "ballast.ds_config", *arguments],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "client" / "python"), "LC_ALL": "C"},
    )


def test_the_command_takes_the_arguments_as_a_file(tmp_path):
    file = tmp_path / "arguments.json"
    file.write_text(json.dumps({**GIVEN, "world_size": None}))
    sample = str(SAMPLES / "stage2-auto.json")
    done = run(sample, "--world", "2", "--arguments", str(file), "-o", "json")
    answer = json.loads(done.stdout)
    assert answer["batch"] == {"train": 16, "micro": 4, "accumulation": 2, "world": 2}
    assert {f["code"] for f in answer["findings"] if f["verdict"] == "refused"} == {"mismatch"}
    file.write_text('{"learning_rate": "fast"}')
    wrong = run(sample, "--arguments", str(file))
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert 'learning_rate="fast"' in wrong.stderr
    assert run(sample, "--arguments", str(tmp_path / "none.json")).returncode == 2
