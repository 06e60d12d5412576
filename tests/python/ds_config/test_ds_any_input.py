"""Any JSON object gives a report, and any text a report or a DsConfigError, never another error."""

from __future__ import annotations

import json
import random

from ballast.ds_config import DsConfigError, check
from ballast.ds_config.source import load
from ballast.ds_config.table import ALIASES, OPTIMIZERS, ROWS, SCHEDULERS, SECTIONS

SEED = 20261124
COUNT = 500
PATHS = [
    *(row.path for row in ROWS),
    *(row.path for v in (*OPTIMIZERS, *SCHEDULERS) for row in v.rows),
    *(alias.old for alias in ALIASES),
    *SECTIONS,
]
TYPES = [v.name for v in (*OPTIMIZERS, *SCHEDULERS)]
ODD = (
    None, True, False, 0, 1, -1, 2, 3, 16, 0.5, -0.0, 1e300, 2**63, 10**300, "", "auto", "cpu",
    "nvme", "fp16", "0.19.2", "\ud800", "a.b", "\n", [], [1], [0.9, 0.999], ["x", None], [[[]]], {},
    {"enabled": True}, {"type": "AdamW"}, {"params": {"lr": "auto"}}, {"": {}},
)  # fmt: skip


def value(rng, depth=0):
    if depth < 3 and rng.random() < 0.1:
        return {name(rng): value(rng, depth + 1) for _ in range(rng.randrange(4))}
    return rng.choice(ODD) if rng.random() < 0.8 else rng.choice(TYPES)


def name(rng):
    known = rng.choice(PATHS).split(".")
    return rng.choice(["", "x", "stage", "a.b", "\ud800", *known])


def put(config, path, given):
    """Sets a dotted path, unless a value other than an object is in its way."""
    *sections, last = path.split(".")
    for section in sections:
        config = config.setdefault(section, {})
        if not isinstance(config, dict):
            return
    config[last] = given


def configuration(rng):
    config: dict = {}
    for section in ("optimizer", "scheduler"):
        if rng.random() < 0.5:
            put(config, f"{section}.type", rng.choice(TYPES))
    for _ in range(rng.randrange(8)):
        put(config, rng.choice(PATHS), value(rng))
    if rng.random() < 0.3:
        config[name(rng)] = value(rng)
    return json.loads(json.dumps(config))


def test_any_object_gives_a_report():
    rng = random.Random(SEED)
    for number in range(COUNT):
        config = configuration(rng)
        before = json.dumps(config)
        report = check(config, rng.choice((None, 1, 2, 7)))
        assert json.dumps(config) == before, (SEED, number)
        assert json.loads(report.as_json())["refused"] == len(report.refused)
        assert report.as_text().isascii()
        assert all(f.instead for f in report.refused), (SEED, number)


def test_any_text_gives_a_report_or_a_ds_config_error(tmp_path):
    rng = random.Random(SEED)
    file = tmp_path / "f.json"
    for number in range(COUNT):
        text = bytearray(json.dumps(configuration(rng)).encode())
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(text))
            text[at : at + rng.randrange(3)] = rng.choice(
                (b'"', b"{", b"}", b"[", b",", b"#", b"//", b"/*", b"\\", b"\xff", b"e", b"\n")
            )
        file.write_bytes(text)
        try:
            check(file)
        except DsConfigError as error:
            assert error.message.startswith(str(file)), (SEED, number)


def test_a_dict_and_its_text_have_the_same_verdicts(tmp_path):
    rng = random.Random(SEED)
    file = tmp_path / "f.json"
    for _ in range(100):
        config = configuration(rng)
        file.write_text(json.dumps(config))
        assert load(file).values == config
        verdicts = [(f.path, f.verdict, f.text) for f in check(config).findings]
        assert [(f.path, f.verdict, f.text) for f in check(file).findings] == verdicts
