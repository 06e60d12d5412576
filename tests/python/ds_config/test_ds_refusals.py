"""Each refusal of the reader: a configuration that gets it, and its text, in an engine, too."""

from __future__ import annotations

import json

import pytest

from ballast.ds_config import Verdict, check, kinds
from ballast.ds_config.row import REQUIRED
from ballast.ds_config.table import OPTIMIZERS, ROWS, SCHEDULERS
from ballast.deepspeed.settings import Settings
from ballast.errors import Unsupported

MICRO = "train_micro_batch_size_per_gpu"


def candidates(kind):
    """Values that a kind takes, odd ones among them."""
    if isinstance(kind, kinds.Boolean):
        return [True, False]
    if isinstance(kind, kinds.Integer):
        return [kind.low, kind.low + 1, 2, 3]
    if isinstance(kind, kinds.Number):
        return [0.5, 1.0, 2.0]
    if isinstance(kind, kinds.Choice):
        return list(kind.values)
    if isinstance(kind, kinds.Object):
        return [{}, {"enabled": True}, {"a": {"enabled": True}}]
    if isinstance(kind, kinds.Listing):
        return [[value] for value in candidates(kind.element)]
    if isinstance(kind, kinds.Either):
        return [value for one in kind.kinds for value in candidates(one)]
    return ["a"]


def nested(path, value):
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def refusals():
    """(path, type or None, outcome) of every refusal in the table."""
    for row in ROWS:
        for outcome in row.outcomes():
            if outcome.verdict is Verdict.REFUSED:
                yield row, None, outcome
    for section, variants in (("optimizer", OPTIMIZERS), ("scheduler", SCHEDULERS)):
        for variant in variants:
            for row in variant.rows:
                for outcome in row.outcomes():
                    if outcome.verdict is Verdict.REFUSED:
                        yield row, (section, variant), outcome


def configuration(row, typed, value):
    config = {MICRO: 1, **nested(row.path, value)}
    if row.path.startswith("fp16.") and row.path != "fp16.enabled":
        config["fp16"]["enabled"] = True  # the refusal's text
    if typed is not None:
        section, variant = typed
        config[section]["type"] = variant.name
        for other in variant.rows:
            if other.default is REQUIRED:
                name = other.path.rpartition(".")[2]
                config[section]["params"].setdefault(name, candidates(other.kind)[0])
    return config


@pytest.mark.parametrize(
    ("row", "typed", "outcome"),
    [
        pytest.param(
            *found, id=f"{found[0].path}-{found[1][1].name if found[1] else ''}-{number}"
        )
        for number, found in enumerate(refusals())
    ],
)
def test_each_refusal_of_the_table_is_said_with_what_to_write_instead(row, typed, outcome):
    for value in candidates(row.kind):
        config = configuration(row, typed, value)
        found = [f for f in check(config).of(row.path) if f.verdict is Verdict.REFUSED]
        if [(f.text.split("; DeepSpeed ")[0], f.instead) for f in found] == [
            (outcome.text, outcome.instead)
        ]:
            with pytest.raises(Unsupported) as told:
                Settings(config, 1)
            assert f"{row.path}: {found[0].text}; {outcome.instead}" in told.value.message
            return
    raise AssertionError(f"no value of {row.path} is refused with: {outcome.text}")


@pytest.mark.parametrize(
    ("config", "world", "path", "text", "instead"),
    [
        ({"optimizer": {"type": "AdmaW"}}, 1, "optimizer.type",
         '"AdmaW": no optimizer of the service has this name',
         'did you mean AdamW? use "AdamW"; an optimizer of torch.optim can step in the script, '
         "without Ballast"),
        ({"optimizer": {"type": "RMSprop"}}, 1, "optimizer.type",
         '"RMSprop": no optimizer of the service has this name',
         'use "AdamW"; an optimizer of torch.optim can step in the script, without Ballast'),
        ({"scheduler": {"type": "StepLR"}}, 1, "scheduler.type",
         '"StepLR": no schedule has this name',
         "leave the section out and use a scheduler of torch.optim.lr_scheduler in the script"),
        ({"scheduler": {"type": "OneCycel", "params": {}}}, 1, "scheduler.type",
         '"OneCycel": no schedule has this name',
         "did you mean OneCycle? leave the section out and use a scheduler of "
         "torch.optim.lr_scheduler in the script"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, 1, "bf16.enabled",
         "fp16 and bf16 are both enabled, and a parameter has one dtype", "enable one of them"),
        ({"train_batch_size": 33, MICRO: 4}, 4, "train_batch_size",
         f"train_batch_size 33 is not {MICRO} 4 x gradient_accumulation_steps 2 x 4 trainers",
         "write train_batch_size 32, or leave it out: it follows"),
        ({"train_batch_size": 2, MICRO: None}, 4, "train_batch_size",
         f"train_batch_size 2 is not {MICRO} 0 x gradient_accumulation_steps 1 x 4 trainers",
         "write train_batch_size 4, or leave it out: it follows"),
        ({MICRO: None, "gradient_accumulation_steps": 2}, 4, "gradient_accumulation_steps",
         f"neither train_batch_size nor {MICRO} is given",
         f"write {MICRO}, the batch size of your DataLoader"),
        ({"optimizer": {"type": "AdamW", "params": {"max_grad_norm": 1.0}}}, 1,
         "optimizer.params.max_grad_norm", "DeepSpeed refuses it among the params, too",
         "write gradient_clipping at the top"),
        ({"gradient_cliping": 1.0}, 1, "gradient_cliping", "no such key",
         "did you mean gradient_clipping?"),
    ],
)  # fmt: skip
def test_bad_input_has_its_text_in_the_report_and_in_the_engine(
    config, world, path, text, instead
):
    config = {key: v for key, v in {MICRO: 1, **config}.items() if v is not None}
    (finding,) = [f for f in check(config, world).of(path) if f.verdict is Verdict.REFUSED]
    assert (finding.text, finding.instead) == (text, instead)
    with pytest.raises(Unsupported) as told:
        Settings(json.loads(json.dumps(config)), world)
    assert f"{path}: {text}; {instead}" in told.value.message


@pytest.mark.parametrize("kind", [v.name for v in OPTIMIZERS])
def test_max_grad_norm_is_refused_among_the_params_of_every_type(kind):
    config = {MICRO: 1, "optimizer": {"type": kind, "params": {"max_grad_norm": 1.0}}}
    (finding,) = check(config).of("optimizer.params.max_grad_norm")
    assert finding.verdict is Verdict.REFUSED
    assert finding.instead == "write gradient_clipping at the top"
