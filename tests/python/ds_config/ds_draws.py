"""Configurations drawn from a number: legal ones, and ones with a few values that may not be.

Comes from: deepspeed_oracle.py and test_ds_agreement.py. Goes to: DeepSpeed and the reader. The
table gives names and kinds; which values are legal, each side says for itself.
"""

from __future__ import annotations

import json
import random
from typing import Any

from ballast.ds_config import kinds
from ballast.ds_config.row import REQUIRED, Row, Variant
from ballast.ds_config.table import ALIASES, OPTIMIZERS, ROWS, SCHEDULERS, SECTIONS

SEED = 20261125
SIZES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
WORLDS = (1, 2, 3, 4, 8)
LIVE = [row for row in ROWS if not row.until and row.path.split(".")[0] != "ballast"]
DRAWN = [row for row in LIVE if row.path not in (*SIZES, "optimizer.type", "scheduler.type")]
ODD = (
    None, True, False, -1, 0, 1, 2, 3, 4, 16, 0.5, -0.5, 1.0, 2.5, 1e9, 5e8, 10**20, "auto", "",
    "1", "true", "cpu", "nvme", "none", "bf16", "x", [], [1], ["x"], [0.9, 0.999], {}, {"x": 1},
)  # fmt: skip
NAMES = ("x", "stage", "enable", "lr", "fp16", "gradient_cliping", "cpu_offload_params")


def configuration(number: int, seed: int = SEED) -> tuple[dict[str, Any], int]:
    """Draw `number`: a configuration and a world. Half of them have nothing odd but perhaps a batch
    size, a quarter has one odd value, a quarter two or three."""
    rng = random.Random(f"{seed}:{number}")
    world = rng.choice(WORLDS)
    config: dict[str, Any] = {}
    _batch(rng, config, world)
    for section, variants in (("optimizer", OPTIMIZERS), ("scheduler", SCHEDULERS)):
        if rng.random() < 0.3:
            _typed(rng, config, section, rng.choice([v for v in variants if not v.until]))
    for row in rng.sample(DRAWN, rng.randrange(7)):
        _put(config, row.path, _legal(rng, row))
    for _ in range((0, 1, 0, rng.randrange(2, 4))[number % 4]):
        _spoil(rng, config)
    return json.loads(json.dumps(config)), world


def _batch(rng: random.Random, config: dict[str, Any], world: int) -> None:
    micro, steps = rng.randrange(1, 9), rng.randrange(1, 5)
    sizes = dict(zip(SIZES, (micro * steps * world, micro, steps), strict=True))
    given = rng.sample(SIZES, rng.choice((1, 2, 2, 3)))
    if given == [SIZES[2]] and rng.random() < 0.8:  # it does not do alone
        given = [SIZES[1]]
    config.update((name, sizes[name]) for name in given)
    if rng.random() < 0.1:
        name = rng.choice(list(config))
        config[name] = rng.choice((config[name] + 1, 0, -4, float(config[name]), 1))


def _typed(rng: random.Random, config: dict[str, Any], section: str, variant: Variant) -> None:
    config[section] = {"type": variant.name, "params": {}}
    for row in variant.rows:
        if row.default is REQUIRED or rng.random() < 0.3:
            _put(config, row.path, _legal(rng, row))


def _legal(rng: random.Random, row: Row) -> Any:
    """A value that the row's kind takes, or its default."""
    default = row.default_at("0.19.8")
    if default not in (None, REQUIRED) and rng.random() < 0.3:
        return list(default) if isinstance(default, tuple) else default
    return _of(rng, row.kind)


def _of(rng: random.Random, kind: kinds.Kind) -> Any:
    if isinstance(kind, kinds.Boolean):
        return rng.random() < 0.5
    if isinstance(kind, kinds.Integer):
        low = max(kind.low, -3)
        return rng.randint(low, min(kind.high, low + rng.choice((1, 4, 1000))))
    if isinstance(kind, kinds.Number):
        low, high = max(kind.low, -2.0), min(kind.high, 2.0)
        return low + (high - low) * rng.choice((0.25, 0.5, 0.75))
    if isinstance(kind, kinds.Choice):
        return rng.choice(kind.values)
    if isinstance(kind, kinds.Listing):
        return sorted(_of(rng, kind.element) for _ in range(kind.count or rng.randrange(1, 3)))
    if isinstance(kind, kinds.Either):
        return _of(rng, rng.choice([k for k in kind.kinds if not isinstance(k, kinds.Infinity)]))
    return {} if isinstance(kind, kinds.Object) else "a"


def _spoil(rng: random.Random, config: dict[str, Any]) -> None:
    """One value of any kind, at a key of the table, a second name, or an unknown name."""
    chance = rng.random()
    if chance < 0.02:
        config.setdefault("bf16", {})
        path = "bfloat16"
    elif chance < 0.6:
        path = rng.choice(LIVE).path
    elif chance < 0.75:
        path = rng.choice([*(alias.old for alias in ALIASES), *SECTIONS])
    elif chance < 0.9:
        path = rng.choice(ROWS).path
    else:
        section = rng.choice(LIVE).path.rpartition(".")[0]
        path = f"{section}.{rng.choice(NAMES)}".lstrip(".")
    _put(config, path, rng.choice(ODD))


def _put(config: dict[str, Any], path: str, value: Any) -> None:
    """Sets a dotted path, unless a value other than an object is in its way."""
    *sections, last = path.split(".")
    for section in sections:
        config = config.setdefault(section, {})
        if not isinstance(config, dict):
            return
    config[last] = value
