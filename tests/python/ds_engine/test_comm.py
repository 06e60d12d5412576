"""deepspeed.comm: groups of torch.distributed, and its operations by DeepSpeed's names."""

from __future__ import annotations

import ballast.deepspeed as deepspeed
import pytest
import torch
from ballast.errors import BadArgument, Unsupported


@pytest.fixture
def ended():
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def test_one_trainer_is_a_group_of_one(ended, monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    dist = deepspeed.comm
    assert (dist.get_rank(), dist.get_world_size(), dist.is_initialized()) == (0, 1, False)
    dist.barrier()
    with pytest.raises(BadArgument, match="dist_init_required=False.*has not begun"):
        deepspeed.init_distributed(dist_init_required=False)
    deepspeed.init_distributed()
    assert torch.distributed.get_rank() == dist.get_rank() == 0
    torch.distributed.barrier()
    dist.barrier(device_ids=None, log_name="end")
    deepspeed.init_distributed("gloo", dist_init_required=False)  # has begun
    x = torch.ones(2)
    dist.all_reduce(x, op=dist.ReduceOp.SUM, prof=True, log_name="x")
    dist.inference_all_reduce(x)
    found = [torch.zeros(2)]
    dist.all_gather(found, x)
    assert found[0].tolist() == [1, 1] and dist.get_all_ranks_from_group() == [0]
    assert dist.get_global_rank(dist.new_group([0]), 0) == 0
    assert deepspeed.utils.groups._get_data_parallel_world_size() == 1
    from ballast.deepspeed.comm.comm import broadcast

    broadcast(x, src=0)


def test_a_way_to_meet_is_passed_on(ended, tmp_path):
    deepspeed.init_distributed(
        dist_backend="gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    assert torch.distributed.get_world_size() == 1 and (tmp_path / "meet").exists()


@pytest.mark.parametrize(("backend", "says"), [
    ("nccl", "nccl needs a GPU, and there is none; gloo"), ("ccl", "ccl is not in this torch; gl"),
    ("cpu:gloo,cuda:nccl", "nccl needs a GPU, .*; gloo takes the place of cpu:gloo,cuda:nccl"),
])  # fmt: skip
def test_gloo_takes_the_place_of_what_is_not_there(monkeypatch, backend, says):
    begun = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda **how: begun.append(how))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(UserWarning, match=says):
        deepspeed.init_distributed(backend, True, 29500, verbose=False)
    assert begun == [{"backend": "gloo", "timeout": None}]  # the rest from the environment
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("ballast.deepspeed.comm.nccl_is_built", lambda: True)
    monkeypatch.setattr(torch.distributed, "is_backend_available", ["gloo", "nccl"].__contains__)
    deepspeed.init_distributed("cpu:gloo,cuda:nccl")
    assert begun[1]["backend"] == "cpu:gloo,cuda:nccl"
    with pytest.raises(Unsupported, match="barrier\\(\\) needs torch.distributed"):
        deepspeed.comm.barrier()


@pytest.mark.parametrize(("module", "name", "says"), [
    (deepspeed.comm, "gossip", "call init_distributed\\(\\), then use torch.distributed"),
    (deepspeed.comm, "_reducer", "call init_distributed\\(\\), then use torch.distributed"),
    (deepspeed.utils, "debug", "print what you look for"),
    (deepspeed, "compile", "torch.compile on the model"),
])  # fmt: skip
def test_names_that_are_not_here_say_what_to_use(module, name, says):
    with pytest.raises(AttributeError, match=says):
        getattr(module, name)
