"""A whole bf16 training step on the CPU: Ballast against today's savers of memory.

Peers, each in a process of its own: ballast none, process and power (a server of its own on this
host), deepspeed (0.19.8, ZeRO-2 with CPU offload and its CPU Adam), fsdp2 (fully_shard with
CPUOffloadPolicy) and torch (AdamW(fused=True), bf16 parameters and fp32 masters). All
train one GPT from the same first weights on the same tokens, clipped to norm 1.

step_ms: a step of a turn of --steps; the peers take turns, each round begins with another one.
X_vs_Y: in each round the time of Y's turn over that of X's turn: above 1, X is faster.
split: seconds of a step's parts; step_share: of the whole, step()'s. DeepSpeed and FSDP2 do a part
    of the offload's work in backward.
trainer_peak: the most memory of the trainer (VmHWM), imports included; at_import: the part of it
    from before the model. servers_peak: of Ballast's servers. Where there is no GPU, masters and
    moments of the other peers lie in the trainer.
Each is a median with the least and the largest of all rounds. Verified: the losses of all peers
fall and are at each step within 1 % of torch's; and Ballast's weights have the bits of torch's
AdamW fed the same clipped gradients, in a process of its own (--verified-steps).

Comes from: bench/peers_bench. Goes to: stdout, stderr (progress), gpu_kit (tests/), which has the
contestants.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from gpu_kit import peer_model  # noqa: E402
from gpu_kit.peer_turns import (  # noqa: E402
    Contestant, Peer, PeerFailed, Rig, farthest, in_turn, judge_losses, ratios, spread, started,
)  # fmt: skip

VERSION = "0.19.8"
NAMES = ("torch", "ballast none", "ballast process", "ballast power", "deepspeed", "fsdp2")
ANSWER_S = 600.0
COMPILE_S = 1800.0
EXACT = {"ATEN_CPU_CAPABILITY": "avx2"}  # the torch setting of docs/numerics.md


def say(text: str) -> None:
    print(f"peers_bench: {text}", file=sys.stderr, flush=True)


class OwnDeepSpeed:
    """DeepSpeed in a virtual environment of its own, which takes torch from this one."""

    def __init__(self, folder: Path) -> None:
        self._venv, self._extensions = folder / "venv", folder / "extensions"

    def peer(self) -> Peer:
        """Installs it if necessary. CalledProcessError when pip cannot."""
        python = self._venv / "bin" / "python"
        if not self._installed(python):
            self._install(python)
        for stale in self._extensions.glob("*/lock"):
            stale.unlink()  # Of a killed compiler: torch would wait for it forever.
        environ = {
            "DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(self._extensions),
            "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }  # fmt: skip
        return Peer("deepspeed", "deepspeed", python=str(python), environ=environ)

    @staticmethod
    def _installed(python: Path) -> bool:
        ask = "from importlib.metadata import version; print(version('deepspeed'))"
        if not python.exists():
            return False
        done = subprocess.run([python, "-c", ask], capture_output=True, text=True)
        return done.stdout.split("+")[0].strip() == VERSION

    def _install(self, python: Path) -> None:
        say(f"installing DeepSpeed {VERSION} into {self._venv}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(self._venv)], check=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = self._venv / "lib" / version / "site-packages"
        import torch

        # After its own packages: torch is large, and the same one for all peers.
        (packages / "torch.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input",
             "--no-build-isolation", f"deepspeed=={VERSION}"],
            check=True, stdout=sys.stderr, env={**os.environ, "DS_BUILD_OPS": "0"},
        )  # fmt: skip


def chosen(names: list[str], missing: dict[str, str]) -> list[Peer]:
    """The peers of these names, without DeepSpeed where it cannot be installed."""
    peers = []
    for name in names:
        kind, _, durability = name.partition(" ")
        if kind != "deepspeed":
            peers.append(Peer(name, kind, durability))
            continue
        try:
            peers.append(OwnDeepSpeed(ROOT / "build" / "peers").peer())
        except (subprocess.CalledProcessError, OSError) as error:
            missing[name] = f"cannot be installed: {error}"
    return peers


class Run:
    """One comparison. missing: by peer, why it did not run."""

    def __init__(self, options: argparse.Namespace, rig: Rig) -> None:
        self._options, self._rig = options, rig
        self.missing: dict[str, str] = {}
        self._number = 0  # of the round

    def compare(self) -> list[Contestant]:
        """Those that took all turns."""
        peers = chosen(self._options.peers, self.missing)
        with started(peers, self._rig) as ready:
            ready = [one for one in ready if self._tried(one, self._begin)]
            for number in range(self._options.rounds):
                self._number = number
                going = in_turn(ready, number)
                ran = [one for one in going if self._tried(one, self._turn)]
                ready = [one for one in ready if one in ran]
                shown = ", ".join(f"{one.peer.name} {1e3 * one.turns[number]:.0f}" for one in ready)
                say(f"round {number + 1} of {self._options.rounds}, ms a step: {shown}")
            return [one for one in ready if self._tried(one, self._end)]

    def bits(self) -> dict[str, Any]:
        """What peer_reference.py says of Ballast; {} where it was not asked for."""
        if not any(name.startswith("ballast") for name in self._options.peers):
            return {}
        rig = dataclasses.replace(self._rig, threads=1)
        with started([Peer("ballast bits", "ballast", "process", environ=EXACT)], rig) as (one,):
            one.listen(ANSWER_S)
            one.ask(ANSWER_S, "build")
            return one.ask(ANSWER_S, "bits", steps=self._options.verified_steps)

    def _tried(self, one: Contestant, call) -> bool:
        try:
            call(one)
            return True
        except PeerFailed as failed:
            self.missing[one.peer.name] = str(failed)
            say(f"{one.peer.name}: {failed}")
            return False

    def _begin(self, one: Contestant) -> None:
        one.hello = one.listen(COMPILE_S)
        one.built = one.ask(ANSWER_S, "build")
        one.ask(ANSWER_S, "run", steps=2)
        say(f"{one.peer.name} is ready")

    def _turn(self, one: Contestant) -> None:
        one.take_turn(self._number, ANSWER_S, self._options.steps)

    def _end(self, one: Contestant) -> None:
        one.split = one.ask(ANSWER_S, "split", steps=self._options.steps)
        one.memory = {**one.ask(ANSWER_S, "memory"), "servers_peak": one.servers_peak()}


def told(one: Contestant, sizes: peer_model.Sizes) -> dict[str, Any]:
    """The numbers of one peer."""
    parts = {key: value for key, value in one.split.items() if key != "losses"}
    whole = parts["forward_backward"] + parts["step"]
    took = spread(one.turns.values())
    return {
        "version": one.hello["version"],
        "step_ms": {key: round(1e3 * value, 1) for key, value in took.items()},
        "tokens_per_s": round(sizes.tokens / took["median"], 1),
        "step_share": round(parts["step"] / whole, 3),
        "split": parts,
        "trainer_peak": one.memory["host_peak"], "at_import": one.hello["host_now"],
        "servers_peak": one.memory["servers_peak"],
        "losses": [one.losses[0], one.losses[-1]],
    }  # fmt: skip


def compared(ready: list[Contestant]) -> dict[str, Any]:
    """X_vs_Y of each of Ballast's with each other peer."""
    ours = [one for one in ready if one.peer.kind == "ballast"]
    return {
        f"{one.peer.durability}_vs_{base.peer.name}": {
            key: round(value, 3) for key, value in spread(ratios(one, base)).items()
        }
        for base in ready if base.peer.kind != "ballast" for one in ours
    }  # fmt: skip


def judged(
    ready: dict[str, list[float]], bits: dict[str, Any], missing: dict[str, str]
) -> list[str]:
    """The faults; [] for none. ready: the losses of each peer."""
    wrong = [f"{name} did not run: {why}" for name, why in missing.items()]
    base = ready.get("torch") or next(iter(ready.values()), [])
    for name, losses in ready.items():
        wrong += judge_losses(name, losses, base)
    if bits and bits["differing_bits"]:
        wrong.append(f"{bits['differing_bits']} bits of Ballast's weights are not torch's")
    if bits and not bits["compared_bits"]:
        wrong.append("no bit was compared")
    return wrong


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    sizes = peer_model.Sizes(
        width=options.width, layers=options.layers, heads=options.heads,
        vocabulary=options.vocabulary, sequence=options.sequence, batch=options.batch,
    )  # fmt: skip
    rig = Rig(sizes, "cpu", folder, options.learning_rate, options.threads, options.servers)
    run, load = Run(options, rig), os.getloadavg()[0]
    ready = run.compare()
    bits = run.bits()
    wrong = judged({one.peer.name: one.losses for one in ready}, bits, run.missing)
    torch_losses = next((one.losses for one in ready if one.peer.name == "torch"), [])
    return {
        "parameters": ready[0].built["parameters"] if ready else None,
        "tokens_of_a_step": sizes.tokens, "rounds": options.rounds, "steps": options.steps,
        "load_before": load,
        "peers": {one.peer.name: told(one, sizes) for one in ready},
        **compared(ready),
        "losses_apart": max((farthest(one.losses, torch_losses) for one in ready), default=None),
        **bits,
        "wrong": wrong, "verified": not wrong, "bars": {}, "missed": [],
    }  # fmt: skip


def table(found: dict[str, Any]) -> str:
    """The result for a reader."""
    lines = [
        f"{found['parameters']:,} parameters, {found['tokens_of_a_step']} tokens a step, "
        f"{found['rounds']} rounds of {found['steps']} steps, load {found['load_before']:.1f}",
        f"{'':16}{'ms a step':>22}{'to backward':>13}{'step()':>8}{'trainer MiB':>13}"
        f"{'servers MiB':>13}",
    ]
    for name, one in found["peers"].items():
        ms = one["step_ms"]
        took = f"{ms['median']:.0f} ({ms['least']:.0f} to {ms['most']:.0f})"
        parts = [1e3 * one["split"][part] for part in ("forward_backward", "step")]
        mebibytes = f"{one['trainer_peak'] >> 20:>13}{one['servers_peak'] >> 20:>13}"
        lines.append(f"{name:16}{took:>22}{parts[0]:>13.0f}{parts[1]:>8.0f}{mebibytes}")
    for key, value in found.items():
        if "_vs_" in key:
            spread_ = f"{value['least']:.2f} to {value['most']:.2f}"
            lines.append(f"{key:26}{value['median']:.2f} ({spread_})")
    lines += [f"wrong: {text}" for text in found["wrong"]]
    lines.append(f"differing bits {found.get('differing_bits')}, verified {found['verified']}")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="peers_bench", description=__doc__.split("\n")[0])
    small = peer_model.SMALL
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peers", type=lambda text: text.split(","), default=list(NAMES),
                        help="separated by commas, of: " + ", ".join(NAMES))  # fmt: skip
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=2, help="of a turn")
    parser.add_argument("--verified-steps", type=int, default=3)
    parser.add_argument("--servers", type=int, default=1, help="of each of Ballast's jobs")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: its own choice")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--path", type=Path, default=Path(), help="of the servers' data")
    for name in ("width", "layers", "heads", "vocabulary", "sequence", "batch"):
        parser.add_argument(f"--{name}", type=int, default=getattr(small, name))
    options = parser.parse_args()
    unknown = [name for name in options.peers if name not in NAMES]
    if unknown:
        parser.error(f"--peers: {unknown[0]!r} is none of: {', '.join(NAMES)}")
    return options


def main() -> int:
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="ballast-bench-", dir=options.path) as folder:
        found = measure(options, Path(folder).resolve())
    print(json.dumps(found) if options.json else table(found))
    return 0 if found["verified"] else 1


if __name__ == "__main__":
    sys.exit(main())
