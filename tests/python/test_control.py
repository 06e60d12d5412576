"""ballast.control over real servers: jobs, snapshots and forks without a program other than
Python."""

from __future__ import annotations

import pytest
import torch

import ballast.torch as bt
from ballast import backend
from ballast.control import Control
from ballast.errors import BallastError, NameInUse, UnknownJob, Unreachable
from real_training import SMALL, fresh_job, in_threads


def stepped(endpoints, job, resume="never"):
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(300))
    optimizer = bt.AdamW([("w", parameter)], lr=0.1, endpoints=endpoints, job=job, resume=resume,
                         **SMALL)  # fmt: skip
    if resume == "never":
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    else:
        optimizer.attach()
    return parameter, optimizer


def test_a_snapshot_is_listed_forked_and_deleted(shared_servers):
    endpoints, job = shared_servers(2), fresh_job("control")
    ask = Control(endpoints[::-1], 60.0)  # also where the first one asked is not the home
    parameter, optimizer = stepped(endpoints, job)
    optimizer.snapshot("best")
    (found,) = ask.snapshots(job)
    assert (found["job"], found["name"], found["round"], found["world"]) == (job, "best", 2, 1)
    assert found["parameters"] == 300 and found["bytes"] > 3600 and found["created_s"] > 1e9
    running = ask.job(job)
    assert running["state"] == "running" and running["open_streams"] > 0
    assert (running["round"], running["job"]) == (2, f"{optimizer.job_id:016x}")
    with pytest.raises(BallastError, match="trainers of job .* are attached") as refused:
        ask.delete_job(job)
    assert refused.value.reason == "JOB_BUSY"

    ask.fork(job, "best", job + ".fork", 1)
    with pytest.raises(NameInUse):
        ask.fork(job, "best", job + ".fork", 1)
    with pytest.raises(UnknownJob, match="worst"):
        ask.fork(job, "worst", job + ".other", 1)
    assert ask.job(job + ".fork")["state"] == "resting"
    ask.delete_snapshot(job, "best")
    assert ask.snapshots(job) == []
    with pytest.raises(UnknownJob):
        ask.delete_snapshot(job, "best")
    optimizer.close()

    again, optimizer = stepped(endpoints, job + ".fork", "must")
    assert optimizer.opt_step == 1 and torch.equal(again, parameter)
    optimizer.close()
    ask.delete_job(job + ".fork")
    assert ask.job(job + ".fork") is None
    with pytest.raises(UnknownJob):
        ask.delete_job(job + ".fork")


def test_a_job_goes_with_the_last_trainer_that_closes_it_so(shared_servers):
    endpoints, job = shared_servers(2), fresh_job("deleted")
    ask = Control(endpoints, 60.0)

    def train(rank):
        weight = torch.nn.Parameter(torch.ones(300))
        weight.grad = torch.ones(300)
        optimizer = bt.AdamW([("w", weight)], lr=0.1, endpoints=endpoints, job=job, world_size=2,
                             rank=rank, **SMALL)  # fmt: skip
        optimizer.step()
        optimizer.snapshot("last")
        optimizer.close(delete=True)

    in_threads(lambda: train(0), lambda: train(1))
    assert ask.job(job) is None
    assert [one["name"] for one in ask.snapshots(job)] == ["last"]
    ask.delete_snapshot(job, "last")


def test_servers_that_are_not_there_are_named(shared_servers):
    shared_servers(2)  # the extension is there
    with pytest.raises(Unreachable, match="no state server answered at 127.0.0.1:1 within"):
        Control(["127.0.0.1:1"], 0.0).snapshots("job")


def test_an_interrupt_ends_a_call_that_waits_for_servers(shared_servers):
    shared_servers(2)
    operation = backend.core().start_jobs(["127.0.0.1:1"], ("", "", "", ""), 600.0, 1.0)

    class Interrupted:
        def wait(self, timeout_s):
            operation.wait(0.0)
            raise KeyboardInterrupt

        stop = operation.stop

    with pytest.raises(KeyboardInterrupt):
        Control([], 0.0)._wait(Interrupted())
    with pytest.raises(BallastError, match="stopped by the caller"):
        while not operation.wait(1.0):
            pass
