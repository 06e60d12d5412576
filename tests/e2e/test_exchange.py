"""Weights and optimizer state out to safetensors files and back: the files are the ecosystem's, and
a job that comes back from them continues bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

from e2e.ballastctl import ctl, export, snapshots
from e2e.cluster import fresh_job
from e2e.exported_model import Model, add_late, open_job, states_of, tensors_of, train
from e2e.exports import shared
from e2e.small_run import Run, assert_equal


@pytest.mark.parametrize("servers", [1, 3])
def test_files_are_what_safetensors_and_dcp_read(start_cluster, tmp_path, servers):
    folder = tmp_path / "snapshots"
    cluster = start_cluster(servers, BALLAST_STORAGE_SNAPSHOT_DIR=str(folder))
    job = fresh_job()
    model, optimizer = open_job(cluster, job)
    train(model, optimizer, 2)
    add_late(model, optimizer)
    train(model, optimizer, 2)
    said = export(cluster, job, "--name", "out", "--state")
    directory = folder / "exports" / "out"
    assert said["directory"] == str(directory)
    assert (said["round"], said["tensors"], said["state"]) == (5, 6, True)
    weights = tensors_of(directory)
    state = optimizer.export_state()
    check_values(model, state, weights, tensors_of(directory / "optimizer"))
    assert set(weights) == set(state["names"].values())
    check_form(directory, weights)
    # A model that never saw Ballast loads them through torch's own checkpoint reader.
    fresh = Model()
    wanted = {n: p.detach() for n, p in fresh.named_parameters() if n in weights and p.numel()}
    dcp.load(wanted, storage_reader=HuggingFaceStorageReader(str(directory)))
    for name, value in wanted.items():
        assert torch.equal(value, weights[name])
    optimizer.close()


def check_values(model: Model, state: dict, weights: dict, moments: dict) -> None:
    """weights, moments: tensors of the files, by name. They equal the job's, bit for bit."""
    for index, name in state["names"].items():
        entry = state["state"][index]
        parameter = dict(model.named_parameters())[name]
        assert torch.equal(weights[name], parameter.detach()), name
        assert weights[name].dtype == parameter.dtype
        assert torch.equal(moments[f"exp_avg.{name}"], entry["exp_avg"])
        assert torch.equal(moments[f"exp_avg_sq.{name}"], entry["exp_avg_sq"])
        assert int(moments[f"step.{name}"]) == int(entry["step"])
        masters = f"master.{name}" in moments
        assert masters == (parameter.dtype != torch.float32)
        if masters:
            assert torch.equal(moments[f"master.{name}"], entry["master"])


def check_form(directory: Path, weights: dict) -> None:
    """Tied names are said as model hubs do it; several files have an index."""
    files = sorted(directory.glob("*.safetensors"))
    aliases = {}
    for file in files:
        with safetensors.safe_open(file, framework="pt") as opened:
            assert opened.metadata()["format"] == "pt"
            aliases |= opened.metadata()
    assert aliases["head.weight"] == "embed.weight"
    index_file = directory / "model.safetensors.index.json"
    assert index_file.exists() == (len(files) > 1)
    if len(files) > 1:
        index = json.loads(index_file.read_text())
        assert set(index["weight_map"]) == set(weights)
        assert index["metadata"]["total_size"] == sum(
            t.numel() * t.element_size() for t in weights.values()
        )


@pytest.mark.parametrize(
    ("dtype", "torch_dtype"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_weights_are_rounded_as_torch_rounds_them(clusters, dtype, torch_dtype):
    cluster = clusters(1)
    job = fresh_job()
    model, optimizer = open_job(cluster, job)
    train(model, optimizer, 2)
    said = export(cluster, job, "--name", job, "--dtype", dtype, "--consolidated")
    assert said["files"] == 1
    weights = safetensors.torch.load_file(f"{said['directory']}/model.safetensors")
    state = optimizer.export_state()
    for index, name in state["names"].items():
        assert torch.equal(weights[name], state["state"][index]["master"].to(torch_dtype))
    assert not (Path(said["directory"]) / "optimizer").exists()
    optimizer.close()


@pytest.mark.parametrize(
    ("servers", "world", "device"),
    [((1, 3), (2, 1), "cpu"), ((3, 2), (1, 4), "cpu"), ((2, 1), (2, 4), "nvme")],
)
def test_an_imported_job_continues_as_the_run_did(start_cluster, tmp_path, servers, world, device):
    before, after = (start_cluster(count, **shared(tmp_path)) for count in servers)
    job, again = fresh_job(), fresh_job("import")
    run = Run(before, job, world[0], device=device)
    run.step(3)
    run.trainers.optimizers[0].snapshot("third")
    run.step(3)
    went_on = run.state()
    export(before, job, "--snapshot", "third", "--name", "out", "--state")
    snapshots(before, "delete", job, "third")
    said = ctl(after, "import", "out", "--as", again, "--world", str(world[1]))
    assert "with optimizer state" in said.stdout
    imported = Run(after, again, world[1], resume="must", device=device)
    assert imported.round == 3
    imported.step(3)
    assert_equal(imported.state(), went_on)
    for one in (imported, run):
        one.close()


def test_names_ties_rounding_and_late_groups_survive(sharing_clusters):
    cluster = sharing_clusters(2)
    job, again = fresh_job(), fresh_job("import")
    model, optimizer = open_job(cluster, job)
    train(model, optimizer, 2)
    add_late(model, optimizer)
    train(model, optimizer, 1)
    optimizer.user_state = {"at": 17}
    train(model, optimizer, 1)
    export(cluster, job, "--name", job, "--state", "--dtype", "bf16", "--consolidated")
    ctl(cluster, "import", job, "--as", again)
    ours, imported = open_job(cluster, again, resume="must")
    add_late(ours, imported)
    imported.attach()
    assert imported.user_state == {"at": 17}
    for one in ((model, optimizer), (ours, imported)):
        train(*one, 2)
    a, b = optimizer.export_state(), imported.export_state()
    assert a["names"] == b["names"]
    for index in a["state"]:
        assert_equal(list(a["state"][index].values()), list(b["state"][index].values()))
    for (name, p), (_, q) in zip(model.named_parameters(), ours.named_parameters(), strict=True):
        assert torch.equal(p, q), name
    assert ours.head.weight is ours.embed.weight
    optimizer.close()
    imported.close()


@pytest.mark.parametrize("how", ["restore", "fork", "import"])
def test_a_late_group_that_no_round_has_stepped_keeps_its_weights(sharing_clusters, how):
    cluster = sharing_clusters(2)
    job, again = fresh_job(), fresh_job(how)
    model, optimizer = open_job(cluster, job)
    train(model, optimizer, 2)
    add_late(model, optimizer)
    optimizer.attach()
    wanted = states_of(optimizer)
    snapshots(cluster, "create", job, "grown")
    if how == "import":
        export(cluster, job, "--snapshot", "grown", "--name", job, "--state")
        ctl(cluster, "import", job, "--as", again)
    else:
        snapshots(cluster, how, job, "grown", "--as", again)
    ours, loaded = open_job(cluster, again, resume="must")
    with torch.no_grad():
        ours.late.zero_()
    add_late(ours, loaded)
    loaded.attach()
    found = states_of(loaded)
    for name, values in wanted.items():
        assert_equal(values, found[name])
    assert torch.equal(ours.late, model.late)
    optimizer.close()
    loaded.close()


def test_weights_alone_begin_with_a_fresh_optimizer(clusters):
    cluster = clusters(1)
    job, again = fresh_job(), fresh_job("import")
    run = Run(cluster, job, 1)
    run.step(3)
    export(cluster, job, "--name", job)
    assert "weights only" in ctl(cluster, "import", job, "--as", again).stdout
    imported = Run(cluster, again, 1, resume="must")
    assert imported.trainers.optimizers[0].opt_step == 0
    ours, theirs = imported.state(), run.state()
    assert_equal(ours[0::4], theirs[0::4])
    assert all(float(value.abs().sum()) == 0 for i, value in enumerate(ours) if i % 4)
    imported.step(1)
    assert imported.state()[3] == 1
    imported.close()
    run.close()
