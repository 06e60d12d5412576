"""Rounds whose gradients are not finite: one decision, one named place and one error everywhere.

Two servers and two trainers, in every dtype, with policy skip and halt, and over restarts.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

import ballast
from e2e.cluster import HANG_S
from e2e.lockstep import Gradient, Lockstep, Noise
from e2e.oracle import differing_bits

SHAPES = {"weight": (64, 40), "bias": (40,), "odd": (77, 3), "scalar": ()}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HUGE = 1.5 * 2.0**127  # Two of them overflow fp32, which has the range of bf16.


def with_values(noise: Noise, round: int, values: dict) -> Gradient:
    """A round's gradients, with values[slot, name] = (index, value) put in."""

    def gradient(slot: int, name: str) -> torch.Tensor:
        out = noise.of(round, slot, name)
        if (slot, name) in values:
            index, value = values[slot, name]
            out = out.clone()
            out[index] = value
        return out

    return gradient


def bits_of(run: Lockstep) -> list[torch.Tensor]:
    state = run.trainers.optimizers[0].export_state()["state"]
    return [t for entry in state.values() for t in entry.values() if torch.is_tensor(t)]


def halted(run: Lockstep, gradient: Gradient) -> str:
    """One round that must be halted for all trainers alike; the error's text."""
    for slot, replica in enumerate(run.replicas):
        for name, p in replica.items():
            p.grad = gradient(slot, name)
    before = bits_of(run)
    errors = run.trainers.errors()
    assert all(isinstance(e, ballast.NonfiniteGradient) for e in errors), errors
    assert all(isinstance(e, FloatingPointError) and e.reason == "NONFINITE" for e in errors)
    assert len({str(e) for e in errors}) == 1
    for was, now in zip(before, bits_of(run), strict=True):
        assert differing_bits(was, now) == 0
    return str(errors[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value, text", [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_the_first_place_of_a_skipped_round_is_named(clusters, dtype, value, text):
    run = Lockstep(clusters(2), 2, [{"params": SHAPES}], DTYPES[dtype], max_grad_norm=1.0)
    noise = Noise(SHAPES, DTYPES[dtype])
    assert run.round(noise.at(0))["nonfinite_element"] == ""
    later = {(0, "odd"): ((40, 1), value), (1, "weight"): ((60, 3), value)}
    report = run.round(with_values(noise, 1, later))
    assert not report["applied"] and report["nonfinite"] == 2
    assert report["nonfinite_element"] == (
        f'tensor "weight"[60, 3] (element 2403): slot 1\'s gradient is {text}'
    )
    assert {opt.last_report["nonfinite_element"] for opt in run.trainers.optimizers} == {
        report["nonfinite_element"]
    }
    run.check()
    assert run.round(noise.at(2))["applied"]
    run.finish()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_finite_gradients_whose_sum_overflows_name_the_slot_that_tips_it(clusters, dtype):
    run = Lockstep(clusters(2), 3, [{"params": SHAPES}], DTYPES[dtype])
    noise = Noise(SHAPES, DTYPES[dtype])
    values = {(slot, "odd"): ((76, 2), HUGE) for slot in (1, 2)}
    report = run.round(with_values(noise, 0, values))
    assert not report["applied"] and report["nonfinite"] == 1
    assert report["nonfinite_element"].startswith(
        'tensor "odd"[76, 2] (element 230): the fp32 sum of the slots overflows when slot 2\'s '
        "gradient of 2.55211775e+38 is added"
    )
    run.finish()


def test_fp16_sums_do_not_overflow_but_an_overflowed_gradient_is_the_slots_own(clusters):
    run = Lockstep(clusters(2), 2, [{"params": SHAPES}], torch.float16)
    noise = Noise(SHAPES, torch.float16)
    largest = {(slot, "bias"): ((39,), 65504.0) for slot in (0, 1)}
    assert run.round(with_values(noise, 0, largest))["applied"]
    doubled = {(1, "bias"): ((39,), (torch.tensor(65504.0).half() * 2).item())}
    report = run.round(with_values(noise, 1, doubled))
    assert "slot 1's gradient is inf" in report["nonfinite_element"]
    run.finish()


def test_squares_that_overflow_name_the_largest_element(clusters):
    run = Lockstep(clusters(2), 2, [{"params": SHAPES}])
    noise = Noise(SHAPES)
    report = run.round(with_values(noise, 0, {(1, "scalar"): ((), -3e30)}))
    assert not report["applied"] and report["nonfinite"] == 0
    assert report["nonfinite_element"].startswith('tensor "scalar" (element 0): slot 1\'s gradient')
    assert report["nonfinite_element"].endswith("its tile overflows fp32")
    run.finish()


@pytest.mark.parametrize("dtype", DTYPES)
def test_halt_raises_on_all_trainers_changes_nothing_and_the_job_goes_on(clusters, dtype):
    run = Lockstep(clusters(2), 2, [{"params": SHAPES}], DTYPES[dtype], nonfinite="halt")
    noise = Noise(SHAPES, DTYPES[dtype])
    run.round(noise.at(0))
    text = halted(run, with_values(noise, 1, {(1, "odd"): ((5, 1), math.nan)}))
    assert "round 2 was halted (nonfinite is halt)" in text
    assert 'tensor "odd"[5, 1] (element 16): slot 1\'s gradient is nan' in text
    assert "step again" in text and "resume" not in text, "a job of level none"
    run.check()
    report = run.round(noise.at(2))
    assert (report["round"], report["opt_step"], report["applied"]) == (3, 2, True)
    run.finish()


@pytest.mark.parametrize("durability", ["none", "power"])
def test_one_skip_too_many_halts_also_when_the_servers_were_killed_between(
    start_cluster, durability
):
    cluster = start_cluster(2)
    options = {"durability": durability, "reconnect_timeout": HANG_S / 2}
    run = Lockstep(cluster, 2, [{"params": SHAPES}], max_consecutive_skips=2, **options)
    noise = Noise(SHAPES)
    bad = {(0, "bias"): ((7,), math.inf)}

    def disturb() -> None:
        if durability == "power":
            cluster.strike(0, 1)

    run.round(noise.at(0))
    for skips in (1, 2):
        report = run.round(with_values(noise, skips, bad))
        assert (report["applied"], report["consecutive_skips"]) == (False, skips)
        disturb()
    for skips in (3, 4):  # It stays halted until a round is applied.
        text = halted(run, with_values(noise, skips, bad))
        assert f"number {skips} in a row" in text and "max_consecutive_skips is 2" in text
        assert 'tensor "bias"[7] (element 7): slot 0\'s gradient is inf' in text
        disturb()
    report = run.round(noise.at(5))
    assert (report["applied"], report["consecutive_skips"], report["opt_step"]) == (True, 0, 2)
    assert not run.round(with_values(noise, 6, bad))["applied"]
    run.finish()


def test_trainers_that_want_different_policies_are_told(clusters):
    cluster = clusters(1)
    run = Lockstep(cluster, 2, [{"params": SHAPES}])
    opt = run.trainers.optimizers[1]
    member = opt._membership
    member.config = dataclasses.replace(member.config, nonfinite="halt")
    for replica in run.replicas:
        for p in replica.values():
            p.grad = torch.ones_like(p)
    errors = run.trainers.errors()
    assert all(isinstance(e, ballast.SpecMismatch) for e in errors), errors
    assert "nonfinite is" in str(errors[1])
