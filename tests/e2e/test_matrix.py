"""Weights, m and v equal torch's bit for bit, for every number of servers and trainers.

The reference is torch stepping on the slot-order sum of the same gradients times the same factor;
see oracle.py and docs/numerics.md. Push order and duplicated pushes, which no client produces on
demand, are in tests/server/engine.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from e2e import matrix_trainer
from e2e.lockstep import Gradient, Lockstep, Noise
from e2e.oracle import differing_bits

# About half a million parameters: element counts in multiples of 8, for both oracles, and others,
# for the oracle exact there.
SHAPES = {
    "embedding": (1000, 200),
    "weight": (512, 256),
    "bias": (256,),
    "odd": (333, 333),
    "prime": (65537,),
    "seven": (7,),
    "scalar": (),
}
FEW = {"weight": (64, 40), "bias": (40,), "odd": (77, 3), "scalar": ()}
TILES = {"tile_elements": 16384, "extent_elements": 16384}
STEPS = 300


MAX_NORM = 2.5


def around_the_limit(noise: Noise, i: int) -> Gradient:
    """The gradients of round i, so small in every third that they stay below MAX_NORM."""
    if i % 3 != 0:
        return noise.at(i)
    return lambda slot, name: noise.of(i, slot, name) * 1e-4


def check_clipping(run: Lockstep, report: dict) -> None:
    """The norm is that of the mean gradient, and the coefficient follows from it exactly."""
    assert report["grad_norm"] == pytest.approx(run.mean_norm(), rel=1e-6)
    assert report["clip_coef"] == min(1.0, MAX_NORM / (report["grad_norm"] + 1e-6))


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("servers", [1, 2, 7])
def test_300_steps_with_a_schedule_and_clipping(clusters, servers, world):
    """Two groups. Unclipped rounds, a third, are stepped as without clipping."""
    decayed = {name: SHAPES[name] for name in ("embedding", "weight", "odd", "prime")}
    plain = {name: SHAPES[name] for name in ("bias", "seven", "scalar")}
    groups = [
        {"params": decayed, "lr": 1e-3, "weight_decay": 0.1, "betas": (0.9, 0.95)},
        {"params": plain, "lr": 2e-3, "weight_decay": 0.0, "eps": 1e-6},
    ]
    run = Lockstep(clusters(servers), world, groups, max_grad_norm=MAX_NORM, **TILES)
    # It moves beta1 as well as the learning rates.
    schedules = [
        torch.optim.lr_scheduler.OneCycleLR(o, max_lr=[5e-3, 1e-2], total_steps=STEPS + 1)
        for o in run.optimizers
    ]
    noise = Noise(SHAPES)
    clipped = 0
    for i in range(STEPS):
        report = run.round(around_the_limit(noise, i))
        for schedule in schedules:
            schedule.step()
        clipped += report["clip_coef"] < 1.0
        if i % 100 < 3:
            check_clipping(run, report)
        if i % 100 == 50:
            run.check()
    assert (report["round"], report["opt_step"], clipped) == (STEPS, STEPS, STEPS * 2 // 3)
    run.finish()


def is_absent(i: int, slot: int, name: str) -> bool:
    """Which gradients are None in the next test."""
    return (
        (name == "odd" and i % 3 == 1)  # on all slots: neither stepped nor counted
        or (name == "bias" and slot == i % 4)  # on some: zeros from those
        or (name == "weight" and i % 5 == 2 and slot == 0)
        or (name == "scalar" and i < 4)  # never seen before round 4
        or (name == "late_odd" and i % 7 == 3)
        or i % 50 == 7  # a round without any gradient
    )


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("servers", [1, 2, 7])
def test_300_steps_with_none_gradients_and_a_late_group(clusters, servers, world):
    late, joins = {"late": (50, 32), "late_odd": (13,)}, STEPS // 3
    run = Lockstep(clusters(servers), world, [{"params": FEW, "lr": 1e-2}])
    noise = Noise({**FEW, **late})
    steps = dict.fromkeys([*FEW, *late], 0)
    rates = [1e-2, 3e-2]
    for i in range(STEPS):
        if i == joins:
            group = {"params": late, "lr": 0.0, "weight_decay": 0.2, "betas": (0.8, 0.9)}
            run.add_group(group)
        for optimizer in run.optimizers:
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate * (1.0 - i / (2 * STEPS))
        present = [
            {name for name in run.oracle.names if not is_absent(i, slot, name)}
            for slot in range(world)
        ]
        run.round(lambda slot, name: noise.of(i, slot, name) if name in present[slot] else None)
        for name in set().union(*present):
            steps[name] += 1
        if i % joins < 20 or i % 25 == 0:
            run.check()
    exported = run.trainers.optimizers[0].export_state()["state"]
    assert [int(exported[i]["step"]) for i in range(6)] == list(steps.values())
    assert steps["odd"] < steps["weight"] < STEPS
    assert steps["late_odd"] < steps["late"] < STEPS - joins
    run.finish()


def test_clipping_divides_by_three_trainers(clusters):
    run = Lockstep(
        clusters(2), 3, [{"params": SHAPES, "lr": 1e-3}], max_grad_norm=MAX_NORM, **TILES
    )
    noise = Noise(SHAPES)
    for i in range(30):
        check_clipping(run, run.round(around_the_limit(noise, i)))
    run.finish()


@pytest.mark.parametrize("servers, world", [(1, 1), (2, 2), (7, 4)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_parameters(clusters, dtype, servers, world):
    loss_scale = 1024.0 if dtype == torch.float16 else 1.0
    run = Lockstep(
        clusters(servers), world, [{"params": FEW, "lr": 1e-3}], dtype, loss_scale=loss_scale
    )
    noise = Noise(FEW, dtype)
    for i in range(100):
        run.round(noise.at(i))
    run.finish()


def test_several_dtypes_in_one_job(clusters):
    """Each group and dtype has a flat space of its own."""
    dtypes = {"weight": torch.bfloat16, "bias": torch.float32, "odd": torch.float16}
    dtypes["scalar"] = torch.bfloat16
    run = Lockstep(clusters(2), 2, [{"params": FEW, "lr": 1e-2}], dtypes)
    noise = Noise(FEW, dtypes)
    for i in range(30):
        run.round(noise.at(i))
    run.finish()


def test_fp16_weights_that_overflow_become_inf_and_are_counted(clusters):
    run = Lockstep(clusters(1), 1, [{"params": {"w": (16,)}, "lr": 5e4}], torch.float16)
    reports = [run.round(lambda slot, name: torch.ones(16, dtype=torch.float16)) for _ in range(3)]
    assert [r["weight_overflows"] for r in reports] == [0, 16, 16]
    assert torch.isinf(run.replicas[0]["w"]).all()
    assert torch.isfinite(run.trainers.optimizers[0].export_state()["state"][0]["master"]).all()
    run.finish()


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("servers", [1, 7])
def test_a_gradient_that_is_not_finite_skips_the_round_on_all_trainers(clusters, servers, poison):
    world = 3
    run = Lockstep(clusters(servers), world, [{"params": FEW, "lr": 1e-2}], max_grad_norm=1.0)
    noise = Noise(FEW)

    def poisoned(slot: int, name: str) -> torch.Tensor:
        gradient = noise.of(2, slot, name)
        if slot == 1 and name == "odd":
            gradient = gradient.clone()
            gradient[40, 1] = poison
        return gradient

    for i in range(2):
        run.round(noise.at(i))
    report = run.round(poisoned)
    assert not report["applied"] and report["nonfinite"] == 1 and report["opt_step"] == 2
    assert all(opt.step_was_skipped for opt in run.trainers.optimizers)
    run.check()  # no oracle was stepped
    for i in range(3, 6):
        assert run.round(noise.at(i))["applied"]
    run.finish()


def test_two_servers_and_two_trainers_as_processes(ballastd, tmp_path):
    script = Path(matrix_trainer.__file__)
    command = [sys.executable, "-m", "ballast.run", "--servers", "2", "--nproc", "2",
               "--server-binary", ballastd, script, tmp_path, str(STEPS)]  # fmt: skip
    done = subprocess.run(
        command, env=matrix_trainer.environment(), capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stderr
    oracle = matrix_trainer.reference(world=2, steps=STEPS)
    for rank in range(2):
        result = torch.load(tmp_path / f"rank{rank}.pt")
        for name, master in zip(oracle.names, oracle.masters(), strict=True):
            assert differing_bits(result["weights"][name], master) == 0, (rank, name)
        differing = oracle.differing_bits(result["state"])
        assert not any(differing.values()), differing
