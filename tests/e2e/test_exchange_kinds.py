"""Exports of every kind of optimizer that real servers wrote, offered to jobs of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ballast
import ballast.torch as bt
from e2e.ballastctl import export
from e2e.cluster import HANG_S, Cluster, fresh_job

# The options with which a kind's arrays or options are another kind's, too.
OPTIONS = {
    "AdamW": {"weight_decay": 0.0},
    "Adam": {},
    "SGD": {"momentum": 0.5},
    "Adagrad": {"initial_accumulator_value": 0.5},
    "Lion": {},
    "LAMB": {},
    "ApplyDelta": {},
}


def begin(cluster: Cluster, kind: str, **options):
    parameter = torch.nn.Parameter(torch.ones(300))
    opt = getattr(bt, kind)(
        [("p", parameter)], lr=0.125, endpoints=cluster.endpoints, job=fresh_job(),
        attach_timeout=HANG_S, durability="process", **{**OPTIONS[kind], **options},
    )  # fmt: skip
    return parameter, opt


def exported(cluster: Cluster, kind: str, **options) -> tuple[Path, dict]:
    parameter, opt = begin(cluster, kind, **options)
    for i in range(2):
        parameter.grad = torch.full((300,), 1.0 + i)
        opt.step()
    name = fresh_job("export")
    directory = export(cluster, opt.job, "--name", name, "--state")["directory"]
    state = opt.export_state()["state"][0]
    opt.close()
    return Path(directory), state


@pytest.mark.parametrize("source", OPTIONS)
def test_files_go_into_a_job_of_their_kind_only(sharing_clusters, source):
    cluster = sharing_clusters(1)
    directory, state = exported(cluster, source)
    for target in OPTIONS:
        parameter, opt = begin(cluster, target)
        if target == source:
            opt.load_export(directory)
            loaded = opt.export_state()["state"][0]
            assert loaded.keys() == state.keys()
            assert all(torch.equal(loaded[key], state[key]) for key in state)
        else:
            with pytest.raises(ballast.BadArgument, match=f"is an export of .*, not of {target}"):
                opt.load_export(directory)
            assert opt.job_id == 0 and torch.equal(parameter, torch.ones(300))
        opt.close()


def test_an_array_more_than_the_job_has_is_refused(sharing_clusters):
    cluster = sharing_clusters(1)
    directory, _ = exported(cluster, "AdamW", amsgrad=True)
    _, opt = begin(cluster, "AdamW")
    with pytest.raises(ballast.BadArgument, match="max_exp_avg_sq.*build this optimizer with amsg"):
        opt.load_export(directory)
    opt.close()
