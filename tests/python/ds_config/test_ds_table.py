"""The table: each key has one row, each refusal an alternative, and the page is the table."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections import Counter
from pathlib import Path

import pytest

from ballast.ds_config import Verdict, capability, check, row
from ballast.ds_config.capability import CAPABILITIES
from ballast.ds_config.kinds import OBJECT
from ballast.ds_config.page import page
from ballast.ds_config.row import REQUIRED, Moved, version
from ballast.ds_config.table import ALIASES, OPTIMIZERS, ROWS, SCHEDULERS, SECTIONS

ROOT = Path(__file__).resolve().parents[3]
DEEPSPEED = json.loads((Path(__file__).parent / "deepspeed_keys.json").read_text())
VARIANTS = {"optimizer": OPTIMIZERS, "scheduler": SCHEDULERS}
MICRO = "train_micro_batch_size_per_gpu"


def all_rows():
    yield from ROWS
    for variants in VARIANTS.values():
        for variant in variants:
            yield from variant.rows


def all_outcomes():
    for entry in all_rows():
        yield from ((entry.path, outcome) for outcome in entry.outcomes())
    for variants in VARIANTS.values():
        yield from ((variant.name, variant.outcome) for variant in variants)


def nested(path, value):
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def test_each_key_has_one_row():
    for rows in (ROWS, *(v.rows for variants in VARIANTS.values() for v in variants)):
        assert [p for p, n in Counter(r.path for r in rows).items() if n > 1] == []


def test_a_refusal_names_an_alternative_and_nothing_else_does():
    for path, outcome in all_outcomes():
        assert outcome.text, path
        assert bool(outcome.instead) == (outcome.verdict is Verdict.REFUSED), path


def test_a_key_that_works_alongside_names_something_that_exists():
    for path, outcome in all_outcomes():
        assert bool(outcome.see) == (outcome.verdict is Verdict.ALONGSIDE), path
        if outcome.see.endswith((".md", ".py")):
            assert (ROOT / outcome.see).exists(), path
        elif outcome.see:
            module, _, name = outcome.see.rpartition(".")
            while True:
                try:
                    found = importlib.import_module(module)
                    break
                except ModuleNotFoundError:
                    module, _, outer = module.rpartition(".")
                    name = f"{outer}.{name}"
            for part in name.split("."):
                found = getattr(found, part)


def test_each_default_is_a_value_of_its_kind():
    for entry in all_rows():
        moved = isinstance(entry.default, Moved)
        for value in [v for _, v in entry.default.values] if moved else [entry.default]:
            if value is not None and value is not REQUIRED and value != "auto":
                wanted = list(value) if isinstance(value, tuple) else value
                assert entry.kind.read(value) == wanted
        versions = [version(v) for v, _ in entry.default.values[1:]] if moved else []
        assert versions == sorted(versions)


def differences(recorded, rows, release):
    """Keys of a DeepSpeed release without a row, or with another default than their row's."""
    known = {entry.path: entry for entry in rows}
    parents = {path.rpartition(".")[0] for path in known}
    second = {alias.old for alias in ALIASES} | set(SECTIONS)
    for path, value in recorded.items():
        if path not in known:
            if path not in parents and path not in second:
                yield path, "no row"
            continue
        entry = known[path]
        default = entry.default_at(release)
        default = list(default) if isinstance(default, tuple) else default
        default = "must be written" if default is REQUIRED else default
        if value not in ("not a constant", default):
            yield path, default, value
        if entry.since and version(release) < version(entry.since):
            yield path, "since", entry.since


@pytest.mark.parametrize("release", DEEPSPEED)
def test_keys_and_defaults_are_those_of_deepspeed(release):
    """record_deepspeed_keys.py has read them from its sources."""
    assert list(differences(DEEPSPEED[release]["keys"], ROWS, release)) == []
    types = {variant.name: variant for variant in SCHEDULERS}
    for name, arguments in DEEPSPEED[release]["schedulers"].items():
        recorded = {f"scheduler.params.{key}": value for key, value in arguments.items()}
        assert list(differences(recorded, types[name].rows, release)) == []
        assert set(recorded) == {entry.path for entry in types[name].rows}


def test_texts_are_plain_ascii_on_one_line():
    for path, outcome in all_outcomes():
        for text in (outcome.text, outcome.instead, outcome.see):
            assert text.isascii(), path
            assert text.isprintable(), path


def test_second_names_stand_for_rows():
    known = {entry.path for entry in ROWS}
    for alias in ALIASES:
        assert alias.new in known
        assert alias.old not in known


@pytest.mark.parametrize("entry", ROWS, ids=lambda entry: entry.path)
def test_a_default_that_is_written_down_has_the_same_verdict_as_none(entry):
    default = entry.default_at(row.COMPAT_DEFAULT)
    if default is None or entry.kind is OBJECT:
        return
    config = {MICRO: 1}
    written = check({**config, **nested(entry.path, default)})
    findings = [f for f in written.of(entry.path) if f.verdict is Verdict.REFUSED]
    assert findings == [], findings
    if entry.path not in ("train_batch_size", MICRO):
        assert written.of(entry.path)


@pytest.mark.parametrize("section", VARIANTS)
def test_the_params_of_each_type_are_known(section):
    for variant in VARIANTS[section]:
        for entry in variant.rows:
            name = entry.path.rpartition(".")[2]
            value = 1 if entry.default is REQUIRED or entry.default is None else entry.default
            value = "log" if isinstance(value, Moved) else value
            report = check(
                {MICRO: 1, section: {"type": variant.name, "params": {name: value}}}
            )
            assert not [f for f in report.refused if f.code == "unknown"], entry.path
            assert report.of(entry.path), entry.path


def test_a_capability_turns_its_rows_when_it_is_ready(monkeypatch):
    """Each capability has a user, and one line flips it."""
    for name, found in CAPABILITIES.items():
        assert found.what
        assert found.instead
        assert row.service("it works", needs=name).verdict is (
            Verdict.SERVICE if found.ready else Verdict.REFUSED
        )
        monkeypatch.setitem(
            capability.CAPABILITIES, name, dataclasses.replace(found, ready=True)
        )
        assert row.service("it works", needs=name) == row.Outcome(Verdict.SERVICE, "it works")
        used = f'needs="{name}"'
        files = (ROOT / "client/python/ballast/ds_config/table").glob("*.py")
        assert any(used in file.read_text() for file in files), name


def test_the_reference_page_is_the_table():
    written = (ROOT / "docs/reference/ds-config.md").read_text(encoding="utf-8")
    hint = "run: python -m ballast.ds_config.page > docs/reference/ds-config.md"
    assert page() == written, hint
