"""upload_weights() after the first step: the service's weights are replaced, the moments stay.

The reference is torch after `p.copy_()` with the state it had, bit for bit; see oracle.py.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import ballast
from e2e.cluster import HANG_S, wait_for
from e2e.lockstep import Lockstep, Noise, dtype_of, initial_weights

SHAPES = {"embedding": (200, 50), "weight": (64, 40), "bias": (40,), "odd": (77, 3), "scalar": ()}


def edited(i: int, dtypes=torch.float32) -> dict[str, torch.Tensor]:
    """Other weights for all tensors, with values that only an exact copy keeps."""
    generator = torch.Generator().manual_seed(100 + i)
    weights = {}
    for name, shape in SHAPES.items():
        weight = torch.randn(shape, generator=generator)
        if weight.dim() == 2:
            weight[0, 0], weight[0, 1], weight[0, 2] = -0.0, 1e-40, 3e38
        weights[name] = weight.to(dtype_of(dtypes, name))
    return weights


@pytest.mark.parametrize("servers, world", [(1, 1), (2, 2), (7, 4)])
@pytest.mark.parametrize("durability", ["none", "power"])
def test_steps_after_an_upload_equal_torch(clusters, servers, world, durability):
    run = Lockstep(
        clusters(servers), world, [{"params": SHAPES, "lr": 1e-2}], durability=durability
    )
    noise = Noise(SHAPES)
    for i in range(9):
        if i in (3, 4, 7):
            run.upload(edited(i))
            run.check()
        run.round(noise.at(i))
        run.check()
    opt = run.trainers.optimizers[-1]
    assert (opt.round, opt.opt_step) == (12, 9)
    run.finish()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_weights_become_masters_exactly(clusters, dtype):
    run = Lockstep(clusters(2), 2, [{"params": SHAPES, "lr": 1e-2}], dtype)
    noise = Noise(SHAPES, dtype)
    for i in range(6):
        if i == 3:
            run.upload(edited(i, dtype))
        run.round(noise.at(i))
        run.check()
    run.finish()


def test_strided_frozen_and_late_tensors(clusters):
    run = Lockstep(clusters(2), 2, [{"params": {"weight": (64, 40)}, "lr": 1e-2}])
    late = {"params": {"odd": (77, 3)}, "lr": 3e-2}
    noise = Noise(SHAPES)
    for replica in run.replicas:  # column-major: it travels through a copy
        replica["weight"].data = replica["weight"].data.t().contiguous().t()
    run.round(noise.at(0))
    run.add_group(late)
    run.upload({name: edited(1)[name] for name in ("weight", "odd")})
    for i in range(1, 4):
        run.round(noise.at(i))
        run.check()
    run.finish()


def test_with_broadcast_the_lowest_rank_s_weights_are_given_to_the_others(clusters):
    run = Lockstep(clusters(2), 3, [{"params": SHAPES, "lr": 1e-2}], init="broadcast")
    noise = Noise(SHAPES)
    run.round(noise.at(0))
    weights = edited(0)
    run.oracle.copy_(weights)
    with torch.no_grad():
        for name, weight in weights.items():
            run.replicas[0][name].copy_(weight)
    run.trainers.each(lambda opt: opt.upload_weights())
    run.check()
    run.round(noise.at(1))
    run.finish()


def upload_error(opt) -> Exception | None:
    try:
        opt.upload_weights()
        return None
    except Exception as error:
        return error


@pytest.mark.parametrize("durability", ["none", "power"])
def test_unequal_weights_are_an_error_for_all_that_names_the_tensor(clusters, durability):
    run = Lockstep(clusters(2), 2, [{"params": SHAPES}], durability=durability)
    run.round(Noise(SHAPES).at(0))
    with torch.no_grad():
        for slot, replica in enumerate(run.replicas):
            replica["odd"].fill_(slot)
    for error in run.trainers.each(upload_error):
        assert isinstance(error, ballast.InitMismatch), error
        assert 'tensor "odd"' in str(error) and error.round == 2
    run.trainers.close()


def test_an_upload_that_the_others_do_not_make_is_an_error_for_all(clusters):
    run = Lockstep(clusters(2), 2, [{"params": SHAPES}])
    run.round(Noise(SHAPES).at(0))
    with torch.no_grad():
        run.replicas[1]["odd"].fill_(1)
    first, second = run.trainers.optimizers
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(upload_error, second)
        with pytest.raises(ballast.InitMismatch, match="slot 1 uploads .* which slot 0 steps"):
            first.step()
        assert isinstance(other.result(HANG_S), ballast.InitMismatch)
    run.trainers.close()


@pytest.mark.parametrize("durability, seed", [("power", 1), ("power", 2), ("process", 3)])
def test_servers_killed_around_uploads(start_cluster, durability, seed):
    """kill -9 at random bytes of uploads and of the steps around them; also both at once."""
    cluster = start_cluster(2)
    shapes = {"wide": (700, 300), "odd": (77, 3)}
    run = Lockstep(
        cluster, 2, [{"params": shapes, "lr": 1e-2}], durability=durability,
        reconnect_timeout=HANG_S / 2, tile_elements=4096, extent_elements=16384,
    )  # fmt: skip
    noise, chance = Noise(shapes), random.Random(seed)
    bytes_per_round = 2 * 4 * (700 * 300 + 77 * 3)  # of a trainer that pushes and receives

    def moved() -> int:
        counters = run.trainers.optimizers[0].counters
        return counters["payload_up_bytes"] + counters["payload_down_bytes"]

    def uploads(i: int) -> None:
        run.round(noise.at(i))
        run.upload({name: w + i for name, w in initial_weights(shapes, torch.float32).items()})
        run.round(noise.at(i + 1))

    run.round(noise.at(0))
    with ThreadPoolExecutor(1) as pool:
        try:
            for i in range(1, 13, 2):
                at = moved() + int(chance.uniform(0.8, 2.2) * bytes_per_round)
                part = pool.submit(uploads, i)
                wait_for(lambda at=at: moved() >= at or part.done(), "bytes", every_s=0.0005)
                cluster.strike(*chance.choice([(0,), (1,), (0, 1)]))
                part.result(HANG_S)
                run.check()
            run.finish()
        finally:
            run.trainers.abandon()
