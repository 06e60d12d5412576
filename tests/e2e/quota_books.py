"""Two servers with quotas for the tenants a and b, and books of each one's use there, which follow
from files on the disks and from answers, never from the servers' counts.

Comes from: tests of quotas. Goes to: ballastd with TLS and a quota file, ballast.torch, ballastctl.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path

from e2e.cluster import Cluster, error_of, wait_for
from e2e.small_run import Run
from serving import serves

TENANTS = ("a", "b")
SERVERS = (0, 1)
# Marks, and files that a fork shares with its snapshot.
UNCOUNTED = ("TAKING", "EXPORTING", "making", "base")
ID_DIGITS = 16
NOT_FOUND = 4  # how ballastctl ends
# By how much the files of two snapshots, or two exports, of jobs of one model may differ: by names.
NAMES_BYTES = 256
# Where a server can die in each operation; the peer comes by these only:
AT_PEERS = ("snapshot.before_part", "snapshot.after_part", "export.before_files",
            "export.after_files", "restore.", "fork.", "import.", "job.", "growth.before_state",
            "growth.after_state", "record.")  # fmt: skip
POINTS = {
    "create": ("job.before_create", "job.after_create", "record.before_commit",
               "record.after_commit"),
    "extend": ("growth.before_state", "growth.after_state", "growth.before_record",
               "growth.after_record"),
    "snapshot": ("snapshot.before_begin", "snapshot.after_begin", "snapshot.before_part",
                 "snapshot.after_part", "snapshot.before_manifest", "snapshot.after_manifest"),
    "restore": ("restore.before_state", "restore.after_state", "job.before_create",
                "job.after_create", "record.before_commit", "record.after_commit"),
    "fork": ("fork.before_links", "fork.after_links", "job.after_create"),
    "export": ("export.before_begin", "export.after_begin", "export.before_mark",
               "export.after_mark", "export.before_files", "export.after_files",
               "export.before_commit", "export.after_commit"),
    "import": ("import.before_state", "import.after_state", "job.before_create",
               "record.after_commit"),
    "delete": ("job.before_remove", "job.after_remove", "record.before_commit",
               "record.after_commit"),
    "forget": ("snapshot.before_remove", "snapshot.after_remove"),
}  # fmt: skip

OPERATIONS = ("create", "snapshot", "again", "export", "imported", "remove", "forget", "extend",
              "change_limit")  # fmt: skip


class TwoTenants:
    """Two servers that share directories of snapshots and exports, and one quota file."""

    def __init__(self, binary: Path, folder: Path, certificates: Path) -> None:
        self.binary, self.folder, self.certificates = binary, folder, certificates
        self.quotas = folder / "quotas.yaml"
        self.quotas.write_text("")
        self.quotas.chmod(0o600)
        config = folder / "server.yaml"  # With one, SIGHUP reads files again.
        config.write_text(f"security: {{quotas_file: '{self.quotas}'}}\n")
        configured = folder / "ballastd"
        configured.write_text(f'#!/bin/sh\nexec "{binary}" --config "{config}" "$@"\n')
        configured.chmod(0o700)
        self.cluster = Cluster(
            configured, len(SERVERS), folder, certificates=certificates,
            BALLAST_STORAGE_EXPORT_DIR=str(folder / "exports"),
        )  # fmt: skip
        self.serve()

    def serve(self) -> None:
        """Starts ended servers, and waits until both serve."""

        def serving() -> bool:
            for server in SERVERS:
                if not self.cluster.running()[server]:
                    self.cluster.restart(server)
            try:
                return all(map(serves, self.cluster.admin_addresses))
            except OSError:
                return False

        wait_for(serving, "both servers")

    def pair(self, party: str) -> dict[str, str]:
        return {
            "tls_ca": str(self.certificates / "ca.pem"),
            "tls_cert": str(self.certificates / f"{party}.pem"),
            "tls_key": str(self.certificates / f"{party}.key"),
        }

    def ctl(self, party: str, *words: str) -> subprocess.CompletedProcess[str]:
        paths = {f"BALLAST_{name.upper()}": path for name, path in self.pair(party).items()}
        command = [self.binary.parent / "ballastctl", *words]
        return subprocess.run(
            [*command, "--endpoint", self.cluster.endpoints[0]], env={**os.environ, **paths},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def run(self, tenant: str, job: str, **options) -> Run:
        return Run(self.cluster, job, 1, **options, **self.pair(f"trainer-{tenant}"))

    def resting(self, tenant: str, job: str) -> None:
        """Makes a job that rests."""
        made = self.run(tenant, job)
        made.step(1)
        made.close()

    def use(self, party: str = "admin") -> dict[tuple[str, int], dict[str, dict[str, int | None]]]:
        """Each tenant's use of each server, as shown to the tenant."""
        said = self.ctl(party, "tenants", "-o", "json")
        assert said.returncode == 0, said.stderr
        lines = json.loads(said.stdout)["tenants"]
        return {(line["tenant"], line["server"]): line["resources"] for line in lines}

    def used(self, tenant: str, server: int, resource: str = "disk") -> int:
        line = self.use().get((tenant, server))
        return line[resource]["used"] if line else 0

    def allow(self, *servers: int, **rows: dict[str, int]) -> None:
        """Gives each tenant these limits, and waits until the servers, or both, have read them."""
        servers = servers or SERVERS
        texts = {tenant: json.dumps(row).replace('"', "") for tenant, row in rows.items()}
        text = "".join(f"  {tenant}: {row}\n" for tenant, row in texts.items())
        self.quotas.write_text(f"tenants:\n{text}")
        for server in servers:
            os.kill(self.cluster.pid(server), signal.SIGHUP)

        def read() -> bool:
            use = self.use()
            return all(use.get((tenant, server), {}).get(resource, {}).get("allowed") == limit
                       for server in servers for tenant, row in rows.items()
                       for resource, limit in row.items())  # fmt: skip

        wait_for(read, f"limits of {rows}")

    def jobs_on_disk(self, server: int) -> dict[int, int]:
        """By job, the bytes of its files."""
        found: dict[int, int] = {}
        root = self.folder / f"server-{server}" / "jobs"
        for name in os.listdir(root):
            if not name.endswith((".ordered", ".ordered.tmp")):
                job = int(name[:ID_DIGITS], 16)
                found[job] = found.get(job, 0) + bytes_below(root / name)
        return found

    def saved_on_disk(self, tenant: str) -> int:
        """Bytes of the tenant's snapshots and exports."""
        return sum(bytes_below(self.folder / kind / f"@{tenant}")
                   for kind in ("snapshots", "exports"))  # fmt: skip


def bytes_below(folder: Path) -> int:
    """Of the files that count. A file removed meanwhile counts as absent."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            if not name.startswith(UNCOUNTED):
                try:
                    total += os.stat(os.path.join(place, name)).st_size
                except FileNotFoundError:
                    continue
    return total


@dataclass
class Things:
    """A tenant's possessions."""

    jobs: set[str] = field(default_factory=set)
    snapshots: set[tuple[str, str]] = field(default_factory=set)
    exports: set[str] = field(default_factory=set)


@dataclass
class Done:
    """How an operation ended."""

    why_not: str = ""  # empty: it was done
    killed: bool = False  # a server, meanwhile

    @property
    def over_quota(self) -> bool:
        return over_quota(self.why_not)


def over_quota(why_not: str) -> bool:
    return "bytes of disk that it may use at server" in why_not


class Books:
    """Operations at random, with kills in the middle of them."""

    def __init__(self, servers: TwoTenants, seed: int) -> None:
        self.servers, self.random = servers, random.Random(seed)
        self.things = {tenant: Things() for tenant in TENANTS}
        self.groups: dict[str, int] = {}  # added ones, of jobs, snapshots and exports
        self.owner: dict[int, str] = {}  # of jobs on disk, by their ids
        self.costs: dict[str, int] = {}  # by likeness, at the server with the largest share
        self.limits = dict.fromkeys(TENANTS, 1 << 40)
        self.number = self.made = self.refused = self.kills = 0
        self.live: Run | None = None  # of tenant a; it grows
        self.armed = "nothing"
        self.pool = ThreadPoolExecutor(1)

    # --- The present contents

    def settle(self, tenant: str) -> None:
        """Until counts and files agree. New files are of `tenant`, which has asked for the last."""
        differs: list[str] = []

        def agrees() -> bool:
            differs[:] = self.differences(tenant)
            return not differs

        try:
            wait_for(agrees, "the counts of what is on disk", every_s=0.1)
        except AssertionError as error:
            raise AssertionError("\n".join(differs)) from error

    def differences(self, tenant: str) -> list[str]:
        found, use = [], self.servers.use()
        on_disk = [self.servers.jobs_on_disk(server) for server in SERVERS]
        for job in set().union(*on_disk) - self.owner.keys():
            self.owner[job] = tenant
        if on_disk[0].keys() != on_disk[1].keys():
            found.append(f"jobs at the home {on_disk[0]}, at the other {on_disk[1]}")
        for name in TENANTS:
            for server in SERVERS:
                mine = {job: size for job, size in on_disk[server].items()
                        if self.owner[job] == name}  # fmt: skip
                saved = self.servers.saved_on_disk(name) if server == 0 else 0
                wanted = {"jobs": len(mine), "disk": sum(mine.values()) + saved,
                          "waiting_attaches": 0}  # fmt: skip
                line = use.get((name, server), {})
                counted = {key: line.get(key, {"used": 0})["used"] for key in wanted}
                if counted != wanted:
                    found.append(f"{name} at {server}: counted {counted}, on disk {wanted}")
        return found

    def listed(self, tenant: str) -> Things:
        def entries(*words: str) -> list[dict]:
            said = self.servers.ctl(f"operator-{tenant}", *words, "list", "-o", "json")
            assert said.returncode == 0, said.stderr
            return json.loads(said.stdout)[words[-1] if words[-1] == "jobs" else "snapshots"]

        exports = self.servers.folder / "exports" / f"@{tenant}"
        last = ("job.ballast", "latest_universal")
        whole = [path.parent.name for file in last for path in exports.glob(f"*/{file}")]
        return Things(
            {job["name"] for job in entries("jobs")},
            {(one["job"], one["name"]) for one in entries("snapshot")},
            {name for name in whole if not name.startswith(".")},
        )

    def use_of(self, tenant: str) -> list[tuple[int, int]]:
        """Jobs and bytes of disk at each server, as they are counted."""
        use = self.servers.use()
        lines = [use.get((tenant, server), {}) for server in SERVERS]
        return [tuple(line.get(key, {"used": 0})["used"] for key in ("jobs", "disk"))
                for line in lines]  # fmt: skip

    # --- One operation

    def carry_out(self, kind: str, call: Callable[[], str], how: str) -> Done:
        """how: "", or the trigger that kills a server: a "point" of the operation, or a
        "moment"."""
        cluster = self.servers.cluster
        if how == "point":
            self.arm(kind)
        ending = self.pool.submit(call)
        if how == "moment":
            wait([ending], self.random.uniform(0, 0.1))
            cluster.kill(server := self.random.choice(SERVERS), signal.SIGKILL)
            cluster.restart(server)
        done = Done(killed=how == "moment")
        while not self.ended(ending, done):
            for server in SERVERS:
                if not cluster.running()[server]:
                    done.killed = True
                    cluster.restart(server)
        done.why_not = ending.result()
        self.kills += done.killed
        self.servers.serve()
        return done

    def arm(self, kind: str) -> None:
        point = self.random.choice(POINTS[kind])
        server = self.random.choice(SERVERS if point.startswith(AT_PEERS) else (0,))
        skip = self.random.choice(("", "1*off->")) if point.startswith("record.") else ""
        self.armed = f"server {server}: {point}={skip}1*kill"
        self.servers.cluster.arm(server, f"{point}={skip}1*kill")
        self.servers.serve()  # Records are written at a start, too.

    def ended(self, ending: Future[str], done: Done) -> bool:
        """Waits for the end of the operation, or of a server: which of them it was."""
        running = self.servers.cluster.running
        wait_for(lambda: ending.done() or not all(running()), "the end of an operation")
        if not ending.done():
            return False
        # A caller may hear of a server's end before it is seen here.
        heard = ending.result() != "" and not over_quota(ending.result()) and not done.killed
        if heard:
            wait_for(lambda: not all(running()), f"a kill, for {ending.result()}")
        return all(running())

    def ask(
        self, kind: str, tenant: str, call: Callable[[], str], how: str, like: str = ""
    ) -> Done:
        """Carries it out, and compares the outcome on the disks with the answer.

        like: a key shared by operations of the same cost; empty: none has the same.
        """
        other = TENANTS[tenant == "a"]
        before, theirs = self.use_of(tenant), self.use_of(other)
        done = self.carry_out(kind, call, how)
        self.settle(tenant)
        assert self.use_of(other) == theirs, "another tenant's"
        after = self.use_of(tenant)
        took = max(now[1] - then[1] for now, then in zip(after, before, strict=True))
        where = f"{kind} of {tenant}, {self.armed}: {done}, {before} -> {after}"
        if done.over_quota:
            assert after == before or done.killed, where
            most = max(then[1] for then in before) + self.costs.get(like, 1 << 40) + NAMES_BYTES
            assert most > self.limits[tenant], where
            self.refused += 1
        elif not done.why_not:
            assert took <= 0 or all(now[1] <= max(self.limits[tenant], then[1])
                                    for now, then in zip(after, before, strict=True)), where
            self.costs[like] = max(self.costs.get(like, 0), took) if like else 1 << 40
            self.made += 1
        return done

    def learn(self, tenant: str, kind: str, key: object, done: Done, gone: bool = False) -> bool:
        """Compares the lists with the books; returns whether `key` is listed."""
        known, found = self.things[tenant], self.listed(tenant)
        with_it, without = (
            replace(known, **{kind: change(getattr(known, kind), {key})})
            for change in (set.union, set.difference)
        )
        wanted = [without if gone else with_it, with_it if gone else without]
        if not done.why_not:
            wanted = wanted[:1]
        elif done.over_quota and not done.killed:
            wanted = wanted[1:]
        assert found in wanted, f"{done}, {self.armed}: {found}, not {wanted}"
        self.things[tenant] = found
        return key in getattr(found, kind)

    def new(self, stem: str) -> str:
        self.number += 1
        return f"{stem}{self.number:03}"

    def command(self, tenant: str, *words: str) -> Callable[[], str]:
        def call() -> str:
            said = self.servers.ctl(f"operator-{tenant}", *words)
            return said.stderr or "no words" if said.returncode != 0 else ""

        return call

    # --- Operations

    def step(self, how: str) -> None:
        """An operation, mostly one that needs the results of others."""
        often = ("snapshot", "again", "again", "remove", "change_limit")
        operation = self.random.choice((*OPERATIONS, *often))
        self.do(operation, self.random.choice(TENANTS), how)

    def do(self, operation: str, tenant: str, how: str) -> None:
        """One of OPERATIONS, or its precondition; how: as in carry_out."""
        self.armed = how
        getattr(self, operation)(tenant, how)

    def create(self, tenant: str, how: str) -> None:
        job = self.new("j")

        def call() -> str:
            return str(error_of(lambda: self.servers.resting(tenant, job)) or "")

        done = self.ask("create", tenant, call, how, "job")
        self.groups[job] = 0
        self.learn(tenant, "jobs", job, done)

    def extend(self, _: str, how: str) -> None:
        """The job that runs, which begins with the first one; it rests when it was refused."""
        if self.live is None:
            job = self.new("l")
            self.live_job, self.groups[job] = job, 0

            def begin() -> None:
                self.live = self.servers.run("a", job)
                self.live.step(1)

            done = self.ask("create", "a", lambda: str(error_of(begin) or ""), how, "job")
            if not self.learn("a", "jobs", job, done) or done.why_not:
                self.live = None
            return
        live = self.live

        def grow() -> None:
            live.grow()
            live.step(1)

        done = self.ask("extend", "a", lambda: str(error_of(grow) or ""), how)
        self.groups[self.live_job] += 1
        if done.why_not:
            self.groups[self.live_job] = -1  # of unknown size
            live.close()
            self.live = None
        self.learn("a", "jobs", self.live_job, done)

    def snapshot(self, tenant: str, how: str) -> None:
        if not self.things[tenant].jobs:
            return self.create(tenant, how)
        job, name = self.random.choice(sorted(self.things[tenant].jobs)), self.new("s")
        self.groups[name] = self.groups[job]
        call = self.command(tenant, "snapshot", "create", job, name)
        done = self.ask("snapshot", tenant, call, how, self.like("snapshot", job))
        self.learn(tenant, "snapshots", (job, name), done)

    def again(self, tenant: str, how: str) -> None:
        if not self.things[tenant].snapshots:
            return self.snapshot(tenant, how)
        (job, name), made = self.random.choice(sorted(self.things[tenant].snapshots)), self.new("r")
        kind = self.random.choice(["restore", "fork"])
        self.groups[made] = self.groups[name]
        call = self.command(tenant, "snapshot", kind, job, name, "--as", made)
        done = self.ask(kind, tenant, call, how, self.like("job", name))
        self.learn(tenant, "jobs", made, done)

    def export(self, tenant: str, how: str) -> None:
        if not self.things[tenant].snapshots:
            return self.snapshot(tenant, how)
        (job, name), made = self.random.choice(sorted(self.things[tenant].snapshots)), self.new("e")
        jobs = sorted(self.things[tenant].jobs)  # The snapshot's may be gone.
        form = self.random.choice(["weights", "state", "universal"] + ["present"] * bool(jobs))
        words = {"weights": ("--snapshot", name), "state": ("--snapshot", name, "--state"),
                 "universal": ("--snapshot", name, "--format", "deepspeed-universal"),
                 "present": ("--state",)}[form]  # fmt: skip
        if form == "present":
            job = self.random.choice(jobs)
        self.groups[made] = self.groups[name] if form == "weights" else -1
        call = self.command(tenant, "export", job, "--name", made, *words)
        like = "" if form == "present" else self.like(form, name)  # That takes a snapshot, too.
        self.learn(tenant, "exports", made, self.ask("export", tenant, call, how, like))

    def like(self, kind: str, source: str) -> str:
        groups = self.groups[source]
        return f"{kind} of {groups} more groups" if groups > 0 else kind if groups == 0 else ""

    def imported(self, tenant: str, how: str) -> None:
        sources = [name for name in sorted(self.things[tenant].exports) if self.groups[name] >= 0]
        if not sources:
            return self.export(tenant, how)
        source, made = self.random.choice(sources), self.new("i")
        self.groups[made] = self.groups[source]
        call = self.command(tenant, "import", source, "--as", made)
        done = self.ask("import", tenant, call, how, self.like("job", source))
        self.learn(tenant, "jobs", made, done)

    def remove(self, tenant: str, how: str) -> None:
        jobs = sorted(self.things[tenant].jobs)
        if self.live is not None:
            jobs = [job for job in jobs if job != self.live_job]
        if not jobs:
            return self.create(tenant, how)
        job = self.random.choice(jobs)

        def call() -> str:
            """An interrupted deletion has to be requested again."""
            def gone() -> bool:
                said = self.servers.ctl(f"operator-{tenant}", "jobs", "delete", job, "--force")
                return said.returncode in (0, NOT_FOUND)

            wait_for(gone, f"the end of job {job}")
            return ""

        self.learn(tenant, "jobs", job, self.ask("delete", tenant, call, how), gone=True)

    def forget(self, tenant: str, how: str) -> None:
        if not self.things[tenant].snapshots:
            return self.snapshot(tenant, how)
        job, name = self.random.choice(sorted(self.things[tenant].snapshots))
        call = self.command(tenant, "snapshot", "delete", job, name)
        done = self.ask("forget", tenant, call, how)
        self.learn(tenant, "snapshots", (job, name), done, gone=True)

    def change_limit(self, tenant: str, _: str) -> None:
        """Also below the present use."""
        used = max(disk for _, disk in self.use_of(tenant))
        more = self.random.randrange(-10_000, 2 * self.costs.get("job", 100_000))
        self.limits[tenant] = max(1, used + more)
        self.servers.allow(**{name: {"disk": limit} for name, limit in self.limits.items()})

    def end(self) -> None:
        """Removes everything but exports, and finds nothing else."""
        if self.live is not None:
            self.live.close()
        for tenant in TENANTS:
            for job, name in self.things[tenant].snapshots:
                assert not self.command(tenant, "snapshot", "delete", job, name)()
            for job in self.things[tenant].jobs:
                assert not self.command(tenant, "jobs", "delete", job, "--force")()
            self.settle(tenant)
            assert self.use_of(tenant) == [(0, self.servers.saved_on_disk(tenant)), (0, 0)]
