"""kill -9 of the scripts and of all servers: they continue, and no bit differs from a calm run.

The DeepSpeed script comes back by load_checkpoint(), Trainer by resume_from_checkpoint, the loop
with Accelerate by attach() to its job.
"""

from __future__ import annotations

import dataclasses

import pytest

from e2e.gpt2 import launch, net, ways
from e2e.gpt2.launch import Part
from e2e.gpt2.net import Case

ROUNDS, DIES = 6, 5


def check(cluster, folder, dtype: str, world: int) -> None:
    """After round 1 the servers die; after round 5 they do again, with all trainers."""
    calm = Case(dtype, passes=ROUNDS, epochs=1)
    plan = []
    for way in ways.WAYS:
        saved = folder / f"saved-{way}"
        saved.mkdir()
        kept = dataclasses.replace(calm, folder=str(saved), saves=2)
        killed = Part(f"{way}-killed", way, dataclasses.replace(
            kept, strikes=(1, DIES), dies=DIES), world)  # fmt: skip
        # A checkpoint becomes a job of its own; without one the script takes its job's seat.
        same = {"job": killed.job} if way == "accelerate" else {}
        resumed = dataclasses.replace(kept, resume=True)
        plan += [Part(f"{way}-calm", way, calm, world), killed,
                 Part(f"{way}-resumed", way, resumed, world, **same)]  # fmt: skip
    results = launch.carry_out(cluster, folder / "plan", plan, "power")
    for way in ways.WAYS:
        codes = results.codes(f"{way}-killed")
        # Another trainer is killed, too, unless the end of the first one has ended it already.
        assert codes[0] == -9 and all(codes), results.output(f"{way}-killed")
        ends, calms = (results.logs(f"{way}-{how}", world) for how in ("resumed", "calm"))
        left = ROUNDS - (DIES if way == "accelerate" else 4)  # rounds after the checkpoint
        for end, quiet in zip(ends, calms, strict=True):
            assert end.column("loss") == quiet.column("loss")[-left:], way
            assert end.differing_bits(quiet) == 0, way


def test_killed_scripts_and_servers_end_with_the_bits_of_a_calm_run(start_cluster, tmp_path):
    check(start_cluster(2), tmp_path, "bf16", world=1)


@pytest.mark.long
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("dtype", net.DTYPES)
def test_every_dtype_survives_kills(start_cluster, tmp_path, dtype, world):
    check(start_cluster(2), tmp_path, dtype, world)
