"""Weights and optimizer state out to safetensors files and back: the files are what the ecosystem
reads, and a job that comes back from them goes on bit for bit."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess

import pytest
import safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

import ballast
import ballast.torch as bt
from e2e.cluster import Cluster, fresh_job, wait_for
from e2e.test_snapshots import Run, assert_equal, snapshots


def ctl(cluster: Cluster, *arguments: str, fails: bool = False) -> subprocess.CompletedProcess:
    done = try_ctl(cluster, *arguments)
    assert (done.returncode != 0) == fails, done.stderr + done.stdout
    return done


def try_ctl(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess:
    command = [str(cluster.binary.parent / "ballastctl"), *arguments]
    command += ["--endpoint", cluster.endpoints[0]]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def export(cluster: Cluster, job: str, *arguments: str) -> dict:
    return json.loads(ctl(cluster, "export", job, *arguments, "-o", "json").stdout)


class Model(torch.nn.Module):
    """Tied and frozen parameters, a scalar, an empty tensor, and two dtypes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = torch.nn.Embedding(50, 33)
        self.head = torch.nn.Linear(33, 50, bias=True)
        self.head.weight = self.embed.weight
        self.frozen = torch.nn.Parameter(torch.randn(7), requires_grad=False)
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.empty = torch.nn.Parameter(torch.empty(0, 4))
        self.low = torch.nn.Parameter(torch.randn(129, 17).bfloat16())
        self.late = torch.nn.Parameter(torch.randn(5, 3))

    def trainable(self, late: bool) -> list[tuple[str, torch.nn.Parameter]]:
        named = [(n, p) for n, p in self.named_parameters() if n != "frozen"]
        return [(n, p) for n, p in named if (n == "late") == late]


def train(model: Model, optimizer: bt.AdamW, rounds: int) -> None:
    for _ in range(rounds):
        generator = torch.Generator().manual_seed(optimizer.round)
        for _, p in model.named_parameters():
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        optimizer.step()


def open_job(cluster: Cluster, job: str, **options) -> tuple[Model, bt.AdamW]:
    model = Model()
    groups = [{"params": [p for _, p in model.trainable(late=False)], "lr": 0.01}]
    optimizer = bt.AdamW(
        groups, endpoints=cluster.endpoints, job=job, world_size=1, rank=0, model=model,
        durability="process", tile_elements=64, extent_elements=512, **options,
    )  # fmt: skip
    return model, optimizer


def add_late(model: Model, optimizer: bt.AdamW) -> None:
    optimizer.add_param_group({"params": [p for _, p in model.trainable(late=True)], "lr": 0.1})


def tensors_of(directory: pathlib.Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        found |= safetensors.torch.load_file(file)
    return found


@pytest.mark.parametrize("servers", [1, 3])
def test_files_are_what_safetensors_and_dcp_read(start_cluster, tmp_path, servers):
    shared = tmp_path / "snapshots"
    cluster = start_cluster(servers, BALLAST_STORAGE_SNAPSHOT_DIR=str(shared))
    job = fresh_job()
    model, optimizer = open_job(cluster, job)
    train(model, optimizer, 2)
    add_late(model, optimizer)
    train(model, optimizer, 2)
    said = export(cluster, job, "--name", "out", "--state")
    state = optimizer.export_state()
    directory = shared / "exports" / "out"
    assert said["directory"] == str(directory)
    assert (said["round"], said["tensors"], said["state"]) == (5, 6, True)
    weights = tensors_of(directory)
    moments = tensors_of(directory / "optimizer")
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
    assert set(weights) == set(state["names"].values())

    # Tied names are said as model hubs do it; an index is there when there are several files.
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

    # A model that never saw Ballast loads them through torch's own checkpoint reader.
    fresh = Model()
    wanted = {n: p.detach() for n, p in fresh.named_parameters() if n in weights and p.numel()}
    dcp.load(wanted, storage_reader=HuggingFaceStorageReader(str(directory)))
    for name, value in wanted.items():
        assert torch.equal(value, weights[name])
    optimizer.close()


@pytest.mark.parametrize(
    ("dtype", "torch_dtype"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_weights_are_rounded_as_torch_rounds_them(start_cluster, dtype, torch_dtype):
    cluster = start_cluster(1)
    job = fresh_job()
    model, optimizer = open_job(cluster, job)
    train(model, optimizer, 2)
    said = export(cluster, job, "--name", "out", "--dtype", dtype, "--consolidated")
    assert said["files"] == 1
    weights = safetensors.torch.load_file(f"{said['directory']}/model.safetensors")
    state = optimizer.export_state()
    for index, name in state["names"].items():
        assert torch.equal(weights[name], state["state"][index]["master"].to(torch_dtype))
    assert not (pathlib.Path(said["directory"]) / "optimizer").exists()
    optimizer.close()


@pytest.mark.parametrize(
    ("servers", "world", "device"),
    [((1, 3), (2, 1), "cpu"), ((3, 2), (1, 4), "cpu"), ((2, 1), (2, 4), "nvme")],
)
def test_what_is_imported_goes_on_as_the_run_did(start_cluster, tmp_path, servers, world, device):
    shared = {"BALLAST_STORAGE_SNAPSHOT_DIR": str(tmp_path / "snapshots"),
              "BALLAST_STORAGE_EXPORT_DIR": str(tmp_path / "exports")}  # fmt: skip
    before, after = (start_cluster(count, **shared) for count in servers)
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


def test_names_ties_rounding_and_late_groups_survive(start_cluster, tmp_path):
    cluster = start_cluster(2, BALLAST_STORAGE_SNAPSHOT_DIR=str(tmp_path))
    job, again = fresh_job(), fresh_job("import")
    model, optimizer = open_job(cluster, job)
    train(model, optimizer, 2)
    add_late(model, optimizer)
    train(model, optimizer, 1)
    optimizer.user_state = {"at": 17}
    train(model, optimizer, 1)
    export(cluster, job, "--name", "out", "--state", "--dtype", "bf16", "--consolidated")
    ctl(cluster, "import", "out", "--as", again)
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
def test_a_late_group_that_no_round_has_stepped_keeps_its_weights(start_cluster, tmp_path, how):
    cluster = start_cluster(2, BALLAST_STORAGE_SNAPSHOT_DIR=str(tmp_path))
    job, again = fresh_job(), fresh_job(how)
    model, optimizer = open_job(cluster, job)
    train(model, optimizer, 2)
    add_late(model, optimizer)
    optimizer.attach()
    wanted = states_of(optimizer)
    snapshots(cluster, "create", job, "grown")
    if how == "import":
        export(cluster, job, "--snapshot", "grown", "--name", "out", "--state")
        ctl(cluster, "import", "out", "--as", again)
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


def test_what_is_no_file_holds_nobody_up(start_cluster, tmp_path):
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
    run.close()
    cluster.strike(0)
    wait_for(lambda: try_ctl(cluster, "snapshot", "list").returncode == 0, "the server")
    ctl(cluster, "import", "out", "--as", "new")


def test_weights_alone_begin_with_a_fresh_optimizer(start_cluster):
    cluster = start_cluster(1)
    job, again = fresh_job(), fresh_job("import")
    run = Run(cluster, job, 1)
    run.step(3)
    export(cluster, job, "--name", "out")
    assert "weights only" in ctl(cluster, "import", "out", "--as", again).stdout
    imported = Run(cluster, again, 1, resume="must")
    assert imported.trainers.optimizers[0].opt_step == 0
    ours, theirs = imported.state(), run.state()
    assert_equal(ours[0::4], theirs[0::4])
    assert all(float(value.abs().sum()) == 0 for i, value in enumerate(ours) if i % 4)
    imported.step(1)
    assert imported.state()[3] == 1
    imported.close()
    run.close()


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
        ("export",): "takes the name of a job",
        ("import", "out"): "--as",
        ("import", "nothing", "--as", "new"): "there is no export",
        ("import", "../out", "--as", "new"): "is no name",
        ("import", "out", "--as", job): f'job "{job}" exists',
        ("import", "out", "--as", "new", "--world", "4294967295"): "4294967295",
        ("import", "plain", "--as", "new"): "load_export",
    }
    for arguments, why in refused.items():
        assert why in ctl(cluster, *arguments, fails=True).stderr, arguments
    assert sorted(p.name for p in (tmp_path / "exports").iterdir()) == ["out", "plain"]
    assert snapshots(cluster, "list").stdout == "no snapshots\n"
    run.step(1)
    run.close()


def damage(directory: pathlib.Path, what: str) -> str:
    """Changes an export; what the refusal names."""
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
def test_a_bad_file_changes_nothing(start_cluster, tmp_path, what):
    cluster = start_cluster(1, BALLAST_STORAGE_EXPORT_DIR=str(tmp_path / "exports"))
    job = fresh_job()
    run = Run(cluster, job, 1)
    run.step(2)
    export(cluster, job, "--name", "out", "--state")
    shutil.copytree(tmp_path / "exports" / "out", tmp_path / "exports" / "bad")
    named = damage(tmp_path / "exports" / "bad", what)
    assert named in ctl(cluster, "import", "bad", "--as", "new", fails=True).stderr
    assert [one["name"] for one in json.loads(ctl(cluster, "jobs", "list", "-o", "json").stdout)[
        "jobs"]] == [job]  # fmt: skip
    ctl(cluster, "import", "out", "--as", "new")
    run.close()


# Only the home comes by those that have to do with the export as a whole.
KILLS = [
    (f"{kind}.{when}_{what}", server)
    for kind, what, servers in (
        ("export", "begin", (0,)),
        ("export", "mark", (0,)),
        ("export", "files", (0, 1)),
        ("export", "commit", (0,)),
        ("import", "state", (0, 1)),
    )
    for when in ("before", "after")
    for server in servers
]


def test_every_failpoint_of_exports_and_imports_is_killed_at(ballastd):
    names = subprocess.run([ballastd, "--list-failpoints"], capture_output=True, text=True)
    ours = {n for n in names.stdout.split() if n.startswith(("export.", "import."))}
    assert ours == {failpoint for failpoint, _ in KILLS}


@pytest.mark.parametrize(("failpoint", "server"), KILLS)
def test_a_kill_at_any_point_loses_nothing(start_cluster, tmp_path, failpoint, server):
    """What is there afterwards is whole, what is not is gone, and it can be asked for again."""
    folder = tmp_path / "exports"
    cluster = start_cluster(2, BALLAST_STORAGE_SNAPSHOT_DIR=str(tmp_path / "snapshots"),
                            BALLAST_STORAGE_EXPORT_DIR=str(folder))  # fmt: skip
    job = fresh_job()
    run = Run(cluster, job, 1)
    run.step(2)
    kept = run.state()
    export(cluster, job, "--name", "whole", "--state")
    run.close()
    cluster.arm(server, f"{failpoint}=1*kill")
    run = Run(cluster, job, 1, resume="must")
    killed = 0
    commands = [("export", job, "--name", "new", "--state"), ("import", "whole", "--as", "copy")]
    for command in commands:
        done = try_ctl(cluster, *command)
        if cluster.killed_by(server, done):
            killed += 1
            assert done.returncode != 0 or "after_commit" in failpoint
            cluster.restart(server)
            wait_for(lambda: try_ctl(cluster, "snapshot", "list").returncode == 0, "the home")
            for name in {p.name for p in folder.iterdir()} - {"whole"}:
                assert (folder / name / "job.ballast").exists() or server == 1
            wait_for(lambda: settled(try_ctl(cluster, *command)), "the command to be done")
    assert killed == 1
    for at, name in enumerate(("whole", "new")):
        ctl(cluster, "import", name, "--as", f"of-{name}")
        imported = Run(cluster, f"of-{name}", 1, resume="must")
        assert_equal(imported.state(), kept)
        imported.step(1 + at)
        imported.close()
    run.step(1)
    run.close()


def settled(done: subprocess.CompletedProcess) -> bool:
    return done.returncode == 0 or "is there already" in done.stderr or "exists" in done.stderr


def test_a_disk_that_fills_midway_leaves_the_job_running_and_nothing_half(start_cluster, tmp_path):
    cluster = start_cluster(1, BALLAST_STORAGE_EXPORT_DIR=str(tmp_path / "exports"))
    job = fresh_job()
    run = Run(cluster, job, 1)
    run.step(1)
    run.close()
    cluster.arm(0, "export.after_files=1*return(RESOURCE_EXHAUSTED)")
    run = Run(cluster, job, 1, resume="must")
    ctl(cluster, "export", job, "--name", "out", fails=True)
    assert list((tmp_path / "exports").iterdir()) == []
    run.step(1)
    export(cluster, job, "--name", "out")
    run.close()


def states_of(optimizer: bt.AdamW) -> dict[str, list[torch.Tensor]]:
    state = optimizer.export_state()
    return {name: list(state["state"][i].values()) for i, name in state["names"].items()}


def assert_equal_states(ours: bt.AdamW, theirs: bt.AdamW) -> None:
    a, b = states_of(ours), states_of(theirs)
    assert set(a) == set(b)
    for name in a:
        assert_equal(a[name], b[name])


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
    loaded.load_export(pathlib.Path(said["directory"]))
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

    def refused(why: str, path: pathlib.Path = tmp_path) -> None:
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
