"""The engine's printed lines: steps_per_print, wall_clock_breakdown and comms_logger."""

from __future__ import annotations

import re

import ballast.deepspeed as deepspeed
import pytest
import torch
from ballast.deepspeed import comm
from ballast.deepspeed.progress import Progress
from ballast.deepspeed.transfers import Transfers
from ballast.errors import Unsupported

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "betas": [0.9, 0.99]}},
}
REPORT = {"push_ns": 2e6, "wait_ns": 3e6, "pull_ns": 4e6, "collect_ns": 1e6, "vote_ns": 5e5,
          "step_ns": 7e6, "bytes_up": 4_000_000, "bytes_down": 2_000_000}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_shown(monkeypatch):
    monkeypatch.setattr(comm, "_shown", None)


def trained(rounds=3, monitored=None, **more):
    torch.manual_seed(0)
    engine = deepspeed.initialize(model=torch.nn.Linear(4, 2), config={**CONFIG, **more})[0]
    engine.monitor = monitored or engine.monitor
    for _ in range(2 * rounds):
        engine.backward(engine(torch.ones(4, 4)).square().mean())
        engine.step()
    return engine


def test_nothing_is_printed_by_default(fake, capsys):
    trained()
    assert capsys.readouterr().out == ""


def test_an_optimizer_without_betas_has_its_momentum(fake, capsys):
    sgd = {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}
    assert trained(steps_per_print=3, optimizer=sgd).get_mom() == [0.9]
    assert capsys.readouterr().out == "[Rank 0] step=3, skipped=0, lr=[0.1], mom=[0.9]\n"
    assert trained(optimizer={"type": "Adagrad", "params": {"lr": 0.1}}).get_mom() == [0.0]


@pytest.mark.parametrize(("every", "steps"), [(1, [1, 2, 3]), (2, [2]), ("inf", [])])
def test_steps_per_print_prints_as_deepspeed(fake, capsys, every, steps):
    trained(steps_per_print=float(every) if every == "inf" else every)
    assert capsys.readouterr().out.splitlines() == [
        f"[Rank 0] step={step}, skipped=0, lr=[0.01], mom=[(0.9, 0.99)]" for step in steps
    ]


def test_other_ranks_print_nothing(capsys):
    progress = Progress(1, True, rank=1)
    progress.step_ended(1, 0, [0.1], [0.9])
    with progress.timed("fwd"):
        pass
    progress.micro_batch_ended()
    assert progress.round_ended(REPORT)["forward"] >= 0
    Transfers((), True, rank=1).add(REPORT)
    assert capsys.readouterr().out == ""


def test_wall_clock_breakdown_prints_micro_batches_rounds_and_phases(capsys):
    now = iter(range(100))
    progress = Progress(None, True, 0, clock=lambda: next(now) * 1e-3)
    for _ in range(2):
        for part in ("fwd", "bwd", "step"):
            with progress.timed(part):
                pass
        progress.micro_batch_ended()
    times = progress.round_ended(REPORT)
    micro = ("[Rank 0] time (ms) | fwd_microstep: 1.00 | bwd_microstep: 1.00 | "
             "bwd_inner_microstep: 1.00 | bwd_allreduce_microstep: 0.00 | step_microstep: 1.00")
    assert capsys.readouterr().out.splitlines() == [
        micro, micro,
        "[Rank 0] time (ms) | fwd: 2.00 | bwd: 2.00 | bwd_inner: 2.00 | bwd_allreduce: 0.00 | "
        "step: 2.00 | push: 2.00 | wait: 3.00 | pull: 4.00 | server_collect: 1.00 | "
        "server_vote: 0.50 | server_step: 7.00",
    ]  # fmt: skip
    assert list(times)[:4] == ["forward", "backward", "backward_inner", "backward_allreduce"]
    assert times["server_step"] == pytest.approx(7.0) and progress.round_ended({})["step"] == 0


def test_the_engine_times_its_parts_and_tells_monitors(fake, capsys):
    class Monitored:
        enabled, written = True, []

        def write_events(self, events):
            self.written += events

    trained(rounds=2, monitored=Monitored(), wall_clock_breakdown=True)
    lines = capsys.readouterr().out.splitlines()
    kinds = [re.findall(r"\| (\w+): ", line)[0] for line in lines]
    assert kinds == ["fwd_microstep", "fwd_microstep", "fwd"] * 2
    assert all(float(value) > 0 for value in re.findall(r"\b(?:fwd|bwd|step): ([\d.]+)", lines[2]))
    tags = {tag: samples for tag, _, samples in Monitored.written}
    assert tags["Train/Samples/elapsed_time_ms_forward"] == 16
    assert tags["Train/Samples/elapsed_time_ms_server_step"] == 16
    assert tags["Train/Samples/lr"] == 16


def test_comms_logger_shows_rounds_as_deepspeed_does(capsys):
    transfers = Transfers((), False, 0)
    for _ in range(3):
        transfers.add(REPORT)
    transfers.add({**REPORT, "bytes_down": 0, "pull_ns": 0})  # a skipped round
    assert transfers.table().splitlines() == [
        "Comm. Op            Message Size        Count               Total Latency(ms)   "
        "Avg Latency(ms)     tput_avg (Gbps)     busbw_avg (Gbps)    ",
        "push",
        "                    3.81 MB             4                   8.00                "
        "2.00                16.00               16.00               ",
        "pull",
        "                    1.91 MB             3                   12.00               "
        "4.00                4.00                4.00                ",
    ]
    only = Transfers(["pull"], True, 0)
    only.add(REPORT)
    assert list(only.summary()) == ["pull"]
    assert capsys.readouterr().out == (
        "[Rank 0] comm op: pull | time (ms): 4.00 | msg size: 1.91 MB | algbw (Gbps): 4.00 | "
        "busbw (Gbps): 4.00\n")  # fmt: skip


def test_averages_leave_a_tenth_out_at_each_end():
    transfers = Transfers(["push"], False, 0)
    for ms in (1, *[2] * 8, 1000):
        transfers.add({**REPORT, "push_ns": ms * 1e6})
    (one,) = transfers.summary()["push"].values()
    assert one["avg_latency_ms"] == 2.0 and one["total_latency_ms"] == 1017.0


def test_log_summary_is_of_the_newest_engine_with_a_logger(fake, capsys):
    with pytest.raises(Unsupported, match="needs .comms_logger"):
        comm.log_summary()
    trained(comms_logger={"enabled": True, "prof_all": False})
    with pytest.raises(Unsupported):
        comm.log_summary()
    trained(comms_logger={"enabled": True})._transfers.add({**REPORT, "bytes_up": 5_000_000})
    engine = trained(comms_logger={"enabled": True})
    trained(comms_logger={"enabled": False})
    engine._transfers.add(REPORT)
    capsys.readouterr()
    said = comm.log_summary(return_dict=True)
    assert said["metadata"]["world_size"] == 1
    assert 4_000_000 in said["summary"]["push"] and 5_000_000 not in said["summary"]["push"]
    assert capsys.readouterr().out.startswith("Comm. Op            Message Size ")
    comm.log_summary(print_log=False)
    assert capsys.readouterr().out == ""
    with pytest.raises(Unsupported, match="servers name stragglers"):
        comm.log_summary(show_straggler=True)
