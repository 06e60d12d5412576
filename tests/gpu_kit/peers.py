"""Training compared with the peers: tokens per second and memory of Ballast, ZeRO-Offload, FSDP2,
torch.

Comes from: the runner. Goes to: peer_turns.py, which runs a process for each of them. GPT-2 medium,
then XL where time is left: bf16, sequence 1024, activations made twice, clip 1. They take turns,
and medians of the turns count. A peer that this host cannot run is named, and stops no other.
DeepSpeed comes from wheels in $BALLAST_KIT_WHEELS; its CPU Adam is compiled while others begin.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import shutil
import statistics
import sys
import time
import zipfile
from pathlib import Path

from gpu_kit import checks, peer_model
from gpu_kit.peer_turns import (
    LOSS_TOLERANCE, Contestant, Peer, PeerFailed, Rig, farthest, in_turn, judge_losses, ratios,
    spread, started,
)  # fmt: skip

ROUNDS = 5
TURN_S = 0.7  # of one contestant, at least one step
STEPS_MAX = 8
LATE_S = 10.0  # the time that the last one to begin leaves for its turns
CLOSE_S = 8.0  # kept for the last numbers and the end of the processes
XL_S = 75.0
DISK_PER_PARAMETER = 62  # of a durable job's servers: two images of 12, a log of 36
GIB = 1 << 30


def run(stage: checks.Stage) -> None:
    stage.folder.mkdir(parents=True, exist_ok=True)
    deepspeed = deepspeed_here(stage)
    ballast = {d: Peer(f"ballast {d}", "ballast", d) for d in ("process", "power", "none")}
    torchs, fsdp2 = Peer("torch", "torch"), Peer("fsdp2", "fsdp2")
    first = [torchs, ballast["process"], ballast["power"], *deepspeed, fsdp2, ballast["none"]]
    medium, xl = peer_model.MEDIUM, peer_model.XL
    if stage.cpu:  # A process of each kind is enough.
        first = [torchs, ballast["power"], *deepspeed, fsdp2,
                 Peer("ballast faulty", "ballast", "none", faulty=True)]  # fmt: skip
        medium = dataclasses.replace(peer_model.SMALLEST, checkpointing=True)
        xl = dataclasses.replace(medium, layers=2)
    Comparison(stage, "medium", medium, first).run(ROUNDS)
    if not stage.cpu and stage.left() < XL_S:
        stage.not_run("peers XL", f"{stage.left():.0f} s were left, it wants {XL_S:.0f}")
        return
    one = ballast["process" if room_for(stage.folder, parameters(xl), 1) else "none"]
    last = [torchs, one] if stage.cpu else [torchs, one, *deepspeed, fsdp2]
    Comparison(stage, "XL", xl, last).run(3)


def parameters(sizes: peer_model.Sizes) -> int:
    """Of its matrices, which are nearly all."""
    return 12 * sizes.layers * sizes.width**2 + sizes.vocabulary * sizes.width


def room_for(folder: Path, count: int, jobs: int) -> bool:
    """Whether the disk has room for the servers of this many durable jobs of `count` parameters."""
    return shutil.disk_usage(folder).free > jobs * DISK_PER_PARAMETER * count


def deepspeed_here(stage: checks.Stage) -> list[Peer]:
    """DeepSpeed as a peer, or [] where there is none; why is said then."""
    wheels = sorted(Path(os.environ.get("BALLAST_KIT_WHEELS") or "/nonexistent").glob("*.whl"))
    site = stage.folder / "site"
    unpack(wheels, site)
    if not (site / "deepspeed").is_dir() and importlib.util.find_spec("deepspeed") is None:
        stage.not_run("peers deepspeed", "no wheel of it in $BALLAST_KIT_WHEELS, nor installed")
        return []
    environ = {
        "DS_ACCELERATOR": "cpu" if stage.cpu else "cuda",
        "DS_SKIP_CUDA_CHECK": "1",
        "TORCH_EXTENSIONS_DIR": os.environ.get("TORCH_EXTENSIONS_DIR")
        or str(stage.folder / "extensions"),
        "MAX_JOBS": "4",
        "PATH": os.pathsep.join(
            [str(site / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        ),
    }  # fmt: skip
    cuda_home = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda")
    if cuda_home.is_dir():
        environ["CUDA_HOME"] = str(cuda_home)
    return [Peer("deepspeed", "deepspeed", site=str(site), environ=environ)]


def unpack(wheels: list[Path], site: Path) -> None:
    """Puts the wheels that fit this Python into a folder, as `pip --target` does."""
    here = f"cp{sys.version_info.major}{sys.version_info.minor}"
    site.mkdir(parents=True, exist_ok=True)
    for wheel in wheels:
        python = wheel.stem.split("-")[-3:][0].split(".")
        abi = wheel.stem.split("-")[-2]
        if here in python or abi == "abi3" or "py3" in python:
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(site)
    for program in site.glob("*.data/scripts/*"):
        (site / "bin").mkdir(exist_ok=True)
        shutil.copy(program, site / "bin" / program.name)
        (site / "bin" / program.name).chmod(0o755)


class Comparison:
    """One size of model, trained by all peers in turn."""

    def __init__(
        self, stage: checks.Stage, label: str, sizes: peer_model.Sizes, peers: list[Peer]
    ) -> None:
        self.stage, self.label, self.sizes = stage, label, sizes
        servers = int(os.environ.get("BALLAST_KIT_PEER_SERVERS") or (1 if stage.cpu else 2))
        self.rig = Rig(
            sizes, "cpu" if stage.cpu else "cuda", stage.folder / label, servers=servers,
            standin=os.environ["BALLAST_KIT_STANDIN"] if stage.cpu else "",
        )  # fmt: skip
        self.durable = 0
        self.peers = [p for p in peers if self._has_room(p)]
        self.steps: dict[str, int] = {}
        self.number = 0  # of the round
        self.late: Contestant | None = None  # DeepSpeed, while its compiler works

    def run(self, rounds: int) -> None:
        with started(self.peers, self.rig) as all_of_them:
            self.late = next((o for o in all_of_them if o.peer.kind == "deepspeed"), None)
            ready = self._begun([one for one in all_of_them if one is not self.late], all_of_them)
            last = rounds
            while self.number < last:
                began = time.monotonic()
                ready = [one for one in in_turn(ready, self.number) if self._tried(one, self._turn)]
                self.number += 1
                if self.stage.left() < 1.3 * (time.monotonic() - began) + CLOSE_S:
                    break
                if self._joined(ready, wait=self.number == last):
                    last = self.number + rounds
            if self.late is not None:
                self._not_run(self.late.peer, "its CPU Adam was not compiled in time")
            ready.sort(key=all_of_them.index)
            self._report([one for one in ready if self._tried(one, self._close)])
        shutil.rmtree(self.rig.folder, ignore_errors=True)

    def _begun(self, them: list[Contestant], all_of_them: list[Contestant]) -> list[Contestant]:
        """Those of `them` that have taken their first steps.

        Where FSDP2's losses are wrong, another one without pinned memory comes in its place.
        """
        ready: list[Contestant] = []
        for one in them:
            if not self._tried(one, self._begin):
                continue
            far = farthest(one.losses, ready[0].losses if ready else one.losses)
            if one.peer.kind == "fsdp2" and one.peer.pinned and not far <= LOSS_TOLERANCE:
                self._not_run(one.peer, f"its loss is {100 * far:.1f} % from torch's after a step")
                one.close()
                one = Contestant(Peer("fsdp2 unpinned", "fsdp2", pinned=False), self.rig)
                all_of_them.append(one)
                one.start()
                if not self._tried(one, self._begin):
                    continue
            ready.append(one)
        return ready

    def _joined(self, ready: list[Contestant], wait: bool) -> bool:
        """DeepSpeed takes part as soon as its compiler has ended; True: from now on."""
        late = self.late
        if late is None or not (wait or late.has_answered()):
            return False
        self.late = None
        if self._tried(late, self._begin):
            ready.append(late)
            return True
        return False

    def _has_room(self, peer: Peer) -> bool:
        if peer.durability not in ("process", "power"):
            return True
        if not room_for(self.stage.folder, parameters(self.sizes), self.durable + 1):
            self._not_run(peer, "the disk has no room for its servers' images and logs")
            return False
        self.durable += 1
        return True

    def _not_run(self, peer: Peer, why: str) -> None:
        self.stage.not_run(f"{self.label} {peer.name}", why)

    def _tried(self, one: Contestant, call) -> bool:
        try:
            call(one)
            return True
        except PeerFailed as failed:
            if one.peer.kind == "ballast":
                self.stage.check(f"{self.label} {one.peer.name}", False, str(failed))
            else:
                self._not_run(one.peer, str(failed))
            one.close()
            return False

    def _patience(self) -> float:
        return max(5.0, self.stage.left() - CLOSE_S)

    def _begin(self, one: Contestant) -> None:
        # The turns want the rest. DeepSpeed comes last, when the others have had theirs.
        late = one.peer.kind == "deepspeed"
        patience = max(5.0, self._patience() - LATE_S if late else self._patience() / 2)
        one.hello = one.listen(patience)
        before = one.ask(patience, "memory")
        began = time.monotonic()
        one.built = one.ask(patience, "build")
        one.ask(patience, "run", steps=1)
        seconds = one.ask(patience, "run", steps=1)["seconds"]
        self.steps[one.peer.name] = max(1, min(STEPS_MAX, round(TURN_S / seconds)))
        one.built["seconds_to_begin"] = time.monotonic() - began
        if "gpu_free" in before:
            after = one.ask(patience, "memory")
            one.built["gpu_taken"] = before["gpu_free"] - after["gpu_free"]

    def _turn(self, one: Contestant) -> None:
        one.take_turn(self.number, self._patience(), self.steps[one.peer.name])

    def _close(self, one: Contestant) -> None:
        one.split = one.ask(self._patience(), "split", steps=1)
        one.memory = one.ask(self._patience(), "memory")

    def _report(self, ready: list[Contestant]) -> None:
        for one in ready:
            self._report_one(one)
        ceiling = next((one for one in ready if one.peer.kind == "torch"), None)
        right = [one for one in ready if one is ceiling or self._learns(one, ceiling)]
        for base in right:
            for one in right:
                if base.peer.kind != "ballast" and one.peer.kind == "ballast":
                    self._report_ratio(one, base)

    def _learns(self, one: Contestant, ceiling: Contestant | None) -> bool:
        """Whether its losses are torch's; those of a peer are no failure of Ballast."""
        if ceiling is None:
            return True
        name = f"{self.label} {one.peer.name}: the losses"
        wrong = judge_losses(one.peer.name, one.losses, ceiling.losses)
        if one.peer.faulty:
            self.stage.check(f"{self.label} {one.peer.name}: its losses are noticed", bool(wrong),
                             "; ".join(wrong))  # fmt: skip
            return False
        if wrong and one.peer.kind != "ballast":
            self.stage.not_run(name, "so its speed counts for nothing here: " + "; ".join(wrong))
            return False
        far = 100 * farthest(one.losses, ceiling.losses)
        said = "; ".join(wrong) or f"at most {far:.3f} % from torch's at any step"
        return self.stage.check(name, not wrong, said)

    def _report_ratio(self, one: Contestant, base: Contestant) -> None:
        found = ratios(one, base)
        self.stage.measured(
            f"{self.label} {one.peer.name} / {base.peer.name}", round(statistics.median(found), 3),
            "times its speed", said=f"{min(found):.3f} to {max(found):.3f} in {len(found)} turns",
        )  # fmt: skip

    def _report_one(self, one: Contestant) -> None:
        count, took = one.built["parameters"], spread(one.turns.values())
        memory = {**one.memory, "servers_peak": one.servers_peak()}
        gpu, host = memory.get("gpu_peak", 0), memory["host_peak"] + memory["servers_peak"]
        whole = one.split["forward_backward"] + one.split["step"]
        said = (
            f"{1e3 * took['median']:.1f} ms a step ({1e3 * took['least']:.1f} to "
            f"{1e3 * took['most']:.1f}), {100 * one.split['step'] / whole:.0f} % of it in step(); "
            f"GPU {gpu / GIB:.2f} GiB, trainer {memory['host_peak'] / GIB:.2f} GiB, servers "
            f"{memory['servers_peak'] / GIB:.2f} GiB"
        )
        self.stage.measured(
            f"{self.label} {one.peer.name}", round(self.sizes.tokens / took["median"], 1),
            "tokens/s", said=said, parameters=count, steps_of_a_turn=self.steps[one.peer.name],
            turns={r: round(t, 4) for r, t in one.turns.items()}, split=one.split, memory=memory,
            gpu_taken=one.built.get("gpu_taken"), version=one.hello["version"],
            losses=[round(loss, 4) for loss in one.losses[:8]],
            seconds_to_begin=round(one.built["seconds_to_begin"], 1),
        )  # fmt: skip
        if "gpu_total" in memory and gpu:
            fits = min(memory["gpu_total"] * count / gpu, host_bytes() * count / host)
            self.stage.measured(
                f"{self.label} {one.peer.name}: largest model", round(fits / 1e9, 2), "1e9 params",
                said=f"if all memory grew as parameters do: {gpu / count:.1f} bytes of the GPU and "
                f"{host / count:.1f} of the host each",
            )  # fmt: skip


def host_bytes() -> int:
    """Of memory of this host, or of the control group where that allows less."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # no control group, or no limit in it
        found = min(found, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return found


if __name__ == "__main__":
    checks.main("peers", run)
