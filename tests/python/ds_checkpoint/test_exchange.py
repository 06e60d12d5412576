"""DeepSpeed's checkpoints into a job over real servers and out of it again: no bit differs."""

from __future__ import annotations

import shutil
from pathlib import Path

import ballast.torch as bt
import pytest
import record_zero
import torch
from ballast.ds_checkpoint import (
    CheckpointError,
    NamedState,
    export_of,
    load_universal,
    open_zero,
    states_of,
    to_universal,
    zero_states,
)
from real_training import SMALL, fresh_job, in_threads

RECORDED = Path(__file__).resolve().parent / "recorded"


@pytest.fixture
def recorded(tmp_path):
    """recorded(variant): a checkpoint that DeepSpeed 0.19.8 wrote, unpacked."""

    def unpack(variant):
        folder = tmp_path / variant
        shutil.unpack_archive(RECORDED / f"{variant}.tar.xz", folder)
        return folder

    return unpack


def same(got, want):
    assert set(got) == set(want)
    for name, state in got.items():
        assert set(state.arrays) == set(want[name].arrays) and state.step == want[name].step
        for key, array in state.arrays.items():
            assert torch.equal(array, want[name].arrays[key]), (name, key)


def optimizer(module, **options):
    matrices, vectors = record_zero.named_groups(module)
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return bt.AdamW(groups, lr=0.01, durability="none", **SMALL, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variant", ["stage1", "stage2", "turns", "stage3"])
def test_a_job_continues_from_each_stage_and_leaves_again(
    recorded, tmp_path, shared_servers, variant, dtype
):
    want = zero_states(open_zero(recorded(variant)))
    module = record_zero.Toy(1).to(dtype)
    opt = optimizer(module, endpoints=shared_servers(2), job=fresh_job(variant))
    opt.load_export(export_of(want))
    weights = dict(module.named_parameters())
    for name, state in want.items():
        assert torch.equal(weights[name], state.arrays["fp32"].to(dtype))
    states, groups = states_of(opt.export_state())
    same(states, want)
    to_universal(tmp_path / "u", "t", states, groups)
    same(load_universal(tmp_path / "u"), want)
    assert [group.hyper["weight_decay"] for group in groups] == [0.1, 0.0]
    module(torch.arange(6)).backward()
    opt.step()
    assert {state.step for state in states_of(opt.export_state())[0].values()} == {4}
    opt.close()


def test_another_number_of_trainers_continues(recorded, shared_servers):
    want = zero_states(open_zero(recorded("stage3")))
    job, endpoints = fresh_job("world"), shared_servers(2)
    toys = [record_zero.Toy(1) for _ in range(3)]
    for toy in toys:
        toy.load_state_dict(toys[0].state_dict())

    def trainer(rank):
        opt = optimizer(toys[rank], endpoints=endpoints, job=job, world_size=3, rank=rank)
        opt.load_export(export_of(want))
        same(states_of(opt.export_state())[0], want)
        opt.close()

    in_threads(*(lambda rank=rank: trainer(rank) for rank in range(3)))


def test_a_master_alone_begins_with_moments_of_zero():
    export = export_of({"a": NamedState({"fp32": torch.ones(3)})})
    assert export["names"] == {0: "a"} and export["param_groups"] == []
    assert export["state"][0]["step"] == 0
    assert export["state"][0]["exp_avg"].tolist() == [0.0, 0.0, 0.0]


def test_an_export_without_names_is_refused():
    with pytest.raises(CheckpointError, match="named_parameters"):
        states_of({"state": {0: {}}, "param_groups": []})
