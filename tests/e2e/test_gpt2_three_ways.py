"""One GPT-2 in a DeepSpeed script, in Trainer and in a loop with Accelerate: the same training.

In fp32 no bit differs from torch's optimizer under the same framework. Element counts are multiples
of 8, where torch's fused AdamW is exact. Two trainers, kills and skips: test_gpt2_*.py.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from e2e.cluster import fresh_job
from e2e.gpt2 import net, run, ways
from e2e.gpt2.net import Case

# How far losses of the same training may differ: a few roundings of the dtype.
ROUNDING = {"fp32": 2e-6, "bf16": 2.0**-8, "fp16": 2.0**-10}
SHORT = {"accumulation": 3, "passes": 7}  # windows of 3, 3 and 1 micro-batches


@pytest.fixture
def train(clusters, monkeypatch):
    """train(way, case, ours=True) -> the script's log; with Ballast in a job of its own."""
    monkeypatch.setenv("BALLAST_ENDPOINTS", ",".join(clusters(2).endpoints))
    monkeypatch.setenv("BALLAST_DURABILITY", "none")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                 "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_MIXED_PRECISION"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)

    def start(way: str, case: Case, ours: bool = True) -> run.Log:
        monkeypatch.setenv("BALLAST_JOB", fresh_job("gpt2"))
        return ways.train(way, ours, case)

    yield start
    ways.forget()


def plain(case: Case) -> run.Log:
    """The DeepSpeed script's work, in torch alone."""
    module, log = net.model(case), run.Log(case)
    optimizer = torch.optim.AdamW(net.groups(module), lr=net.LR, fused=True)
    for place, batch in run.from_round(0, case, net.batches(case, rank=0, world=1)):
        (module(**batch).loss / case.window(place)).backward()
        if case.ends(place):
            optimizer.step()
            optimizer.zero_grad()
    log.ended(module)
    return log


def same_curve(logs: dict[str, run.Log], dtype: str) -> None:
    first, *others = logs
    for way in others:
        assert logs[way].column("loss") == pytest.approx(
            logs[first].column("loss"), rel=ROUNDING[dtype]), (way, first)  # fmt: skip


@pytest.mark.parametrize(("way", "lines"), [("deepspeed", 1), ("trainer", 3), ("accelerate", 2)])
def test_so_many_lines_change(way, lines):
    """DeepSpeed: its import. Trainer: two arguments, and the import of the names in them."""
    before, after = (ways.text(way, ours).splitlines() for ours in (False, True))
    assert sum(a != b for a, b in zip(before, after, strict=True)) == lines
    assert "ballast" not in "".join(before)


@pytest.mark.parametrize("windows", [{}, SHORT], ids=["each", "windows"])
@pytest.mark.parametrize("way", ways.WAYS)
def test_fp32_has_the_bits_of_torch_under_the_same_framework(train, way, windows):
    case = Case(**windows)
    ours = train(way, case)
    theirs = plain(case) if way == "deepspeed" else train(way, case, ours=False)
    assert len(ours.rounds) == case.rounds == 6
    assert ours.differing_bits(theirs) == 0
    if way != "deepspeed":
        assert ours.column("loss") == theirs.column("loss")


@pytest.mark.parametrize("way", ["trainer", "accelerate"])
def test_clipping_differs_from_torch_by_the_rounding_of_the_norm(train, way):
    case = Case(clip=0.5, **SHORT)
    ours, theirs = train(way, case), train(way, case, ours=False)
    assert ours.column("loss") == pytest.approx(theirs.column("loss"), rel=ROUNDING["fp32"])
    free = train(way, Case(**SHORT))
    assert ours.column("loss") != pytest.approx(free.column("loss"), rel=ROUNDING["fp32"])


CURVES = [
    pytest.param(
        dtype, accumulation, clip,
        marks=[] if (accumulation == 3) == (clip > 0) else [pytest.mark.long],
    )
    for dtype, accumulation, clip in itertools.product(net.DTYPES, (1, 3), (0.0, 0.5))
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "accumulation", "clip"), CURVES)
def test_the_three_ways_have_one_curve(train, dtype, accumulation, clip):
    case = Case(dtype, accumulation=accumulation, passes=7 if accumulation == 3 else 3, clip=clip)
    logs = {way: train(way, case) for way in ways.WAYS}
    same_curve(logs, dtype)
    for way, log in logs.items():
        assert len(log.rounds) == case.rounds and log.rounds[-1]["loss"] < 4.6, way
        assert {str(p.dtype) for p in log.weights.values()} == {str(net.DTYPES[dtype])}, way
