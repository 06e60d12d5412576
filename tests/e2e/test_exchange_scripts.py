"""load_export() of files that Ballast or others have written, and its refusals."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch

import ballast
import ballast.torch as bt
from e2e.ballastctl import ctl, export
from e2e.cluster import fresh_job
from e2e.exported_model import Model, add_late, assert_equal_states, open_job, states_of, train
from e2e.exports import rested, shared
from e2e.small_run import assert_equal


@pytest.mark.parametrize("dtype", ["native", "bf16", "fp32"])
@pytest.mark.parametrize("attached", [False, True])
def test_a_script_loads_what_was_exported(start_cluster, tmp_path, dtype, attached):
    cluster = start_cluster(2, BALLAST_STORAGE_SNAPSHOT_DIR=str(tmp_path))
    job = fresh_job()
    model, optimizer = open_job(cluster, job)
    train(model, optimizer, 2)
    add_late(model, optimizer)
    train(model, optimizer, 2)
    said = export(cluster, job, "--name", "out", "--state", "--dtype", dtype)
    ours, loaded = open_job(cluster, fresh_job("load"))
    if attached:
        train(ours, loaded, 1)
    add_late(ours, loaded)
    loaded.load_export(Path(said["directory"]))
    assert loaded.opt_step == 4
    assert_equal_states(loaded, optimizer)
    for (name, p), (_, q) in zip(model.named_parameters(), ours.named_parameters(), strict=True):
        assert torch.equal(p, q), name
    optimizer.close()
    loaded.close()


def test_a_script_starts_from_weights_that_somebody_else_has_written(start_cluster, tmp_path):
    """As a model hub has them: two files, an index, tied names once, frozen and foreign tensors."""
    cluster = start_cluster(2)
    theirs = Model()
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(torch.randn(p.shape))
    weights = {n: p.detach().clone() for n, p in theirs.named_parameters()}
    weights["head.weight"] = weights.pop("embed.weight")  # the other of the tied names
    weights["low"] = weights["low"].float() + 0.001  # finer than the parameter's dtype
    weights["a.buffer"] = torch.arange(3)
    names = sorted(weights)
    files = {"model-1.safetensors": names[:3], "model-2.safetensors": names[3:]}
    for file, mine in files.items():
        safetensors.torch.save_file({n: weights[n] for n in mine}, tmp_path / file)
    index = {"weight_map": {n: file for file, mine in files.items() for n in mine}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "other.safetensors").write_bytes(b"nobody reads this")

    model, optimizer = open_job(cluster, fresh_job())
    optimizer.add_param_group({"params": [model.frozen]})
    optimizer.load_export(tmp_path)
    state = optimizer.export_state()
    index = {name: i for i, name in state["names"].items()}
    assert torch.equal(state["state"][index["low"]]["master"], weights["low"])
    assert torch.equal(model.low, weights["low"].bfloat16())
    assert torch.equal(model.embed.weight, weights["head.weight"])
    assert torch.equal(model.frozen, weights["frozen"])
    assert optimizer.opt_step == 0
    train(model, optimizer, 1)
    optimizer.close()


def test_files_that_do_not_fit_change_nothing(start_cluster, tmp_path):
    cluster = start_cluster(1)
    model, optimizer = open_job(cluster, fresh_job())
    train(model, optimizer, 1)
    before = states_of(optimizer)
    weights = {n: p.detach().clone() for n, p in model.trainable(late=False)}

    def refused(why: str, path: Path = tmp_path) -> None:
        with pytest.raises(ballast.BadArgument, match=why):
            optimizer.load_export(path)
        assert optimizer.round == 1

    refused("has no .safetensors files")
    refused("is no file", tmp_path / "nothing")
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"\x00")
    refused("has 1 bytes")
    safetensors.torch.save_file({**weights, "low": weights["low"][:-1].clone()}, file)
    refused(r"'low' .* is BF16 of shape \(128, 17\)")
    safetensors.torch.save_file({**weights, "low": weights["low"].int()}, file)
    refused("'low' .* is I32")
    safetensors.torch.save_file({n: w for n, w in weights.items() if n != "scale"}, file)
    refused("no tensor 'scale'")
    safetensors.torch.save_file(weights, file)
    safetensors.torch.save_file({"scale": weights["scale"]}, tmp_path / "more.safetensors")
    refused("'scale' is in")
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"scale": "../model.safetensors"}})
    )
    refused("weight_map|file name")
    after = states_of(optimizer)
    for name, values in before.items():
        assert_equal(values, after[name])
    train(model, optimizer, 1)
    optimizer.close()


def test_an_import_tells_scripts_what_it_read(start_cluster, tmp_path):
    cluster = start_cluster(1, **shared(tmp_path))
    job = rested(cluster)
    for state in (True, False):
        name = f"state-{state}"
        bytes_out = export(cluster, job, "--name", name, *["--state"] * state)["bytes"]
        said = json.loads(ctl(cluster, "import", name, "--as", name, "-o", "json").stdout)
        assert said["state"] is state
        assert 0 < said["bytes"] < bytes_out and said["seconds"] >= 0
        listed = json.loads(ctl(cluster, "jobs", "show", name, "-o", "json").stdout)
        assert said["jobs"] == listed["jobs"] and said["jobs"][0]["disk_bytes"] > 0


def refused(target: bt.AdamW, path: object, *why: str) -> None:
    """load_export(path) is a bad argument, for all these reasons."""
    with pytest.raises(ballast.BadArgument) as error:
        target.load_export(path)
    for part in why:
        assert part in str(error.value)


def test_a_script_is_told_what_is_wrong_with_files(start_cluster, tmp_path):
    cluster = start_cluster(1)
    job = fresh_job()
    model, optimizer = open_job(cluster, job)
    folders = []
    for name in ("a", "b"):
        train(model, optimizer, 1)
        folders.append(Path(export(cluster, job, "--name", name, "--state")["directory"]))
    optimizer.close()
    _, target = open_job(cluster, fresh_job())
    refused(target, os.fsencode(folders[0]), "as bytes", "os.fsdecode")
    mixed = tmp_path / "mixed"
    shutil.copytree(folders[0], mixed)
    shutil.copy(folders[1] / "optimizer" / "state.safetensors", mixed / "optimizer")
    refused(target, mixed, "is of round '2'", "of round '3'", "export again")
    again = Path(export(cluster, job, "--name", "again", "--state")["directory"])
    shutil.copy(folders[1] / "model.safetensors", again)
    refused(target, again, "is of snapshot", "export again")
    (mixed / "optimizer" / "state.safetensors").rename(mixed / "optimizer" / "theirs.bin")
    refused(target, mixed, "optimizer has no state*.safetensors", "move it away")
    shutil.rmtree(mixed / "optimizer")
    weights = mixed / "model.safetensors"
    weights.rename(tmp_path / "kept")
    weights.symlink_to(tmp_path / "gone")
    refused(target, mixed, "what it links to is not")
    (tmp_path / "kept").replace(weights)
    # Some writers sum bytes as floating point.
    index = {"weight_map": {name: "model.safetensors" for name in ("low", "scale")}}
    index["metadata"] = {"total_size": 1234.0}
    (mixed / "model.safetensors.index.json").write_text(json.dumps(index))
    target.load_export(mixed)
    assert target.opt_step == 0
    target.close()


def test_what_a_file_says_of_its_format_is_no_name_of_a_weight(start_cluster, tmp_path):
    cluster = start_cluster(1)
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = bt.AdamW(
        [("format", parameter)], endpoints=cluster.endpoints, job=fresh_job(), world_size=1,
        rank=0, durability="process",
    )  # fmt: skip
    file = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"pt": torch.zeros(3)}, file, metadata={"format": "pt"})
    with pytest.raises(ballast.BadArgument, match="no tensor 'format'"):
        optimizer.load_export(file)
    safetensors.torch.save_file({"format": torch.zeros(3)}, file, metadata={"format": "pt"})
    optimizer.load_export(file)
    assert parameter.tolist() == [0, 0, 0]
    optimizer.close()
