"""The GPU kit's stage peers, rehearsed with tiny models on the stand-in for CUDA."""

import json
import zipfile
from types import SimpleNamespace

import pytest
from gpu_kit import checks, peer_model, peers
from gpu_kit_rehearsal import rehearse, with_name

pytestmark = pytest.mark.slow


def test_the_stage_peers_measures_all_that_are_here_and_names_the_rest(tmp_path, monkeypatch):
    monkeypatch.delenv("BALLAST_KIT_WHEELS", raising=False)
    lines = rehearse(tmp_path, "-m", "gpu_kit.peers")
    for label, name in (("medium", "power"), ("XL", "process")):
        (losses,) = with_name(lines, f"{label} ballast {name}: the losses")
        assert losses["state"] == "passed", losses
        (speed,) = with_name(lines, f"{label} ballast {name} / torch")
        assert speed["value"] > 0
    (ours,) = [line for key, line in lines.items() if key == "medium ballast power"]
    assert ours["split"]["bytes_up"] == 2 * ours["parameters"]
    assert ours["memory"]["servers_peak"] > 0 and len(ours["turns"]) >= 1
    (planted,) = with_name(lines, "ballast faulty: its losses are noticed")
    assert planted["state"] == "passed" and "more than 1 %" in planted["said"]
    (absent,) = with_name(lines, "peers deepspeed")
    assert absent["state"] == "not run"


@pytest.mark.parametrize("kind, state", [("ballast", "failed"), ("fsdp2", "not run")])
def test_a_peer_whose_losses_go_astray_counts_for_nothing(
    tmp_path, monkeypatch, capsys, kind, state
):
    monkeypatch.setenv("BALLAST_KIT_STANDIN", "none")
    stage = checks.Stage("peers", True, 100, tmp_path)
    compared = peers.Comparison(stage, "small", peer_model.SMALLEST, [])
    ceiling = SimpleNamespace(losses=[4.0, 3.9, 3.8, 3.7])
    one = SimpleNamespace(peer=peers.Peer("one", kind), losses=[4.0, 5.0, 6.0, 7.0])
    assert not compared._learns(one, ceiling)
    said = json.loads(capsys.readouterr().out[len(checks.MARK) :])
    assert said["state"] == state and "does not fall" in said["said"]


def wheel(folder, name, tag, text):
    with zipfile.ZipFile(folder / f"{name}-1-{tag}.whl", "w") as packed:
        packed.writestr(f"{name}.py", text)
        packed.writestr(f"{name}-1.data/scripts/{name}", "#!/bin/sh\n")


def test_only_wheels_that_fit_this_python_are_unpacked(tmp_path):
    for tag in ("py3-none-any", "cp38-abi3-linux_x86_64", "cp31-cp31-linux_x86_64"):
        wheel(tmp_path, "m" + tag.split("-")[0], tag, f"said = {tag!r}")
    peers.unpack(sorted(tmp_path.glob("*.whl")), tmp_path / "site")
    assert {p.stem for p in (tmp_path / "site").glob("*.py")} == {"mpy3", "mcp38"}
    assert (tmp_path / "site" / "bin" / "mpy3").stat().st_mode & 0o111


@pytest.mark.parametrize("free, room", [(62_000_001, 1), (62_000_000, 0), (124_000_001, 2)])
def test_durable_peers_are_left_out_where_the_disk_has_no_room(monkeypatch, tmp_path, free, room):
    usage = type("Usage", (), {"free": free})
    monkeypatch.setattr(peers.shutil, "disk_usage", lambda folder: usage)
    assert [peers.room_for(tmp_path, 1_000_000, jobs) for jobs in (1, 2, 3)].count(True) == room
