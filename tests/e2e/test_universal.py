"""`ballastctl export --format deepspeed-universal`: torch, DeepSpeed and load_export() read it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

import ballast.torch as bt
from ballast.ds_checkpoint import load_universal
from ballast.errors import BadArgument
from e2e.ballastctl import ctl, export, snapshots
from e2e.cluster import fresh_job
from e2e.exports import in_exports, rested, shared
from e2e.oracle import differing_bits

SHAPES = {
    "wide.weight": ((70, 41), torch.float32), "wide.bias": ((70,), torch.bfloat16),
    "scale": ((), torch.float32), "none": ((0, 3), torch.float32), "é half": ((33,), torch.float16),
    "long": ((3000,), torch.bfloat16),
}  # fmt: skip
KINDS = {
    "AdamW": {"lr": 0.01, "weight_decay": 0.1},
    "Adam": {"lr": 0.01, "amsgrad": True},
    "Adagrad": {"lr": 0.1},
    "Lion": {"lr": 0.001, "weight_decay": 0.1},
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "LAMB": {"lr": 0.01},
}


def parameters() -> dict[str, torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype))
        for name, (shape, dtype) in SHAPES.items()
    }


def started(cluster, kind: str, job: str, **options):
    """(parameters by name, an optimizer over two groups of them)."""
    mine = parameters()
    groups = [
        {"params": [(n, p) for n, p in mine.items() if ("." in n) == first]}
        for first in (True, False)
    ]
    optimizer = getattr(bt, kind)(
        groups, job=job, endpoints=cluster.endpoints, durability="process", extent_elements=512,
        tile_elements=64, **KINDS[kind], **options)  # fmt: skip
    return mine, optimizer


def step(mine, optimizer, rounds: int, first: int = 0) -> None:
    for i in range(first, first + rounds):
        generator = torch.Generator().manual_seed(i)
        for p in mine.values():
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_goes_out_and_continues_in_another_one(sharing_clusters, kind):
    cluster, job = sharing_clusters(2), fresh_job()
    mine, optimizer = started(cluster, kind, job)
    step(mine, optimizer, 3)
    said = export(cluster, job, "--format", "deepspeed-universal", "--torch-optimizer")
    want = optimizer.export_state()
    folder = Path(said["directory"])
    assert (folder / "latest_universal").read_text() == "global_step3"
    assert (said["tensors"], said["state"]) == (6, True)

    states = load_universal(folder)
    assert set(states) == set(SHAPES)
    for index, name in want["names"].items():
        of = dict(want["state"][index])
        assert states[name].step == int(of.pop("step", 3))
        got = dict(states[name].arrays)
        assert differing_bits(got.pop("fp32"), of.pop("master")) == 0
        assert set(got) == set(of)
        for array, value in of.items():
            assert differing_bits(got[array], value.reshape(got[array].shape)) == 0, (name, array)

    step(mine, optimizer, 2, first=3)
    optimizer.close()
    again, other = started(cluster, kind, fresh_job())
    other.load_export(folder)
    assert other.opt_step == 3
    step(again, other, 2, first=3)
    other.close()
    for name, p in mine.items():
        assert torch.equal(again[name], p), name


def test_every_file_is_torchs(sharing_clusters):
    cluster, job = sharing_clusters(2), fresh_job()
    mine, optimizer = started(cluster, "AdamW", job)
    step(mine, optimizer, 2)
    for tensors in ((), ("--torch-optimizer",)):
        said = export(cluster, job, "--format", "deepspeed-universal", "--name",
                      f"{job[:40]}-{len(tensors)}", *tensors)  # fmt: skip
        tag = Path(said["directory"]) / "global_step2"
        files = sorted(tag.rglob("*.pt"))
        assert len(files) == 6 * 4 + 3 and said["files"] == 6 * 3
        read = {}
        for path in files:
            assert zipfile.ZipFile(path).testzip() is None
            read[str(path.relative_to(tag))] = torch.load(path, weights_only=True)
        assert read["zero/wide.weight/fp32.pt"]["cat_dim"] == 0
        for array in ("fp32", "exp_avg"):
            for name, (shape, _) in SHAPES.items():
                param = read[f"zero/{name}/{array}.pt"]["param"]
                assert (param.shape, param.dtype) == (torch.Size(shape), torch.float32)
                assert param.is_contiguous()
        counted = read["zero/scale/step.pt"]
        assert counted == 2 and isinstance(counted, torch.Tensor) == bool(tensors)
        common = read["zero/optimizer_state.pt"]
        assert [g["params"] for g in common["param_groups"]] == [[0], [1]]
        assert common["optimizer_state_dict"]["state"][1]["step"] == 2
        model = read["mp_rank_00_model_states.pt"]
        assert (model["global_steps"], model["skipped_steps"]) == (2, 0)
        schedule = {"last_batch_iteration": 1, "last_epoch": 2, "lr_lambdas": []}
        assert model["lr_scheduler"] == schedule
        assert model["param_shapes"][0] == {"wide.weight": (70, 41), "wide.bias": (70,)}
        assert isinstance(model["param_shapes"][0]["wide.bias"], torch.Size)
        # In zip archives a mapped tensor begins at a whole number of its elements.
        mapped = torch.load(tag / "zero" / "long" / "fp32.pt", weights_only=True, mmap=True)
        assert torch.equal(mapped["param"], read["zero/long/fp32.pt"]["param"])
    optimizer.close()


def test_a_snapshot_and_a_resting_job_go_out_on_one_server_or_all(start_cluster, tmp_path):
    cluster = start_cluster(2, **shared(tmp_path))
    job = rested(cluster)
    snapshots(cluster, "create", job, "two")
    for name, more in (("a", ()), ("b", ("--snapshot", "two")), ("c", ("--consolidated",))):
        export(cluster, job, "--format", "deepspeed-universal", "--name", name, *more)
    folders = [tmp_path / "exports" / name for name in "abc"]
    files = [{p.relative_to(f): p.read_bytes() for p in f.rglob("*") if p.is_file()}
             for f in folders]  # fmt: skip
    assert len(files[0]) > 15 and files[0] == files[1] == files[2]
    refused = ctl(cluster, "import", "a", "--as", "new", fails=True)
    assert "load_export" in refused.stderr


def test_what_cannot_be_a_universal_checkpoint_is_refused(start_cluster, tmp_path):
    cluster = start_cluster(1, **shared(tmp_path))
    job = fresh_job()
    first, second = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer = bt.AdamW([("a", first), ("b/c", second)], lr=0.1, job=job,
                         endpoints=cluster.endpoints, durability="process")  # fmt: skip
    first.grad = torch.ones(3)
    optimizer.step()
    universal = ("--format", "deepspeed-universal")
    refused = {
        (job, *universal): "cannot be a folder",
        (job, "--format", "zip"): "--format takes",
        (job, "--torch-optimizer"): "is for --format deepspeed-universal",
        (job, *universal, "--state"): "leave out --state",
        (job, *universal, "--dtype", "bf16"): "leave out --state and --dtype",
    }
    for arguments, why in refused.items():
        assert why in ctl(cluster, "export", *arguments, fails=True).stderr, arguments
    optimizer.close()

    job = fresh_job()
    first, second = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer = bt.AdamW([("a", first), ("b", second)], lr=0.1, job=job,
                         endpoints=cluster.endpoints, durability="process")  # fmt: skip
    first.grad = torch.ones(3)
    optimizer.step()
    said = ctl(cluster, "export", job, *universal, fails=True).stderr
    assert '"a" has taken 1 steps and "b" 0' in said
    assert in_exports(tmp_path) == []
    second.grad = first.grad
    optimizer.step()
    optimizer.close()


def test_what_does_not_fit_an_optimizer_is_refused(sharing_clusters):
    cluster, job = sharing_clusters(2), fresh_job()
    mine, optimizer = started(cluster, "Lion", job)
    step(mine, optimizer, 1)
    folder = export(cluster, job, "--format", "deepspeed-universal")["directory"]
    optimizer.close()
    _, other = started(cluster, "AdamW", fresh_job())
    with pytest.raises(BadArgument, match="has exp_avg and no exp_avg_sq: it is of another"):
        other.load_export(folder)
    with pytest.raises(BadArgument, match="has no parameter 'other'"):
        extra = torch.nn.Parameter(torch.ones(2))
        bt.Lion([("other", extra)], lr=0.1, job=fresh_job(),
                endpoints=cluster.endpoints).load_export(folder)  # fmt: skip
