"""bench/peers_bench runs with its smallest sizes, and says no where a result is wrong.

The contestants are those of the GPU kit (tests/gpu_kit/peer_*.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from serving import REPO, built_ballastd

sys.path[:0] = [str(REPO / "bench")]

import peers_bench  # noqa: E402
from gpu_kit import peer_turns  # noqa: E402

SMALLEST = ("--width 32 --layers 1 --heads 2 --vocabulary 64 --sequence 16 --batch 2 --rounds 2 "
            "--steps 1 --threads 1").split()  # fmt: skip
FALLING = [4.0, 3.9, 3.8, 3.7]
RIGHT = {"differing_bits": 0, "compared_bits": 16, "clipped": 3}


def ran(tmp_path, peers):
    environ = {**os.environ, "BALLAST_BALLASTD": str(built_ballastd())}
    done = subprocess.run(
        [REPO / "bench" / "peers_bench", "--json", "--path", tmp_path, "--peers", peers, *SMALLEST],
        env=environ, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout)
    assert found["verified"] and found["wrong"] == [], found
    assert not list(tmp_path.iterdir())
    return found


@pytest.mark.slow
@pytest.mark.bench
def test_ours_and_torch_train_alike_and_every_number_is_there(tmp_path):
    found = ran(tmp_path, "torch,ballast none,ballast process,ballast power,fsdp2")
    assert found["differing_bits"] == 0 and found["compared_bits"] > 0 and found["clipped"] > 0
    assert {f"{ours}_vs_{base}" for ours in ("none", "process", "power")
            for base in ("torch", "fsdp2")} <= set(found)  # fmt: skip
    for name, one in found["peers"].items():
        took = one["step_ms"]
        assert 0 < took["least"] <= took["median"] <= took["most"], name
        assert one["trainer_peak"] >= one["at_import"] > 0
        assert (one["servers_peak"] > 0) == name.startswith("ballast")
    power = found["peers"]["ballast power"]["split"]
    assert power["bytes_up"] == power["bytes_down"] == 2 * found["parameters"]


@pytest.mark.slow
@pytest.mark.bench
@pytest.mark.deepspeed
def test_deepspeed_trains_alike(tmp_path):
    found = ran(tmp_path, "torch,ballast power,deepspeed")
    assert found["peers"]["deepspeed"]["version"] == peers_bench.VERSION
    assert found["peers"]["deepspeed"]["split"]["adam"] == "DeepSpeedCPUAdam"
    assert "power_vs_deepspeed" in found


def judged(bits=RIGHT, missing=None, **losses):
    return peers_bench.judged({"torch": FALLING, **losses}, bits, missing or {})


def test_right_results_have_nothing_wrong():
    assert judged(ours=[4.0, 3.9, 3.8, 3.7001]) == []


@pytest.mark.parametrize(
    "losses, said",
    [
        ([4.0, 3.9, 4.0, 3.95], "does not fall"),
        ([4.0, 3.9, 3.8, 3.74], "more than 1 %"),
        ([4.0, 3.9, float("nan"), 3.7], "more than 1 %"),
        ([4.0, 3.9, 3.8], "only 3 losses"),
    ],
)
def test_losses_that_stay_or_go_elsewhere_are_wrong(losses, said):
    assert said in "; ".join(judged(ours=losses))


def test_bits_that_differ_and_peers_that_did_not_run_are_wrong():
    assert "5 bits" in judged({**RIGHT, "differing_bits": 5})[0]
    assert "no bit" in judged({**RIGHT, "compared_bits": 0})[0]
    assert "fsdp2 did not run: no" in judged(missing={"fsdp2": "no"})[0]


def test_a_peer_that_does_not_exist_is_named():
    done = subprocess.run([sys.executable, REPO / "bench" / "peers_bench.py", "--peers", "zero"],
                          capture_output=True, text=True, timeout=120)  # fmt: skip
    assert done.returncode == 2 and "'zero' is none of" in done.stderr


def test_a_contestant_that_ends_is_named_with_the_end_of_its_log(tmp_path):
    """Planted: a kind that no contestant has."""
    rig = peer_turns.Rig(peers_bench.peer_model.SMALLEST, "cpu", tmp_path)
    with peer_turns.started([peer_turns.Peer("odd", "odd")], rig) as (one,):
        one.listen(300)
        with pytest.raises(peer_turns.PeerFailed, match="KeyError: 'odd'; its log ends: .*peer_"):
            one.ask(300, "build")


def test_rounds_in_which_only_one_took_part_are_no_pair(tmp_path):
    rig = peer_turns.Rig(peers_bench.peer_model.SMALLEST, "cpu", tmp_path)
    one, base = (peer_turns.Contestant(peer_turns.Peer(n, "torch"), rig) for n in ("one", "base"))
    one.turns, base.turns = {1: 2.0, 2: 1.0}, {0: 9.0, 1: 4.0, 2: 3.0}
    assert peer_turns.ratios(one, base) == [2.0, 3.0]
