"""The quickstart itself, short: its JSON, its exit code, its picture."""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from multiprocessing.connection import Client
from pathlib import Path

import pytest
import torch

QUICKSTART = Path(__file__).resolve().parents[2] / "examples" / "quickstart" / "quickstart.py"
KEYS = """differing_bits steps servers trainers loss_first loss_last loss_torch_last bytes_up
bytes_down round_ms_p50 durability losses state_crc32 kills pauses_ms restarts""".split()


def quickstart(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(QUICKSTART), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "ATEN_CPU_CAPABILITY": "avx2", **environment},
    )


def reported(run: subprocess.CompletedProcess, folder: Path, dtype: str, steps: int) -> dict:
    """The JSON of a run without kills: no bit differs, and every promised field exists."""
    assert run.returncode == 0, run.stderr[-2000:]
    result = json.loads(run.stdout)
    assert set(KEYS) <= set(result)
    assert result["differing_bits"] == 0
    assert result["loss_last"] == result["loss_torch_last"] < result["loss_first"]
    assert result["bytes_up"] > 0 and result["bytes_down"] > 0
    assert (folder / "quickstart-loss.png").stat().st_size > 1000
    assert (result["kills"], result["pauses_ms"], result["restarts"]) == ([], [], 0)
    assert len(result["losses"]) == steps
    assert ("computes in fp32 on the CPU" in run.stderr) == (dtype != "fp32")
    return result


def test_the_quickstart_reports_zero_differing_bits_as_one_json_object(tmp_path):
    run = quickstart("--steps", "2", "--dtype", "bf16", "--json", "--out", str(tmp_path))
    reported(run, tmp_path, "bf16", 2)


@pytest.mark.parametrize("servers, trainers, dtype", [(2, 2, "fp32"), (1, 1, "bf16")])
def test_chaos_changes_neither_the_losses_nor_the_bits(tmp_path, servers, trainers, dtype):
    # The third kill is in step 9: a busy machine needs some steps after it to see it through.
    options = ["--steps", "12", "--servers", str(servers), "--trainers", str(trainers), "--dtype",
               dtype, "--json", "--out", str(tmp_path)]  # fmt: skip
    expected = reported(quickstart(*options), tmp_path, dtype, 12)
    run = quickstart(*options, "--chaos")
    assert run.returncode == 0, run.stderr[-2000:]
    result = json.loads(run.stdout)
    assert (result["differing_bits"], result["durability"]) == (0, "power")
    for key in ("losses", "state_crc32", "loss_last"):
        assert result[key] == expected[key], key
    last = trainers - 1
    assert [(k["kind"], k["number"]) for k in result["kills"]] == [
        ("server", servers - 1), ("trainer", last), ("server", 0)
    ]  # fmt: skip
    assert result["restarts"] == 3
    assert len(result["pauses_ms"]) == 3 and min(result["pauses_ms"]) > 0
    for text in (
        f"quickstart: kill -9 of trainer {last} (process ",
        f"ballast-run: trainer {last} ended by SIGKILL; starting it again in its seat",
        ": resumed at round ",
        "quickstart: kill -9 of server 0 (process ",
        "ballast: server 0 is back after",
    ):
        assert text in run.stderr, run.stderr
    assert run.stderr.count("quickstart: training continues, after a pause of ") == 3


@pytest.fixture
def shadow(monkeypatch):
    """shadow() -> a fresh torch optimizer of the referee, of two trainers in fp16."""
    monkeypatch.syspath_prepend(str(QUICKSTART.parent))
    import referee

    return lambda: referee.Shadow(argparse.Namespace(dtype="fp16", steps=4, trainers=2))


def state_of(shadow) -> torch.Tensor:
    """Masters and moments, as a trainer tells them."""
    moments = [shadow._opt.state[m] for m in shadow.masters]
    arrays = [shadow.masters, *([m[key] for m in moments] for key in ("exp_avg", "exp_avg_sq"))]
    return torch.cat([t.detach().reshape(-1) for tensors in arrays for t in tensors])


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_the_referee_skips_a_round_that_the_servers_must_skip(shadow, bad):
    calm, skipping = shadow(), shadow()
    count = calm.weights().numel()
    gradients = [torch.randn(count, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    overflown = gradients[1].clone()
    overflown[count // 2] = bad
    before = skipping.weights()
    skipping.step(1, [gradients[0], overflown])
    assert torch.equal(skipping.weights(), before)
    masters = [m.detach().reshape(-1) for m in skipping.masters]
    nothing = torch.cat([*masters, torch.zeros(2 * count)])
    assert set(skipping.differing_bits(nothing).values()) == {0}
    # The round's number is used up, its step count is not.
    for number in (2, 4):
        calm.step(number, gradients)
        skipping.step(number, gradients)
        skipping.step(number + 1, [overflown, gradients[0]])
    assert set(skipping.differing_bits(state_of(calm)).values()) == {0}


@pytest.mark.parametrize("back", [True, False])
def test_training_goes_on_with_the_step_that_ends_after_the_restart(tmp_path, back):
    sys.path.insert(0, str(QUICKSTART.parent))
    import chaos

    (tmp_path / "run").mkdir()
    place = tmp_path / "run" / "ready-1.json"
    said = []
    with subprocess.Popen(["sleep", "600"]) as victim:
        place.write_text(json.dumps({"pid": victim.pid}))
        run = chaos.Chaos([chaos.Kill("server", 1, step=5)], tmp_path, said.append)
        run.watch(begun=4, finished=3)
        assert said == []
        run.watch(begun=5, finished=4)
        assert victim.wait(60) == -signal.SIGKILL
    run.watch(begun=5, finished=4)
    assert len(said) == 1
    if back:
        place.write_text(json.dumps({"pid": victim.pid + 1}))
    run.watch(begun=6, finished=5)
    assert len(said) == 1 + back
    # The step had all it needed of the victim: the next one waits.
    place.write_text(json.dumps({"pid": victim.pid + 1}))
    run.watch(begun=6, finished=6)
    run.end()
    assert len(said) == 2 and "training continues, after a pause of" in said[1]
    (kill,) = run.done
    assert kill.restarted and kill.pause_ms > 0


def test_nothing_in_the_picture_is_cut_off_or_covered(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(QUICKSTART.parent))
    import outcome
    from matplotlib import pyplot

    phases = {"push": 6.0, "wait": 14.0, "pull": 9.0, "collect": 15.0, "vote": 0.5, "step": 9.0}
    victims = (("server", 1, 37), ("trainer", 1, 75), ("server", 0, 149))
    result = {
        "losses": [(1, 5.6), (150, 2.9)], "evals": [[0, 5.6, 5.6], [150, 2.9, 2.9]],
        "parameters": 6_400_000, "differing": {"master": 0}, "round_ms_p50": 29.0,
        "phases_ms_p50": phases,
        "kills": [{"kind": k, "number": n, "step": s, "pause_ms": 1e4} for k, n, s in victims],
    }  # fmt: skip
    outcome.plot(result, tmp_path / "picture.png")
    figure = pyplot.gcf()
    losses, times = figure.axes
    legends = [axes.get_legend().get_window_extent() for axes in figure.axes]
    loose = [t for axes in figure.axes for t in (*axes.texts, axes.title) if t.get_text()]
    assert [t.get_text() for t in losses.texts] == ["1", "2", "3"]
    for box in (*(t.get_window_extent() for t in loose), *legends):
        assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1, box
        assert figure.bbox.y0 <= box.y0 <= box.y1 <= figure.bbox.y1, box
    for text in loose:
        assert not any(text.get_window_extent().overlaps(legend) for legend in legends), text
    named = {line.get_label(): line for line in losses.lines}
    torch_s, ours = named["held out: torch.optim.AdamW(fused)"], named["held out: Ballast"]
    assert torch_s.get_linewidth() > ours.get_linewidth() + ours.get_markersize()
    assert losses.lines.index(torch_s) < losses.lines.index(ours)
    assert [bar.get_width() for bar in times.patches] == [*phases.values()]
    pyplot.close(figure)


def children_of(pid: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_everything_and_leaves_nothing(tmp_path, signum):
    temporary = tmp_path / ("long" * 30)  # longer than the path of a socket may be
    temporary.mkdir()
    command = [sys.executable, str(QUICKSTART), "--steps", "1000", "--out", str(tmp_path / "out")]
    env = {**os.environ, "TMPDIR": str(temporary)}
    inherited = signal.signal(signum, signal.SIG_DFL)  # nohup ignores some
    run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
    signal.signal(signum, inherited)
    with run:
        said = []
        for line in run.stderr:
            said.append(line)
            if "loss" in line:  # it trains
                break
        (launcher,) = children_of(run.pid)
        below = [launcher, *children_of(launcher)]
        run.send_signal(signum)
        said += run.stderr.readlines()
        assert run.wait(timeout=60) == 128 + signum, said
    assert len(below) == 1 + 2 + 2
    assert not any(map(running, below))
    assert list(temporary.glob("ballast-*")) == []
    assert list((tmp_path / "out").iterdir()) == []
    assert not any("Traceback" in line for line in said if not line.startswith("[")), said


def test_a_kill_whose_round_was_missed_comes_between_rounds(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(QUICKSTART.parent))
    import chaos

    (tmp_path / "run").mkdir()
    with subprocess.Popen(["sleep", "600"]) as victim:
        place = tmp_path / "run" / chaos.VICTIMS["server"].format(0)
        place.write_text(json.dumps({"pid": victim.pid}))
        storm = chaos.Chaos([chaos.Kill("server", 0, 9)], tmp_path, lambda _: None)
        storm.watch(9, 9)
        assert storm.done == []
        storm.watch(10, 10)
        assert victim.wait(timeout=60) == -signal.SIGKILL
    assert [(kill.number, kill.step) for kill in storm.done] == [(0, 10)]


def test_a_referee_that_is_closed_leaves_no_thread(tmp_path, monkeypatch):
    """A thread inside torch at the interpreter's end would abort the process."""
    monkeypatch.syspath_prepend(str(QUICKSTART.parent))
    from referee import Referee

    before, threads = torch.get_num_threads(), set(threading.enumerate())
    args = argparse.Namespace(trainers=2, steps=10, dtype="fp32", batch=1)
    try:
        referee = Referee(args, tmp_path)
        line = Client(referee.address)
        assert len(set(threading.enumerate()) - threads) >= 2
        line.close()
        referee.close()
    finally:
        torch.set_num_threads(before)
    assert set(threading.enumerate()) <= threads


def test_an_unwritable_out_is_refused_before_anything_runs(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for out in (file, file / "below", Path("/proc/quickstart")):
        run = quickstart("--out", str(out))
        assert run.returncode == 2
        assert f"--out {out}: cannot write there (" in run.stderr
        assert "training" not in run.stderr


def test_servers_without_enough_memory_are_a_message_and_no_traceback(tmp_path):
    run = quickstart("--out", str(tmp_path), BALLAST_STORAGE_MEMORY_BUDGET="64MiB")
    assert (run.returncode, run.stdout) == (1, "")
    said = r"\[0\] train\.py: job \S+ needs \d+ bytes at server 0 .* 67108864 are free "
    assert re.search(said + r".* Raise storage\.memory_budget or add servers", run.stderr)
    assert "quickstart: training failed with exit code 1" in run.stderr
    assert "Traceback" not in run.stderr, run.stderr


def test_bad_flags_end_with_usage_and_code_2():
    without, short = ["--chaos", "--durability", "none"], ["--chaos", "--steps", "5"]
    for bad in (["--steps", "0"], ["--dtype", "fp8"], ["--nonsense"], without, short):
        run = quickstart(*bad)
        assert run.returncode == 2
        assert run.stdout == ""
        assert "usage" in run.stderr


def test_a_wrong_flag_costs_no_build(tmp_path):
    root = QUICKSTART.parents[2]
    shutil.copytree(QUICKSTART.parent, tmp_path / "examples" / "quickstart")
    (tmp_path / "scripts").mkdir()
    shutil.copy(root / "scripts" / "quickstart.sh", tmp_path / "scripts")
    setup = tmp_path / "scripts" / "setup.sh"
    setup.write_text("#!/bin/sh\necho building; exit 1\n")
    setup.chmod(0o755)

    def run(*flags: str) -> subprocess.CompletedProcess:
        command = [str(tmp_path / "scripts" / "quickstart.sh"), *flags]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    wrong = run("--dtype", "fp8")
    assert wrong.returncode == 2
    assert "fp8" in wrong.stderr and "building" not in wrong.stderr
    assert (run("--steps", "2").returncode, run("--steps", "2").stderr) == (1, "building\n")
