"""The three scripts on two trainers, which Trainer and Accelerate put into DDP."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from e2e.gpt2 import answers, launch, net, ways
from e2e.gpt2.launch import Part
from e2e.gpt2.net import Case
from e2e.test_gpt2_three_ways import ROUNDING

WORLD = 2
FRAMEWORKS = ("trainer", "accelerate")


def check(cluster, folder: Path, cases: dict[str, Case]) -> None:
    """Each case: one curve for all ways. In fp32 without clipping: the bits of torch in DDP."""
    plan = [Part(f"{n}-{w}", w, case, WORLD) for n, case in cases.items() for w in ways.WAYS]
    exact = [n for n, case in cases.items() if case.dtype == "fp32" and not case.clip]
    plan += [Part(f"{n}-{w}-torch", w, cases[n], WORLD, False) for n in exact for w in FRAMEWORKS]
    results = launch.carry_out(cluster, folder, plan, "none")
    for name, case in cases.items():
        curves = {}
        for way in ways.WAYS:
            logs = results.logs(f"{name}-{way}", WORLD)
            assert logs[0].differing_bits(logs[1]) == 0, (name, way)
            of_ranks = zip(*(log.column("loss") for log in logs), strict=True)
            curves[way] = [sum(losses) / WORLD for losses in of_ranks]
            assert len(curves[way]) == case.rounds
        for way in FRAMEWORKS:
            close = pytest.approx(curves["deepspeed"], rel=ROUNDING[case.dtype])
            assert curves[way] == close, (name, way)
    for name, way in itertools.product(exact, FRAMEWORKS):
        ours, theirs = (results.logs(f"{name}-{way}{of}", WORLD)[0] for of in ("", "-torch"))
        assert ours.differing_bits(theirs) == 0, (name, way)


def test_two_trainers_have_one_curve_and_the_bits_of_ddp(clusters, tmp_path):
    cases = {dtype: Case(dtype, accumulation=3, passes=4) for dtype in net.DTYPES}
    check(clusters(2), tmp_path / "plan", cases)


@pytest.mark.long
@pytest.mark.parametrize("dtype", net.DTYPES)
def test_accumulation_and_clipping_on_two_trainers(clusters, tmp_path, dtype):
    windows = {1: 3, 3: 7}
    cases = {
        f"{accumulation}-{clip}": Case(dtype, accumulation, clip, passes=windows[accumulation])
        for accumulation, clip in itertools.product(windows, (0.0, 0.5))
    }
    check(clusters(2), tmp_path / "plan", cases)


@pytest.mark.long
def test_two_trainers_skip_together_as_deepspeed_does(clusters, tmp_path):
    names = ("fp32", "fp16", "accumulation", "fp16-clipped")
    plan = [
        Part(f"{name}-{way}", way, answers.CASES[name], WORLD)
        for name in names for way in ways.WAYS
    ]  # fmt: skip
    results = launch.carry_out(clusters(2), tmp_path / "plan", plan, "none")
    for name, way in itertools.product(names, ways.WAYS):
        for log in results.logs(f"{name}-{way}", WORLD):
            answers.stand(log.rounds, answers.recorded()[name])
