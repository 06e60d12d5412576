"""Verdicts on whole configurations: samples, batch sizes, "auto", second names, unknown names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ballast.ds_config import DsConfigError, Verdict, check
from ballast.errors import BadArgument

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = ROOT / "configs" / "ds"
GOLDEN = json.loads((Path(__file__).parent / "verdicts.json").read_text())
MICRO = "train_micro_batch_size_per_gpu"
CYCLE = {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2}


def one(config, path):
    """The only finding about a key."""
    (finding,) = check({MICRO: 1, **config}).of(path)
    return finding


def refusals(config, world=None):
    return {f.path: f.code for f in check(config, world).refused}


def summary(report):
    return {f"{f.path} ({f.code})": f.verdict.value for f in report.findings}


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_a_sample_gets_the_verdicts_that_are_written_down(name):
    assert summary(check(SAMPLES / name, 4)) == GOLDEN[name]


def test_every_sample_is_read_or_refused_with_its_place():
    broken = {p.name for p in SAMPLES.iterdir()} - set(GOLDEN)
    assert broken == {"monitors-missing-comma.invalid.json", "stray-quote.invalid.hjson"}
    with pytest.raises(DsConfigError, match="invalid.json:3:95: a comma is missing"):
        check(SAMPLES / "monitors-missing-comma.invalid.json")
    with pytest.raises(DsConfigError, match="invalid.hjson:23:5: this double quote is not closed"):
        check(SAMPLES / "stray-quote.invalid.hjson")


def test_the_smallest_configuration_is_not_refused():
    report = check({MICRO: 1}, world=2)
    assert report.exit_code == 0
    clip = report.of("gradient_clipping")[0]
    assert (clip.effective, clip.origin) == (
        1.0,
        "default of DeepSpeed since 0.19.3; was 0.0",
    )


@pytest.mark.parametrize(
    ("train", "micro", "accumulation", "world", "expected"),
    [
        (32, None, None, 4, (32, 8, 1)),
        (32, 2, None, 4, (32, 2, 4)),
        (32, None, 2, 4, (32, 4, 2)),
        (None, 2, 3, 4, (24, 2, 3)),
        (None, 2, None, 4, (8, 2, 1)),
        (32, 2, 4, 4, (32, 2, 4)),
        (32, 2, 4, None, (32, 2, 4)),
        (None, 2, 3, None, (None, 2, 3)),
        (32, None, None, None, (32, None, 1)),
        (32, 2, None, None, (32, 2, None)),
    ],
)
def test_two_batch_sizes_give_the_third(train, micro, accumulation, world, expected):
    given = {
        "train_batch_size": train,
        MICRO: micro,
        "gradient_accumulation_steps": accumulation,
    }
    report = check({k: v for k, v in given.items() if v is not None}, world)
    assert report.exit_code == 0
    assert (report.batch.train, report.batch.micro, report.batch.accumulation) == expected


@pytest.mark.parametrize(
    ("config", "world"),
    [
        ({}, 1),
        ({"gradient_accumulation_steps": 2}, 1),
        ({"train_batch_size": 3}, 4),
        ({"train_batch_size": 33}, 4),
        ({"train_batch_size": 32, MICRO: 3}, 4),
        ({"train_batch_size": 32, MICRO: 2, "gradient_accumulation_steps": 5}, None),
        ({"train_batch_size": 32, MICRO: 2, "gradient_accumulation_steps": 4}, 3),
    ],
)
def test_batch_sizes_that_do_not_fit_are_refused_with_a_size(config, world):
    (refusal,) = check(config, world).refused
    assert refusal.code == "batch"
    assert refusal.instead.startswith("write train_")


def test_auto_is_left_to_trainer_where_its_value_matters_and_a_default_elsewhere():
    config = {
        MICRO: "auto",
        "gradient_clipping": "auto",
        "fp16": {"enabled": "auto", "hysteresis": "auto"},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto", "zenflow": None},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}},
        "steps_per_print": "auto",
    }
    report = check(config)
    assert {f.path for f in report.unfilled} == {
        MICRO,
        "gradient_clipping",
        "fp16.enabled",
        "scheduler.params.warmup_num_steps",
    }
    # No framework fills this one.
    assert [(f.path, f.code) for f in report.refused] == [("steps_per_print", "auto")]
    del config["steps_per_print"]
    assert check(config).exit_code == 0
    assert "max_grad_norm" in report.of("gradient_clipping")[0].text
    bucket = report.of("zero_optimization.reduce_bucket_size")[0]
    assert bucket.effective == 500_000_000
    assert bucket.origin.startswith('"auto": default')


def test_deprecated_names_count_and_are_said():
    report = check({MICRO: 1, "zero_optimization": {"stage": 2, "cpu_offload": True}})
    device = report.of("zero_optimization.offload_optimizer.device")[0]
    assert (device.effective, device.verdict) == ("cpu", Verdict.SERVICE)
    assert device.origin == "from zero_optimization.cpu_offload"
    assert report.of("zero_optimization.cpu_offload")[0].code == "deprecated"

    both = {"cpu_offload": False, "offload_optimizer": {"pin_memory": True}}
    assert refusals({MICRO: 1, "zero_optimization": both}) == {
        "zero_optimization.cpu_offload": "conflict"
    }


def test_second_names_of_sections_and_keys_are_read():
    assert one({"bfloat16": {"enabled": True}}, "bf16.enabled").effective is True
    assert refusals({MICRO: 1, "bfloat16": {}, "bf16": {}}) == {"bfloat16": "conflict"}
    old = {"zero_optimization": True}
    assert one(old, "zero_optimization.stage").origin == "an old form of zero_optimization"
    short = {"zero_optimization": {"max_live_parameters": 0}}
    assert one(short, "zero_optimization.stage3_max_live_parameters").effective == 0
    tuned = {"aio": {"num_threads": 8, "single_submit": "false"}}
    assert one(tuned, "aio.intra_op_parallelism").effective == 8
    assert one(tuned, "aio.single_submit").effective is False
    assert one({"tensor_parallel": {"tensor_parallel": {"tp_size": 2}}},
               "tensor_parallel.tp.tp_size").effective == 2  # fmt: skip


@pytest.mark.parametrize(
    ("config", "path", "advice"),
    [
        ({"gradient_cliping": 1}, "gradient_cliping", "gradient_clipping"),
        ({"OneCycle": {}}, "OneCycle", 'write "scheduler": {"type": "OneCycle"'),
        ({"offload_optimizer": {}}, "offload_optimizer", "zero_optimization.offload_optimizer"),
        ({"fp16": {"enable": True}}, "fp16.enable", "fp16.enabled"),
        ({"fp16": {"stage": 2}}, "fp16.stage", "zero_optimization.stage"),
        ({"cpu_offload_params": 1}, "cpu_offload_params", "delete it"),
        ({"zero_optimization": {"cpu_offload_params": 1}}, "zero_optimization.cpu_offload_params",
         "cpu_offload_param?"),
        ({"fp16": {"opt_level": "O2"}}, "fp16.opt_level", "it belongs to amp"),
        ({"pipeline": {"schedule": "x"}}, "pipeline.schedule", "delete it"),
        ({"flash_attention": {}}, "flash_attention", "delete it"),
        ({"enabled": True}, "enabled", "delete it"),
        (
            {"optimizer": {"type": "AdamW", "params": {"learning_rate": 1}}},
            "optimizer.params.learning_rate",
            "delete it",
        ),
        (
            {"optimizer": {"type": "AdamW", "params": {"momentum": 0.9}}},
            "optimizer.params.momentum",
            "",
        ),
        ({"qqqq": 1}, "qqqq", "delete it"),
        ({"fp16.enabled": True}, "fp16.enabled", "write nested objects"),
        ({"": 1}, "", "delete it"),
    ],
)
def test_an_unknown_name_is_refused_with_the_name_that_is_meant(config, path, advice):
    finding = next(f for f in check({MICRO: 1, **config}).of(path) if f.code == "unknown")
    assert finding.verdict is Verdict.REFUSED
    assert advice in finding.instead


def test_notes_are_notes():
    section = {"_comment": {"a": 1}, "description": "why", "stage": 2}
    report = check({MICRO: 1, "_note": 5, "comment": "x", "zero_optimization": section})
    assert report.exit_code == 0
    notes = {f.path for f in report.findings if f.code == "note"}
    inside = {"zero_optimization._comment", "zero_optimization.description"}
    assert notes == {"_note", "comment", *inside}


def test_a_batch_for_another_world_says_which():
    sizes = {"train_batch_size": 32, MICRO: 4, "gradient_accumulation_steps": 1}
    assert check(sizes, 1).refused[0].instead.endswith("; it fits --world 8")
    assert "fits --world 8" in check(sizes).as_text().splitlines()[1]
    assert "fits" not in check({**sizes, MICRO: 3}, 1).refused[0].instead


def test_the_text_has_the_path_once_and_a_line_for_each_verdict(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(
        '{"train_batch_size": "auto", "zero_optimization": {"stage": 2, "overlap_comm": true,\n'
        ' "contiguous_gradients": true}, "optimizer": {"type": "AdamW"}, "wrong": 1}'
    )
    short, whole = check(path).as_text(), check(path).as_text(all=True)
    assert short.count(str(tmp_path)) == whole.count(str(tmp_path)) == 1
    assert "  wrong  2:65\n" in short and "  wrong  2:65\n" in whole
    assert "\nfilled by Trainer: train_batch_size\n" in short
    (line,) = [line for line in short.splitlines() if line.startswith("no effect: ")]
    assert "zero_optimization.contiguous_gradients, zero_optimization.overlap_comm" in line
    assert "\nno effect\n  gradient_accumulation_steps  (" in whole


@pytest.mark.parametrize(
    ("config", "path", "words"),
    [
        ({"train_batch_size": "32"}, "train_batch_size", '"32": must be: integer, 1 or more'),
        ({"train_batch_size": 0}, "train_batch_size", "0: must be: integer, 1 or more"),
        ({"train_batch_size": 1.5}, "train_batch_size", "1.5: must be"),
        ({"train_batch_size": True}, "train_batch_size", "true: must be"),
        ({"train_batch_size": 10**400}, "train_batch_size", "must be"),
        ({"gradient_clipping": float("nan")}, "gradient_clipping", "NaN: must be a finite number"),
        ({"gradient_clipping": 10**400}, "gradient_clipping", "must be a finite number"),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage", "integer, 0 to 3"),
        ({"zero_optimization": []}, "zero_optimization", "is a section"),
        ({"fp16": None}, "fp16", "null: fp16 is a section"),
        ({"wall_clock_breakdown": "true"}, "wall_clock_breakdown", "true or false, without quotes"),
        (
            {"optimizer": {"type": "AdamW", "params": {"betas": [0.9]}}},
            "optimizer.params.betas",
            "[0.9]: must be a list of 2",
        ),
        (
            {"optimizer": {"type": "AdamW", "params": {"betas": [0.9, 1.0]}}},
            "optimizer.params.betas",
            "below 1",
        ),
        ({"gradient_clipping": {1, 2}}, "gradient_clipping", "must be a finite number"),
        ({"ballast": {"deepspeed_compat": "new"}}, "ballast.deepspeed_compat", "a version"),
        ({"ballast": {"deepspeed_compat": -1}}, "ballast.deepspeed_compat", "a version"),
    ],
)
def test_a_wrong_value_is_named_with_its_limit(config, path, words):
    finding = one(config, path)
    assert (finding.verdict, finding.code) == (Verdict.REFUSED, "wrong_value")
    assert words in finding.text


def test_defaults_are_those_of_the_version_that_the_file_names():
    old = {"ballast": {"deepspeed_compat": "0.19.2"}}
    clip = one(old, "gradient_clipping")
    assert (clip.effective, clip.verdict) == (0.0, Verdict.NO_EFFECT)
    assert clip.origin == "default of DeepSpeed before 0.19.3; then 1.0"
    for version in ("0.19.3", "0.19.10", "1"):
        new = {"ballast": {"deepspeed_compat": version}}
        assert one(new, "gradient_clipping").effective == 1.0


def test_what_is_not_there_yet_is_refused_with_the_alternative():
    stage3 = one({"zero_optimization": {"stage": 3}}, "zero_optimization.stage")
    assert stage3.text.startswith("not yet: stage 3") and stage3.instead
    assert one({"optimizer": {"type": "Lamb"}}, "optimizer.type").verdict is Verdict.SERVICE
    fp16 = check({MICRO: 1, "fp16": {"enabled": True}}).of("fp16.loss_scale")[0]
    assert fp16.verdict is Verdict.SERVICE and "bt.DynamicLossScale" in fp16.text
    schedule = {"scheduler": {"type": "OneCycle", "params": {}}}
    assert one(schedule, "scheduler.type").verdict is Verdict.SERVICE
    fixed = {"fp16": {"enabled": True, "loss_scale": 1024}}
    assert one(fixed, "fp16.loss_scale").verdict is Verdict.SERVICE
    assert one({"fp16": {"loss_scale": 0}}, "fp16.loss_scale").verdict is Verdict.NO_EFFECT
    l2 = {"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}
    assert one(l2, "optimizer.params.adam_w_mode").verdict is Verdict.SERVICE
    w = {"optimizer": {"type": "adamw", "params": {"adam_w_mode": False}}}
    assert one(w, "optimizer.params.adam_w_mode").verdict is Verdict.NO_EFFECT


def test_types_of_optimizers_are_read_as_deepspeed_reads_them():
    assert one({"optimizer": {"type": "ADAMW"}}, "optimizer.type").verdict is Verdict.SERVICE
    misspelt = one({"optimizer": {"type": "AdmaW"}}, "optimizer.type")
    assert misspelt.instead.startswith("did you mean AdamW?")
    lower = one({"scheduler": {"type": "warmuplr"}}, "scheduler.type")
    assert lower.instead.startswith("did you mean WarmupLR?")
    assert one({"optimizer": {"params": {"lr": 1}}}, "optimizer.type").code == "conflict"
    cycle = {"scheduler": {"type": "OneCycle", "params": {"cycle_max_lr": 1}}}
    assert refusals({MICRO: 1, **cycle})["scheduler.params.cycle_min_lr"] == "missing"


def test_a_section_that_is_off_is_accepted_and_one_that_is_on_is_refused_once():
    for section in ("elasticity", "amp", "curriculum_learning", "progressive_layer_drop"):
        off = check({MICRO: 1, section: {"enabled": False}})
        assert off.exit_code == 0
        assert any("refuse the key even when it is off" in f.text for f in off.findings)
        assert len(refusals({MICRO: 1, section: {"enabled": True}})) == 1
    inside = {"elasticity": {"enabled": True, "min_gpus": 2, "micro_batch_sizes": [2, 4]}}
    assert refusals({MICRO: 1, **inside}) == {"elasticity.enabled": "key"}


def test_rules_about_several_keys():
    both = {"fp16": {"enabled": True, "loss_scale": 8}, "bf16": {"enabled": True}}
    assert refusals({MICRO: 1, **both}) == {"bf16.enabled": "conflict"}
    window = {"fp16": {"enabled": True, "loss_scale_window": 0}}
    assert refusals({MICRO: 1, **window})["fp16.loss_scale_window"] == "conflict"
    fixed = {"fp16": {"enabled": True, "loss_scale": 8, "loss_scale_window": 0}}
    assert refusals({MICRO: 1, **fixed}) == {}
    norm = {"zero_optimization": {"compute_grad_norm": False}}
    assert refusals({MICRO: 1, **norm}) == {"zero_optimization.compute_grad_norm": "conflict"}
    wire = {"communication_data_type": "BF16"}
    assert refusals({MICRO: 1, **wire}) == {"communication_data_type": "key"}
    assert refusals({MICRO: 1, **wire, "bf16": {"enabled": True}}) == {}


@pytest.mark.parametrize(
    ("section", "path", "words"),
    [
        ({"fp16": {"enabled": True, "initial_scale_power": 200}},
         "fp16.initial_scale_power", "must be 0 to 126, got 200"),
        ({"fp16": {"enabled": True, "hysteresis": 0}},
         "fp16.hysteresis", "must be a positive integer, got 0"),
        ({"fp16": {"enabled": True, "initial_scale_power": 0, "min_loss_scale": 2}},
         "fp16.min_loss_scale", "at most the initial scale 1, got 2"),
        ({"scheduler": {"type": "OneCycle", "params": {**CYCLE, "cycle_max_mom": 1.5}}},
         "scheduler.params.cycle_max_mom", "must be in [0, 1), got 1.5"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": [1, 2],
                                                       "warmup_max_lr": [1]}}},
         "scheduler.params.warmup_max_lr", "expected 2 values for warmup_max_lr, got 1"),
        ({"scheduler": {"type": "OneCycle", "params": CYCLE}, "optimizer": {"type": "SGD"}},
         "scheduler.params.cycle_momentum", "it cycles beta1, and SGD has no betas"),
    ],
)  # fmt: skip
def test_what_the_service_would_refuse_of_them_is_refused_here(section, path, words):
    (finding,) = check({MICRO: 1, **section}).refused
    assert (finding.path, finding.code) == (path, "conflict")
    assert words in finding.text


def test_a_schedule_that_is_not_whole_is_refused_for_that_alone():
    half = {"scheduler": {"type": "OneCycle", "params": {"cycle_max_mom": 1.5}}}
    assert set(refusals({MICRO: 1, **half}).values()) == {"missing"}
    off = {"fp16": {"enabled": False, "initial_scale_power": 200}}
    assert refusals({MICRO: 1, **off}) == {}


def test_a_world_must_be_a_positive_number():
    for world in (0, -1, 1.5, True, "2"):
        with pytest.raises(BadArgument, match="must be a whole number, 1 or more"):
            check({MICRO: 1}, world)


def test_many_unknown_names_take_no_time_for_advice():
    report = check({f"name_{i}": 1 for i in range(3000)})
    assert len(report.refused) == 3001


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "ballast.ds_config", *arguments],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "client" / "python"), "LC_ALL": "C"},
    )


def test_the_command_prints_and_says_by_its_exit_code(tmp_path):
    good = run(str(SAMPLES / "stage2-24gb-gpus.json"), "-o", "json", "--world", "4")
    assert good.returncode == 0
    answer = json.loads(good.stdout)
    assert answer["batch"] == {"train": 16, "micro": 1, "accumulation": 4, "world": 4}
    assert answer["refused"] == 0
    refused = run(str(SAMPLES / "onecycle-at-top-level.json"))
    assert refused.returncode == 1
    assert "OneCycle" in refused.stdout
    broken = run(str(SAMPLES / "stray-quote.invalid.hjson"))
    assert (broken.returncode, broken.stdout) == (2, "")
    assert broken.stderr.startswith("ds_config: ")
    assert run(str(tmp_path / "none")).returncode == 2
    assert run(str(SAMPLES / "stage3.json"), "--world", "0").returncode == 2
    odd = tmp_path / "odd\u20ac.json"
    odd.write_text('{"\\ud800\\n\u20ac": 1, "train_batch_size": "\\ud800"}', encoding="utf-8")
    assert run(str(odd)).returncode == 1


def test_the_reader_needs_neither_torch_nor_the_extension():
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['ballast._core'] = None; "
        "import ballast.ds_config as d; "
        "assert d.check({'train_batch_size': 1}).exit_code == 0; "
        "assert not {m for m in sys.modules if m.split('.')[0] in ('numpy', 'deepspeed')}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT / "client" / "python")}
    )
    assert done.returncode == 0
