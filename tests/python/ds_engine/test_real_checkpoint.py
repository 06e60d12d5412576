"""engine.save_checkpoint() and load_checkpoint() over real servers: a crash, and another world."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from ds_engine import checkpoint_script, processes
from ballast import _rejoin
from real_training import fresh_job
from safetensors.torch import load_file
from serving import built_ballastd

SCRIPT = Path(checkpoint_script.__file__)


def oracle(worlds):
    """Plain torch; worlds: the number of trainers of each round."""
    torch.manual_seed(0)
    module = checkpoint_script.module()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=0.1, fused=True)
    scheduler = checkpoint_script.schedule(optimizer)
    for i, world in enumerate(worlds):
        of_ranks = []
        for rank in range(world):
            module.zero_grad()
            module(checkpoint_script.batch(rank, i)).square().mean().backward()
            of_ranks.append([p.grad.clone() for p in module.parameters()])
        for p, *grads in zip(module.parameters(), *of_ranks):
            p.grad = torch.stack(grads).sum(0) * (1.0 / world)
        optimizer.step()
        scheduler.step()
    return module.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_killed_run_continues_from_its_checkpoint_with_other_trainers(
    tmp_path, start_servers, before, after
):
    endpoints, folder = start_servers(2), tmp_path / "saved"
    processes.killed(processes.started(SCRIPT, endpoints, "first", before, folder, 0, 6, 4, "die"))
    assert (folder / "latest").read_text() == "global_step4"
    # With two trainers twice: neither the training after the first load nor the file through which
    # its trainers agreed is an obstacle for the second one.
    for job in ("second", "third")[:after]:
        said = processes.ended(processes.started(SCRIPT, endpoints, job, after, folder, -1, 8, -1))
        got = load_file(folder / "model.safetensors")
        for name, value in oracle([before] * 4 + [after] * 4).items():
            assert torch.equal(got[name], value), name
        assert said == f"8 {16 * before + 16 * after} [0.0025]\n"


def test_a_running_engine_loads_again_and_keeps_one_job(
    tmp_path, shared_servers, monkeypatch
):
    monkeypatch.setenv("BALLAST_ENDPOINTS", ",".join(shared_servers(2)))
    monkeypatch.setenv("BALLAST_JOB", fresh_job("again"))
    engine = checkpoint_script.engine()

    def round_of(i):
        engine.backward(engine(checkpoint_script.batch(0, i)).square().mean())
        engine.step()
        return [p.detach().clone() for p in engine.module.parameters()]

    jobs = [engine.optimizer.job]
    begin = [p.detach().clone() for p in engine.module.parameters()]
    engine.save_checkpoint(tmp_path / "begin")
    first = round_of(0)
    engine.load_checkpoint(tmp_path / "begin")
    assert engine.global_steps == 0 and all(map(torch.equal, engine.module.parameters(), begin))
    assert all(map(torch.equal, round_of(0), first))
    engine.save_checkpoint(tmp_path)
    after = round_of(1)
    for _ in range(3):
        engine.load_checkpoint(tmp_path)
        jobs.append(engine.optimizer.job)
        assert all(map(torch.equal, round_of(1), after))
    ask = _rejoin.control_of(engine.optimizer)
    there = {job["name"] for job in ask.jobs()} & set(jobs)
    assert there == {jobs[0], jobs[-1]}
    engine.save_checkpoint(tmp_path, "two")
    engine.load_checkpoint(tmp_path)  # of a job gone by the next load
    engine.load_checkpoint(tmp_path)
    assert engine.global_steps == 2 and all(map(torch.equal, engine.module.parameters(), after))
    engine.destroy()


def begun(monkeypatch, short):
    """An engine in a job of its own; short: in bf16. The service moves its schedule."""
    params = {"warmup_max_lr": 0.02, "warmup_num_steps": 9, "warmup_type": "linear"}
    more = {"bf16": {"enabled": short}, "scheduler": {"type": "WarmupLR", "params": params}}
    monkeypatch.setenv("BALLAST_JOB", fresh_job("part"))
    return checkpoint_script.engine(more, schedule=None)


def rates_of(engine, numbers):
    """Trains on these batches; the rates with which it did."""
    used = []
    for i in numbers:
        batch = checkpoint_script.batch(0, i).to(next(engine.parameters()).dtype)
        used += engine.get_lr()
        engine.backward(engine(batch).square().mean())
        engine.step()
    return used


@pytest.mark.parametrize("short", [False, True])
def test_loaded_weights_are_the_masters_and_moments_and_schedule_are_as_asked(
    tmp_path, shared_servers, monkeypatch, short
):
    monkeypatch.setenv("BALLAST_ENDPOINTS", ",".join(shared_servers(2)))
    first = begun(monkeypatch, short)
    rates = rates_of(first, range(4)) + first.get_lr()
    first.save_checkpoint(tmp_path)
    weights = [p.detach().clone() for p in first.module.parameters()]
    first.destroy()
    for position, asked in (
        (2, {"load_module_only": True}),
        (2, {"load_optimizer_states": False, "load_lr_scheduler_states": False}),
        (4, {"load_optimizer_states": False}),
    ):
        engine = begun(monkeypatch, short)
        rates_of(engine, range(20, 22))
        before = engine.optimizer.export_state()["state"]
        engine.load_checkpoint(tmp_path, **asked)
        assert all(map(torch.equal, engine.module.parameters(), weights))
        for i, now in engine.optimizer.export_state()["state"].items():
            assert torch.equal(now["master"], weights[i].float())
            for key in ("exp_avg", "exp_avg_sq", "step"):
                assert torch.equal(now[key], before[i][key]), key
        assert engine.get_lr() == [rates[position]]
        engine.destroy()
    # The moments come along, and the schedule stays at the new engine's position.
    engine = begun(monkeypatch, short)
    engine.load_checkpoint(tmp_path, load_lr_scheduler_states=False)
    assert engine.optimizer.opt_step == 4 and rates_of(engine, range(5)) == rates
    engine.destroy()


def test_an_engine_continues_from_a_universal_checkpoint_of_the_servers(
    tmp_path, shared_servers, monkeypatch
):
    endpoints = shared_servers(2)
    monkeypatch.setenv("BALLAST_ENDPOINTS", ",".join(endpoints))
    monkeypatch.setenv("BALLAST_JOB", fresh_job("universal"))
    first = checkpoint_script.engine()

    def rounds(engine, numbers):
        for i in numbers:
            engine.backward(engine(checkpoint_script.batch(0, i)).square().mean())
            engine.step()

    rounds(first, range(2))
    command = [built_ballastd().with_name("ballastctl"), "export", first.optimizer.job, "-o",
               "json", "--format", "deepspeed-universal", "--endpoint", endpoints[0]]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    folder = json.loads(said.stdout)["directory"]
    rounds(first, range(2, 5))
    second = checkpoint_script.engine({"checkpoint": {"load_universal": True}})
    assert second.load_checkpoint(folder)[0] == os.path.join(folder, "global_step2")
    # torch's schedule continues at its position, too.
    assert second.optimizer.job != first.optimizer.job and second.global_steps == 2
    rounds(second, range(2, 5))
    assert all(map(torch.equal, second.module.parameters(), first.module.parameters()))
    assert second.get_lr() == first.get_lr() and second.global_steps == first.global_steps
    first.destroy()
    second.destroy()
