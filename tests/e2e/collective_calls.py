"""One rank of a collective, without a job: the cases of test_collective_calls.py.

usage: collective_calls.py RANK WORLD FOLDER
  Runs every case over a process group of torch (gloo) and over NCCL (the fake one), as
  ballast.torch calls them; then the last rank ends, which the others must notice. Prints, as JSON
  and per collective, the names of the cases that passed, and the text of the error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from ballast.errors import LossScaleMismatch, TrainerLost  # noqa: E402
from ballast.rendezvous import Phase, Rendezvous  # noqa: E402
from ballast.torch.collective import Collective  # noqa: E402
from ballast.torch.nccl import Nccl  # noqa: E402

EPOCH = 12


def value_of(rank: int, i: int) -> float:
    """Exact in every dtype, so that sums have one result."""
    return float((rank + 1) * (i % 7))


def each_rank_gets_its_part_of_the_sum(calls: Any) -> None:
    for count in (1, 5, 130):
        numbers = range(calls.world * count)
        bucket = torch.tensor([value_of(calls.rank, i) for i in numbers])
        share = torch.full((count,), -1.0)
        calls.reduce_scatter(share, bucket, 0)
        mine = numbers[calls.rank * count :][:count]
        want = [sum(value_of(rank, i) for rank in range(calls.world)) for i in mine]
        assert share.tolist() == want, count


def sums_of_16_bits_are_rounded_to_nearest_even(calls: Any) -> None:
    for dtype, a, b, rounded in (
        (torch.bfloat16, 0x3F80, 0x3F81, 0x4000),  # 1 + 1.0078125: tie, even
        (torch.bfloat16, 0x3F80, 0x3F83, 0x4002),  # 1 + 1.0234375: tie, even
        (torch.float16, 0x3C00, 0x3C01, 0x4000),  # 1 + 1.0009765625: tie
        (torch.float16, 0x7BFF, 0x7BFF, 0x7C00),  # 65504 twice: infinity
    ):
        mine = torch.tensor([a if calls.rank == 0 else b] * 2, dtype=torch.int16).view(dtype)
        share = torch.zeros(1, dtype=dtype)
        calls.reduce_scatter(share, mine, 0)
        assert share.view(torch.int16).item() == rounded, (dtype, hex(a), hex(b))


def all_gather_brings_every_ranks_bits_to_all(calls: Any) -> None:
    for count in (1, 75):
        share = torch.full((count,), 0x7FA00000 + calls.rank, dtype=torch.int32)  # NaN payloads
        bucket = torch.zeros(calls.world * count)
        calls.all_gather(bucket, share.view(torch.float32), 2)
        got = bucket.view(torch.int32).view(calls.world, count)
        assert all(row.eq(0x7FA00000 + rank).all() for rank, row in enumerate(got)), count


def presence_is_that_of_any_rank(calls: Any) -> None:
    own = [calls.rank == 0, calls.rank == 1, False, True]
    assert calls.agree(own, 1.0) == [True, True, False, True]


def another_loss_scale_is_an_error_on_all_ranks(calls: Any) -> None:
    try:
        calls.agree([True], 1.0 + calls.rank)
    except LossScaleMismatch:
        return
    raise AssertionError("the ranks have agreed on two loss scales")


def many_calls_in_a_row_do_not_mix(calls: Any) -> None:
    for i in range(50):
        share = torch.zeros(1)
        calls.reduce_scatter(share, torch.full((calls.world,), float(i)), 0)
        assert share.item() == calls.world * i


CASES = (
    each_rank_gets_its_part_of_the_sum,
    sums_of_16_bits_are_rounded_to_nearest_even,
    all_gather_brings_every_ranks_bits_to_all,
    presence_is_that_of_any_rank,
    another_loss_scale_is_an_error_on_all_ranks,
    many_calls_in_a_row_do_not_mix,
)


class SessionStub:
    """Stands in for a session in round 0, whose home has long not heard of the other ranks."""

    round, epoch = 0, EPOCH

    def __init__(self, config: Any) -> None:
        self.config = config

    def check_open(self) -> None:
        """It is."""

    def set_doing(self, phase: int, bucket: int, round: int) -> None:
        """No home hears it."""

    def call(self, _: Any) -> dict[str, Any]:
        """The answer of a roll call; the collectives make no other call here but give_up()."""
        others = [rank for rank in range(self.config.world_size) if rank != self.config.rank]
        ranks = [(rank, True, 60.0, 0, int(Phase.NONE), 0, 0) for rank in others]
        return {"ranks": ranks, "generation": 1, "ended": "", "lease_s": 0.0}


def over_nccl(config: Any, session: Any, store: Any) -> Nccl:
    calls = Nccl(config, session, None)
    native = importlib.import_module("ballast._nccl")
    if config.rank == 0:
        store.set("id", calls._comms.new_id())
    seat = (config.rank, config.world_size)
    calls._meeting, calls._epoch, calls._met = Rendezvous(session), EPOCH, True
    calls._link = native.Communicator(
        calls._comms, native.host(), store.get("id"), seat, EPOCH, calls.timeout_s, calls._look
    )
    return calls


def main(rank: int, world: int, folder: str) -> None:
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    config = types.SimpleNamespace(
        job="calls", rank=rank, world_size=world, time_scale=1.0, attach_timeout=60.0,
        collective=dist.group.WORLD,
    )  # fmt: skip
    session: Any = SessionStub(config)
    links = {
        "torch": Collective(config, session),
        "nccl": over_nccl(config, session, dist.PrefixStore("nccl", store)),
    }
    said: dict[str, Any] = {}
    for name, calls in links.items():
        for case in CASES:
            case(calls)
        said[name] = {"passed": [case.__name__ for case in CASES]}
    for name, calls in links.items():
        if rank == world - 1:
            continue  # It ends without a word.
        try:
            calls.reduce_scatter(torch.zeros(1), torch.ones(world), 7)
        except TrainerLost as lost:
            said[name]["lost"] = str(lost)
    print(json.dumps(said), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
