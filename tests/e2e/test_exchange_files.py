"""Damaged, missing, mixed or hostile files of an export: a refusal that names them."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch

from e2e.ballastctl import ctl, export, snapshots, try_ctl
from e2e.cluster import Cluster, fresh_job, wait_for
from e2e.exports import in_exports, rested, shared
from e2e.small_run import Run


def test_a_non_file_blocks_no_other_request(start_cluster, tmp_path):
    cluster = start_cluster(1, BALLAST_STORAGE_EXPORT_DIR=str(tmp_path / "exports"))
    job = fresh_job()
    run = Run(cluster, job, 1)
    run.step(2)
    export(cluster, job, "--name", "out", "--state")
    for name in ("job.ballast", "model.safetensors", "optimizer/state.safetensors", "EXPORTING"):
        bad = tmp_path / "exports" / f"bad-{name.replace('/', '-')}"
        shutil.copytree(tmp_path / "exports" / "out", bad)
        (bad / name).unlink(missing_ok=True)
        os.mkfifo(bad / name)
        if name != "EXPORTING":
            refused = ctl(cluster, "import", bad.name, "--as", "new", fails=True)
            assert "is no regular file" in refused.stderr
            assert str(tmp_path) not in refused.stderr
    run.close()
    cluster.strike(0)
    wait_for(lambda: try_ctl(cluster, "snapshot", "list").returncode == 0, "the server")
    ctl(cluster, "import", "out", "--as", "new")


def test_what_cannot_be_is_refused_by_name(start_cluster, tmp_path):
    cluster = start_cluster(1, BALLAST_STORAGE_EXPORT_DIR=str(tmp_path / "exports"))
    job = fresh_job()
    run = Run(cluster, job, 1)
    run.step(2)
    export(cluster, job, "--name", "out", "--state")
    (tmp_path / "exports" / "plain").mkdir()
    safetensors.torch.save_file(
        {"w": torch.zeros(3)}, tmp_path / "exports" / "plain" / "model.safetensors"
    )
    refused = {
        ("export", "nobody"): 'there is no job "nobody"',
        ("export", job, "--name", "../up"): "is no name",
        ("export", job, "--name", "out"): "is there already",
        ("export", job, "--snapshot", "two"): 'has no snapshot "two"',
        ("export", job, "--dtype", "int8"): "native, fp32, bf16 or fp16",
        ("export",): "export takes JOB",
        ("import", "out"): "--as",
        ("import", "nothing", "--as", "new"): "there is no export",
        ("import", "../out", "--as", "new"): "is no name",
        ("import", "out", "--as", job): f'job "{job}" exists',
        ("import", "out", "--as", "new", "--world", "4294967295"): "4294967295",
        ("import", "plain", "--as", "new"): "load_export",
    }
    for arguments, why in refused.items():
        said = ctl(cluster, *arguments, fails=True).stderr
        assert why in said, arguments
        assert str(tmp_path) not in said, "a path of the server"
    assert in_exports(tmp_path) == ["out", "plain"]
    assert snapshots(cluster, "list").stdout == "no snapshots\n"
    run.step(1)
    run.close()


def damage(directory: Path, what: str) -> str:
    """Changes an export; returns the words that the refusal names."""
    state = directory / "optimizer" / "state.safetensors"
    model = directory / "model.safetensors"
    if what == "cut":
        model.write_bytes(model.read_bytes()[:-1])
        return "model.safetensors"
    if what == "header":
        model.write_bytes(b"\xff" * 8 + model.read_bytes()[8:])
        return "model.safetensors"
    if what == "job":
        job = directory / "job.ballast"
        content = bytearray(job.read_bytes())
        content[len(content) // 2] ^= 1
        job.write_bytes(content)
        return "job.ballast"
    if what == "gone":
        state.unlink()
        return "state*.safetensors"
    tensors = safetensors.torch.load_file(state)
    name = sorted(n for n in tensors if n.startswith("exp_avg."))[0]
    if what == "missing":
        del tensors[name]
    if what == "shape":
        tensors[name] = tensors[name][:-1].clone()
    if what == "dtype":
        tensors[name] = tensors[name].bfloat16()
    if what == "twice":
        safetensors.torch.save_file({name: tensors[name]}, state.with_name("state-2.safetensors"))
    if what == "step":
        name = name.replace("exp_avg.", "step.")
        tensors[name] = -tensors[name]
    safetensors.torch.save_file(tensors, state)
    return name


@pytest.mark.parametrize(
    "what",
    ["cut", "header", "job", "gone", "missing", "shape", "dtype", "twice", "step"],
)
def test_a_bad_file_changes_nothing(clusters, what):
    cluster = clusters(1)
    job, new = fresh_job(), fresh_job("import")
    run = Run(cluster, job, 1)
    run.step(2)
    out = Path(export(cluster, job, "--name", job, "--state")["directory"])
    bad = out.with_name(f"bad-{job}")
    shutil.copytree(out, bad)
    named = damage(bad, what)
    before = jobs_of(cluster)
    assert named in ctl(cluster, "import", bad.name, "--as", new, fails=True).stderr
    after = jobs_of(cluster)
    assert job in after and after <= before
    ctl(cluster, "import", out.name, "--as", new)
    run.close()


def jobs_of(cluster: Cluster) -> set[str]:
    listed = json.loads(ctl(cluster, "jobs", "list", "-o", "json").stdout)["jobs"]
    return {one["name"] for one in listed}


def test_files_of_two_exports_are_not_mixed(start_cluster, tmp_path):
    cluster = start_cluster(1, **shared(tmp_path))
    job = fresh_job()
    run = Run(cluster, job, 1)
    for name in ("a", "b"):
        run.step(1)
        export(cluster, job, "--name", name, "--state")
    export(cluster, job, "--name", "c", "--state")  # Of the round of b.
    run.close()
    mixed = tmp_path / "exports" / "mixed"
    shutil.copytree(tmp_path / "exports" / "a", mixed)
    shutil.rmtree(mixed / "optimizer")
    shutil.copytree(tmp_path / "exports" / "b" / "optimizer", mixed / "optimizer")
    refused = ctl(cluster, "import", "mixed", "--as", "new", fails=True).stderr
    assert "state.safetensors is of round" in refused and "job.ballast of round 2" in refused
    shutil.copy(tmp_path / "exports" / "c" / "model.safetensors", tmp_path / "exports" / "b")
    refused = ctl(cluster, "import", "b", "--as", "new", fails=True).stderr
    assert "model.safetensors is of snapshot" in refused and "export again" in refused


def test_a_link_to_nothing_is_named(start_cluster, tmp_path):
    cluster = start_cluster(1, **shared(tmp_path))
    job = rested(cluster)
    export(cluster, job, "--name", "out", "--state")
    for name in ("job.ballast", "model.safetensors", "optimizer/state.safetensors"):
        bad = tmp_path / "exports" / "bad"
        shutil.copytree(tmp_path / "exports" / "out", bad)
        (bad / name).unlink()
        (bad / name).symlink_to(tmp_path / "gone")
        refused = ctl(cluster, "import", "bad", "--as", "new", fails=True).stderr
        assert f"storage.export_dir/bad/{name} is there, but what it links to is not" in refused
        assert "mend the link" in refused
        shutil.rmtree(bad)


def test_a_tensor_with_the_name_of_the_metadata_is_named(start_cluster, tmp_path):
    cluster = start_cluster(1, **shared(tmp_path))
    job = rested(cluster)
    export(cluster, job, "--name", "out")
    header = json.dumps(
        {"__metadata__": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    ).encode()
    file = tmp_path / "exports" / "out" / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    refused = ctl(cluster, "import", "out", "--as", "new", fails=True).stderr
    assert "model.safetensors: __metadata__" in refused
    assert "no tensor can be called so: give it another name" in refused


def test_an_export_has_a_name_however_long_the_jobs_is(start_cluster, tmp_path):
    cluster = start_cluster(1, **shared(tmp_path))
    names = []
    for job in ("x" * 48, "x" * 49, "y" * 100 + "1", "y" * 100 + "2"):
        run = Run(cluster, job, 1)
        run.step(1)
        said = export(cluster, job)
        assert Path(said["directory"]).name == said["name"]
        assert said["job"] == job
        names.append(said["name"])
        run.close()
    assert [len(name) for name in names] == [64] * 4
    assert len({name[:48] for name in names}) == 4
