"""kill -9 of a DeepSpeed script: training_data continues after the last committed round.

The oracle is torch alone, with its DistributedSampler: the same batches in the same windows.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ds_engine import loader_script, processes
from real_training import fresh_job
from safetensors.torch import load_file

SCRIPT = Path(loader_script.__file__)


def windows(world, accumulation):
    """Of each round the batches of each rank."""
    data = loader_script.data()
    streams = []
    for rank in range(world):
        sampler = torch.utils.data.DistributedSampler(data, num_replicas=world, rank=rank)
        loader = torch.utils.data.DataLoader(data, loader_script.MICRO, sampler=sampler)
        stream = []
        for epoch in range(loader_script.EPOCHS):
            sampler.set_epoch(epoch)
            stream += [batch for (batch,) in loader]
        streams.append(stream)
    for first in range(0, len(streams[0]) - accumulation + 1, accumulation):
        yield [stream[first : first + accumulation] for stream in streams]


def oracle(world, accumulation):
    module = loader_script.module()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=0.1, fused=True)
    for of_ranks in windows(world, accumulation):
        grads = []
        for window in of_ranks:
            module.zero_grad()
            for batch in window:
                (module(batch).square().mean() / accumulation).backward()
            grads.append([p.grad.clone() for p in module.parameters()])
        for p, *of_rank in zip(module.parameters(), *grads):
            p.grad = torch.stack(of_rank).sum(0) * (1.0 / world)
        optimizer.step()
    return module.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize(("world", "dies"), [(1, 17), (2, 11)])
def test_a_killed_script_continues_after_its_last_round(
    tmp_path, shared_servers, monkeypatch, world, dies
):
    """It dies in its second epoch, inside a window of three micro-batches."""
    monkeypatch.setenv("BALLAST_RESUME", "auto")
    endpoints, job = shared_servers(2), fresh_job("data")
    assert dies % 3 and dies > len(list(windows(world, 1))) / loader_script.EPOCHS
    processes.killed(processes.started(SCRIPT, endpoints, job, world, tmp_path, dies))
    said = processes.ended(processes.started(SCRIPT, endpoints, job, world, tmp_path, -1))
    rounds = [dies // accumulation for accumulation in loader_script.ACCUMULATIONS]
    assert said == f"{[[count, {'round': count}] for count in rounds]}\n"
    for accumulation in loader_script.ACCUMULATIONS:
        got = load_file(tmp_path / f"model-{accumulation}.safetensors")
        for name, value in oracle(world, accumulation).items():
            assert torch.equal(got[name], value), (accumulation, name)
