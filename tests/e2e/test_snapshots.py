"""Snapshots: a moment of a run is named, comes back bit for bit on other servers and with other
trainers, and both runs go their own way."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import ballast
from e2e.cluster import Cluster, Trainers, fresh_job, run_small_job, wait_for

SIZES = (900, 33, 2000, 1, 641)


def snapshots(
    cluster: Cluster, *arguments: str, fails: bool = False
) -> subprocess.CompletedProcess:
    done = try_snapshots(cluster, *arguments)
    assert (done.returncode != 0) == fails, done.stderr + done.stdout
    return done


def try_snapshots(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess:
    command = [str(cluster.binary.parent / "ballastctl"), "snapshot", *arguments]
    command += ["--endpoint", cluster.endpoints[0]]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def ask(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess:
    """As try_snapshots, of servers of which some have just been started."""
    answers = []

    def answered() -> bool:
        answers.append(try_snapshots(cluster, *arguments))
        soon = ("waits for its peers", "reads its jobs from disk", "Connection refused")
        return not all(cluster.running()) or not any(why in answers[-1].stderr for why in soon)

    wait_for(answered, "the servers to find each other")
    return answers[-1]


def listed(cluster: Cluster) -> list[dict]:
    return json.loads(snapshots(cluster, "list", "-o", "json").stdout)["snapshots"]


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(size, generator=generator)) for size in SIZES]


class Run:
    """A job whose gradients follow from weights and round: any world of 1, 2 or 4 gives the same
    mean, since all of its trainers have the same."""

    def __init__(self, cluster: Cluster, job: str, world: int, **options) -> None:
        self.replicas = [parameters() for _ in range(world)]
        self.trainers = Trainers(
            cluster, self.replicas, job=job, durability="process", lr=0.01, **options
        )
        if "resume" in options:
            self.trainers.each(lambda opt: opt.attach())

    @property
    def round(self) -> int:
        return self.trainers.optimizers[0].round

    def step(self, rounds: int, seed: int = 0) -> None:
        for _ in range(rounds):
            generator = torch.Generator().manual_seed(1000 * seed + self.round)
            noise = [torch.randn(p.numel(), generator=generator) for p in self.replicas[0]]
            for replica in self.replicas:
                for p, n in zip(replica, noise, strict=True):
                    p.grad = n + 0.1 * p.detach()
            self.trainers.step()

    def grow(self) -> None:
        """Adds a group."""
        for replica, opt in zip(self.replicas, self.trainers.optimizers, strict=True):
            late = torch.nn.Parameter(torch.ones(700))
            replica.append(late)
            opt.add_param_group({"params": [late], "lr": 0.03})

    def state(self) -> list[torch.Tensor]:
        """Masters, moments and step counts."""
        exported = self.trainers.each(lambda opt: opt.export_state())[0]
        return [
            value
            for entry in exported["state"].values()
            for value in (entry["master"], entry["exp_avg"], entry["exp_avg_sq"], entry["step"])
        ]

    def close(self) -> None:
        self.trainers.close()


def assert_equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert len(ours) == len(theirs) > 0
    for a, b in zip(ours, theirs, strict=True):
        a, b = torch.as_tensor(a), torch.as_tensor(b)
        assert torch.equal(a.view(-1).view(torch.uint8), b.view(-1).view(torch.uint8))


@pytest.mark.parametrize(
    ("servers", "world", "device"),
    [((1, 3), (2, 1), "cpu"), ((3, 2), (1, 4), "cpu"), ((1, 3), (2, 4), "nvme")],
)
def test_what_is_restored_goes_on_as_the_run_did(start_cluster, tmp_path, servers, world, device):
    shared = {"BALLAST_STORAGE_SNAPSHOT_DIR": str(tmp_path / "snapshots")}
    before, after = (start_cluster(count, **shared) for count in servers)
    job, fork = fresh_job(), fresh_job("fork")
    run = Run(before, job, world[0], device=device)
    run.step(3)
    assert run.trainers.optimizers[-1].snapshot("third") == 3
    at_snapshot = run.state()
    run.step(3)
    went_on = run.state()
    run.step(1)

    assert [(one["name"], one["round"]) for one in listed(after)] == [("third", 4)]
    snapshots(after, "verify", job, "third")
    snapshots(after, "restore", job, "third", "--as", fork, "--world", str(world[1]))
    again = Run(after, fork, world[1], resume="must", device=device)
    assert again.round == 3
    assert_equal(again.state(), at_snapshot)
    again.step(3)
    assert_equal(again.state(), went_on)

    # They are two jobs now.
    again.step(1, seed=7)
    assert not torch.equal(again.state()[0], run.state()[0])
    run.step(1)
    for one in (again, run):
        one.close()
    snapshots(before, "delete", job, "third")
    assert listed(after) == []
    assert list((tmp_path / "snapshots").iterdir()) == []


def test_snapshots_are_taken_while_rounds_go_on_and_the_oldest_are_removed(start_cluster, tmp_path):
    cluster = start_cluster(2, BALLAST_STORAGE_SNAPSHOT_DIR=str(tmp_path / "snapshots"))
    job = fresh_job()
    run = Run(cluster, job, 2)
    run.step(1)
    states = {run.round: run.state()}
    for i in range(4):
        with_rounds = run.trainers._pool.submit(
            snapshots, cluster, "create", job, f"s{i}", "--keep", "2"
        )
        while not with_rounds.done():
            run.step(1)
            states[run.round] = run.state()
        with_rounds.result()
    kept = listed(cluster)
    assert [one["name"] for one in kept] == ["s2", "s3"]
    for one in kept:
        fork = fresh_job("fork")
        snapshots(cluster, "restore", job, one["name"], "--as", fork)
        again = Run(cluster, fork, 2, resume="must")
        assert again.round == one["round"] - 1
        assert_equal(again.state(), states[again.round])
        again.close()
    run.close()


# --- Jobs that rest


def test_the_snapshot_just_taken_is_never_one_too_many(start_cluster, tmp_path):
    cluster = start_cluster(1)
    job = fresh_job()
    run = Run(cluster, job, 1)
    run.step(1)
    run.close()
    for i in range(9):  # All are of one round, most of one second.
        snapshots(cluster, "create", job, f"s{i}", "--keep", "2")
        kept = [one["name"] for one in listed(cluster)]
        assert f"s{i}" in kept and len(kept) == min(i + 1, 2)


@pytest.mark.parametrize(("servers", "device"), [((2, 3), "cpu"), ((1, 2), "nvme")])
def test_of_a_job_that_rests_it_is_the_state_its_trainers_left(
    start_cluster, tmp_path, servers, device
):
    shared = {"BALLAST_STORAGE_SNAPSHOT_DIR": str(tmp_path / "snapshots")}
    before, after = (start_cluster(count, **shared) for count in servers)
    job, again = fresh_job(), fresh_job("again")
    run = Run(before, job, 2, device=device)
    run.step(3)
    left = run.state()
    run.close()
    snapshots(before, "create", job, "at-rest")
    before.strike(*range(servers[0]))  # Nothing of the job is in a process now.
    assert ask(before, "create", job, "after-a-restart").returncode == 0
    shown = {one["name"]: one for one in listed(after)}
    assert {name: one["round"] for name, one in shown.items()} == {
        "at-rest": 4,
        "after-a-restart": 4,
    }
    for name in shown:
        snapshots(after, "verify", job, name)
        snapshots(after, "restore", job, name, "--as", f"{again}-{name}", "--world", "2")
        restored = Run(after, f"{again}-{name}", 2, resume="must", device=device)
        assert restored.round == 3
        assert_equal(restored.state(), left)
        restored.step(2)
        restored.close()
    run = Run(before, job, 2, resume="must", device=device)
    assert_equal(run.state(), left)
    run.step(2)
    went_on = run.state()
    run.close()
    # A job that has never stepped, and one that has, under other owners.
    restored = Run(after, f"{again}-at-rest", 2, resume="must", device=device)
    assert_equal(restored.state(), went_on)
    restored.close()
    never = f"{again}-never"
    snapshots(after, "restore", job, "at-rest", "--as", never, "--world", "1")
    snapshots(after, "create", never, "unstepped")
    snapshots(before, "restore", never, "unstepped", "--as", f"{never}-stepped", "--world", "1")
    run = Run(before, f"{never}-stepped", 1, resume="must", device=device)
    assert_equal(run.state(), left)
    run.close()


def leave(cluster: Cluster, job: str) -> list[torch.Tensor]:
    """Two rounds of a job that rests then; its state."""
    run = Run(cluster, job, 1)
    run.step(2)
    left = run.state()
    run.close()
    return left


def begin_at_rest(pool: ThreadPoolExecutor, cluster: Cluster, job: str, folder: Path) -> Future:
    """Begins snapshot "one" of a resting job; its first part is there, the other server is late."""
    creating = pool.submit(ask, cluster, "create", job, "one")
    wait_for(lambda: creating.done() or list(folder.glob("*/part-0")), "the first part")
    assert not creating.done()
    return creating


def test_a_resting_job_wakes_when_its_snapshot_is_there(start_cluster, tmp_path):
    """Those who attach meanwhile wait; deleting it is refused."""
    cluster = start_cluster(2, BALLAST_STORAGE_SNAPSHOT_DIR=str(tmp_path / "snapshots"))
    job = fresh_job()
    left = leave(cluster, job)
    cluster.arm(1, "snapshot.before_part=1*sleep(3000)")
    with ThreadPoolExecutor(1) as pool:
        creating = begin_at_rest(pool, cluster, job, tmp_path / "snapshots")
        jobs = [str(cluster.binary.parent / "ballastctl"), "jobs", "delete", job]
        jobs += ["--endpoint", cluster.endpoints[0]]
        refused = subprocess.run(jobs, capture_output=True, text=True, timeout=60)
        assert refused.returncode != 0 and "is being taken" in refused.stderr
        assert "being taken" in try_snapshots(cluster, "create", job, "two").stderr
        run = Run(cluster, job, 1, resume="must")
        assert creating.done(), "it was woken while the snapshot was taken"
        assert creating.result().returncode == 0, creating.result().stderr
    assert_equal(run.state(), left)
    run.step(1)
    run.close()
    snapshots(cluster, "verify", job, "one")


@pytest.mark.parametrize(
    ("failpoint", "victim"),
    [("snapshot.after_part", 0), ("snapshot.after_part", 1), ("snapshot.before_manifest", 0)],
)
def test_a_server_that_dies_in_a_snapshot_of_a_resting_job_takes_only_that(
    start_cluster, tmp_path, failpoint, victim
):
    folder = tmp_path / "snapshots"
    cluster = start_cluster(2, BALLAST_STORAGE_SNAPSHOT_DIR=str(folder))
    job = fresh_job()
    left = leave(cluster, job)
    cluster.arm(victim, f"{failpoint}=1*kill")
    assert ask(cluster, "create", job, "one").returncode != 0
    cluster.restart(victim)
    run = Run(cluster, job, 1, resume="must")  # Whatever the other one still has open.
    assert_equal(run.state(), left)
    run.step(1)
    run.close()
    assert ask(cluster, "create", job, "two").returncode == 0
    assert [one["name"] for one in listed(cluster)] == ["two"]
    assert len(list(folder.iterdir())) == 1
    snapshots(cluster, "verify", job, "two")


def test_a_home_that_dies_in_a_snapshot_of_a_resting_job_finds_it_ready_to_wake(
    start_cluster, tmp_path
):
    """Its peer still has the job's files open for the snapshot that nobody knows any more."""
    cluster = start_cluster(2, BALLAST_STORAGE_SNAPSHOT_DIR=str(tmp_path / "snapshots"))
    job = fresh_job()
    left = leave(cluster, job)
    cluster.arm(1, "snapshot.before_part=1*sleep(2000)")
    with ThreadPoolExecutor(1) as pool:
        creating = begin_at_rest(pool, cluster, job, tmp_path / "snapshots")
        cluster.strike(0)
        assert creating.result().returncode != 0
    run = Run(cluster, job, 1, resume="must")
    assert_equal(run.state(), left)
    run.step(1)
    assert ask(cluster, "create", job, "two").returncode == 0
    run.close()
    assert [one["name"] for one in listed(cluster)] == ["two"]
    snapshots(cluster, "verify", job, "two")


def test_a_job_that_rests_before_its_first_round_has_no_snapshot(start_cluster, tmp_path):
    cluster = start_cluster(1)
    job = fresh_job()
    run = Run(cluster, job, 1, resume="auto")
    run.close()
    said = snapshots(cluster, "create", job, "one", fails=True).stderr
    assert "has not finished a round yet" in said
    assert listed(cluster) == []


# --- What is refused


def test_what_cannot_be_is_refused_by_name(start_cluster, tmp_path):
    cluster = start_cluster(1)
    job = fresh_job()
    run = Run(cluster, job, 1)
    optimizer = run.trainers.optimizers[0]
    run.step(1)
    optimizer.snapshot("one")
    with pytest.raises(ballast.NameInUse, match='has a snapshot "one" already'):
        optimizer.snapshot("one")
    for name in ("../up", ".hidden", "", "a" * 65, "a/b", "-x\n"):
        with pytest.raises(ballast.BadArgument, match="is no name of a snapshot"):
            optimizer.snapshot(name)
    refused = {
        ("create", "nobody", "x"): 'there is no job "nobody"',
        ("show", job, "two"): 'has no snapshot "two"',
        ("verify", job, "two"): 'has no snapshot "two"',
        ("delete", job, "two"): 'has no snapshot "two"',
        ("restore", job, "two", "--as", "new"): 'has no snapshot "two"',
        ("restore", job, "one", "--as", job): f'job "{job}" exists',
        ("restore", job, "one", "--as", "new", "--world", "100000"): "100000",
        ("restore", job, "one"): "restore JOB NAME --as NEW",
    }
    for arguments, why in refused.items():
        assert why in snapshots(cluster, *arguments, fails=True).stderr
    assert [one["name"] for one in listed(cluster)] == ["one"]
    run.step(1)
    run.close()


def test_a_cluster_without_a_shared_directory_says_so(start_cluster):
    cluster = start_cluster(2, BALLAST_STORAGE_SNAPSHOT_DIR="")
    run = Run(cluster, fresh_job(), 1)
    run.step(1)
    with pytest.raises(ballast.Unsupported, match="storage.snapshot_dir"):
        run.trainers.optimizers[0].snapshot("one")
    run.step(1)
    run.close()


def test_a_damaged_snapshot_is_named_and_never_becomes_a_job(start_cluster, tmp_path):
    cluster = start_cluster(1)
    job = fresh_job()
    run = Run(cluster, job, 1)
    run.step(2)
    run.trainers.optimizers[0].snapshot("one")
    (part,) = (tmp_path / "cluster-0" / "snapshots").glob("*/part-0")
    whole = part.read_bytes()
    part.write_bytes(whole[:9000] + bytes([whole[9000] ^ 1]) + whole[9001:])
    for arguments in (("verify", job, "one"), ("restore", job, "one", "--as", "new")):
        said = snapshots(cluster, *arguments, fails=True).stderr
        assert str(part) in said and "damaged" in said
    manifest = part.with_name("MANIFEST")
    manifest.write_bytes(manifest.read_bytes()[:-1] + b"x")
    assert listed(cluster) == []
    run.step(1)
    run.close()
    run_small_job(cluster)


FAILPOINTS = [
    "snapshot.before_begin",
    "snapshot.after_begin",
    "snapshot.before_part",
    "snapshot.after_part",
    "snapshot.before_manifest",
    "snapshot.after_manifest",
    "snapshot.before_remove",
    "snapshot.after_remove",
    "restore.before_state",
    "restore.after_state",
    "job.before_create",
    "job.after_create",
]


def test_every_failpoint_of_snapshots_is_killed_at(ballastd):
    names = subprocess.run([ballastd, "--list-failpoints"], capture_output=True, text=True)
    ours = {n for n in names.stdout.split() if n.startswith(("snapshot.", "restore."))}
    assert ours and ours <= set(FAILPOINTS)


@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_a_kill_at_any_point_loses_nothing(start_cluster, tmp_path, failpoint):
    """Of the home, whose word it is: what it says is there is whole, and what is not is gone."""
    folder = tmp_path / "snapshots"
    cluster = start_cluster(2, BALLAST_STORAGE_SNAPSHOT_DIR=str(folder))
    job = fresh_job()
    run = Run(cluster, job, 1)
    run.step(2)
    run.trainers.optimizers[0].snapshot("kept")
    kept = run.state()
    run.close()
    cluster.arm(0, f"{failpoint}=1*kill")
    run = Run(cluster, job, 1, resume="must")
    run.step(1)
    commands = [
        ("create", job, "new"),
        ("delete", job, "new"),
        ("restore", job, "kept", "--as", f"{job}-fork"),
    ]
    killed = 0
    for command in commands:
        done = try_snapshots(cluster, *command)
        if cluster.killed_by(0, done):
            killed += 1
            cluster.restart(0)
            wait_for(lambda: try_snapshots(cluster, "list").returncode == 0, "the home to serve")
            names = [one["name"] for one in listed(cluster)]
            assert names in (["kept"], ["kept", "new"])
            for name in names:
                snapshots(cluster, "verify", job, name)
            done = try_snapshots(cluster, *command)
        assert done.returncode == 0 or "exists" in done.stderr or "already" in done.stderr or (
            command[0] == "delete" and "has no snapshot" in done.stderr
        ), done.stderr
    assert killed == 1
    assert [one["name"] for one in listed(cluster)] == ["kept"]
    (directory,) = folder.iterdir()
    assert sorted(path.name for path in directory.iterdir()) == ["MANIFEST", "part-0", "part-1"]
    run.step(1)
    fork = Run(cluster, f"{job}-fork", 1, resume="must")
    assert_equal(fork.state(), kept)
    for one in (run, fork):
        one.close()
