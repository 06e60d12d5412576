"""Monitors: DeepSpeed's tags, files and calls; rank 0 alone; a missing package is named at once."""

from __future__ import annotations

import csv
import json
import os
import sys
import types

import pytest
import torch
from ballast.errors import BadArgument, Unsupported
from ballast.monitor import Monitor, csv_files, round_events, timer_events
from ballast.monitor.csv_files import CsvFiles

LR = "Train/Samples/lr"


def csv_config(folder, **more):
    return {"csv_monitor": {"enabled": True, "output_path": str(folder), "job_name": "job", **more}}


def rows(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


def test_csv_has_deepspeeds_names_header_and_bytes(tmp_path):
    with Monitor(csv_config(tmp_path), rank=0) as monitor:
        monitor.write_events(round_events(64, 0.1, loss_scale=1024.0))
        monitor.write_events(round_events(128, 0.05))
        monitor.write_events([("my loss", 2, 128), ("a/b c/d", torch.tensor([1.5]), 128)])
        folder = tmp_path / "job"
        monitor.flush()
        assert (folder / "Train_Samples_lr.csv").read_bytes() == (
            b"step,lr\r\n64,0.1\r\n128,0.05\r\n")
    assert sorted(os.listdir(folder)) == [
        "Train_Samples_loss_scale.csv", "Train_Samples_lr.csv", "a_b_c_d.csv", "my_loss.csv"]
    assert rows(folder / "Train_Samples_loss_scale.csv") == [
        ["step", "loss_scale"], ["64", "1024.0"]]
    assert rows(folder / "a_b_c_d.csv") == [["step", "d"], ["128", "1.5"]]
    assert rows(folder / "my_loss.csv") == [["step", "my loss"], ["128", "2"]]


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def writes(monkeypatch):
    """How many writes went to the system."""
    counted, write = [], csv_files._write
    monkeypatch.setattr(
        csv_files, "_write", lambda file, data: counted.append(data) or write(file, data))
    return counted


def test_rows_of_one_second_are_one_write_for_each_file(tmp_path, writes):
    clock = Clock()
    files = CsvFiles(str(tmp_path), "job", clock)
    tags = [f"tag{i}" for i in range(12)]
    files.write([(tag, 0.5, 0) for tag in tags])
    assert len(writes) == 24  # the first rows go at once, with their headers
    for samples in range(1, 51):
        clock.now += 0.999 / 50
        files.write([(tag, 0.5, samples) for tag in tags])
    assert len(writes) == 24
    clock.now += 0.01
    files.write([("tag0", 0.5, 51)])
    assert len(writes) == 36
    assert len(rows(tmp_path / "job" / "tag0.csv")) == 53
    files.write([("tag1", 0.5, 51)])
    files.close()
    assert len(rows(tmp_path / "job" / "tag1.csv")) == 53
    files.close()


def test_many_rows_do_not_wait(tmp_path, writes):
    files = CsvFiles(str(tmp_path), "job", Clock())
    files.write([("a", 1, 0)])
    files.write([("a", 1, i) for i in range(csv_files._ROWS_MAX - 1)])
    assert len(writes) == 2
    files.write([("a", 1, 0)])
    assert len(writes) == 3 and len(rows(tmp_path / "job" / "a.csv")) == 2 + csv_files._ROWS_MAX


def test_a_write_that_the_system_takes_in_pieces_is_whole(tmp_path):
    class Slow:
        taken = b""

        def write(self, data):
            self.taken += bytes(data[:3])
            return min(3, len(data))

    slow = Slow()
    csv_files._write(slow, b"12345678")
    assert slow.taken == b"12345678"


def test_a_fork_leaves_its_parents_rows_alone(tmp_path):
    files = CsvFiles(str(tmp_path), "job", Clock())
    files.write([("a", 1, 1)])
    files.write([("a", 2, 2)])
    child = os.fork()
    if child == 0:
        try:
            files.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert rows(tmp_path / "job" / "a.csv") == [["step", "a"], ["1", "1"]]
    files.close()
    assert rows(tmp_path / "job" / "a.csv") == [["step", "a"], ["1", "1"], ["2", "2"]]


def test_csv_of_a_job_that_is_started_again_has_one_header(tmp_path):
    for samples in (1, 2):
        Monitor(csv_config(tmp_path), rank=0).write_events([(LR, 0.5, samples)])
    assert rows(tmp_path / "job" / "Train_Samples_lr.csv") == [
        ["step", "lr"], ["1", "0.5"], ["2", "0.5"]]


def test_half_a_row_of_a_killed_job_stays_alone(tmp_path):
    Monitor(csv_config(tmp_path), rank=0).write_events([(LR, 0.5, 1)])
    path = tmp_path / "job" / "Train_Samples_lr.csv"
    path.write_bytes(path.read_bytes() + b"17")
    Monitor(csv_config(tmp_path), rank=0).write_events([(LR, 0.5, 2)])
    assert rows(path) == [["step", "lr"], ["1", "0.5"], ["17"], ["2", "0.5"]]


def test_timers_have_deepspeeds_names_and_order():
    tags = [tag for tag, _, _ in timer_events(8, {"step": 3.0, "server": 9.0, "forward": 1.0})]
    assert tags == [f"Train/Samples/elapsed_time_ms_{n}" for n in ("forward", "step", "server")]


def test_other_ranks_write_nothing_and_need_no_package(tmp_path):
    config = {**csv_config(tmp_path), "wandb": {"enabled": True}, "comet": {"enabled": True}}
    monitor = Monitor(config, rank=1)
    assert monitor.enabled
    monitor.write_events(round_events(1, 0.1))
    monitor.close()
    assert list(tmp_path.iterdir()) == []


def test_without_a_section_that_is_on_nothing_is_enabled(tmp_path):
    for config in ({}, {"csv_monitor": {"output_path": str(tmp_path)}, "tensorboard": None},
                   {"csv_monitor": {"enabled": "auto"}, "train_batch_size": "nonsense"}):
        monitor = Monitor(config, rank=0)
        assert not monitor.enabled
        monitor.write_events([(LR, 0.1, 1)])


def test_a_file_with_comments_is_read_and_auto_is_the_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "ds.json"
    path.write_text('{"csv_monitor": {"enabled": true, "job_name": "auto"},} # as DeepSpeed')
    Monitor(path, rank=0).write_events([(LR, 0.1, 1)])
    assert (tmp_path / "DeepSpeedJobName" / "Train_Samples_lr.csv").exists()


@pytest.mark.parametrize("section", ["tensorboard", "wandb", "comet"])
def test_a_missing_package_is_refused_at_the_start_and_csv_named(tmp_path, monkeypatch, section):
    for name in ("tensorboard", "wandb", "comet_ml"):
        monkeypatch.setitem(sys.modules, name, None)
    config = {section: {"enabled": True}}
    with pytest.raises(Unsupported, match=f"{section}.enabled .* or use csv_monitor"):
        Monitor(config, rank=0)


def test_nothing_stays_open_when_a_later_section_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "comet_ml", None)
    with pytest.raises(Unsupported, match="comet_ml"):
        Monitor({**csv_config(tmp_path), "comet": {"enabled": True}}, rank=0)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"csv_monitor": {"enabled": True, "output_pth": 1}}, "mean csv_monitor.output_path"),
        ({"csv_monitor": {"enabled": "yes"}}, 'csv_monitor.enabled: "yes": must be true or false'),
        ({"csv_monitor": {"enabled": True, "job_name": 5}}, "csv_monitor.job_name"),
        ({"csv_monitor": True}, "csv_monitor: true is no section"),
        ({"comet": {"enabled": True, "samples_log_interval": 0}}, "comet.samples_log_interval"),
        ({"comet": {"mode": "put"}}, "comet.mode"),
        ({"wandb": {"output_path": "x"}}, "wandb.output_path: unknown key"),
    ],
)
def test_wrong_keys_and_values_are_named(section, says):
    with pytest.raises(BadArgument) as caught:
        Monitor(section, rank=0)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "event", [(LR, 0.1), "lr", (5, 0.1, 1), ("", 0.1, 1), ("a\0", 0.1, 1), (LR, "high", 1),
              (LR, torch.ones(2), 1), (LR, 0.1, None)])
def test_what_is_no_event_is_refused_before_anything_is_written(tmp_path, event):
    monitor = Monitor(csv_config(tmp_path), rank=0)
    with pytest.raises(BadArgument):
        monitor.write_events([(LR, 0.1, 1), event])
    assert list((tmp_path / "job").iterdir()) == []


def test_a_tag_cannot_leave_the_folder(tmp_path):
    Monitor(csv_config(tmp_path), rank=0).write_events([("../../x", 1, 1), ("/etc/x", 1, 1)])
    assert sorted(os.listdir(tmp_path / "job")) == [".._.._x.csv", "_etc_x.csv"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadArgument, match="cannot be made"):
        Monitor(csv_config(tmp_path / "file"), rank=0)


class Calls:
    """A package that records the calls to it."""

    def __init__(self):
        self.said = []

    def __getattr__(self, name):
        def call(*arguments, **named):
            self.said.append((name, arguments, named))
            return self

        return call


@pytest.fixture
def package(monkeypatch):
    """package(name) -> the calls of a recording package of that name."""

    def put(name, **attributes):
        calls = Calls()
        module = types.ModuleType(name)
        for attribute, value in attributes.items():
            setattr(module, attribute, value)
        module.__getattr__ = lambda called: getattr(calls, called)
        monkeypatch.setitem(sys.modules, name, module)
        return calls

    return put


def test_wandb_gets_deepspeeds_calls(package):
    calls = package("wandb")
    with Monitor({"wandb": {"enabled": True, "team": "t", "group": "g"}}, rank=0) as monitor:
        monitor.write_events([(LR, 0.1, 64)])
    assert calls.said == [
        ("init", (), {"project": "deepspeed", "group": "g", "entity": "t"}),
        ("log", ({LR: 0.1},), {"step": 64}),
        ("finish", (), {}),
    ]


def test_tensorboard_gets_deepspeeds_calls(package, tmp_path):
    package("tensorboard")
    calls = package("torch.utils.tensorboard")
    config = {"tensorboard": {"enabled": True, "output_path": str(tmp_path), "job_name": "j"}}
    with Monitor(config, rank=0) as monitor:
        monitor.write_events([(LR, 0.1, 64)])
    assert calls.said == [
        ("SummaryWriter", (), {"log_dir": str(tmp_path / "j")}),
        ("add_scalar", (LR, 0.1, 64), {}), ("flush", (), {}), ("close", (), {}),
    ]


def test_comet_gets_a_tag_once_in_an_interval(package):
    calls = package("comet_ml", __version__="3.47.1")
    config = {"comet": {"enabled": True, "project": "p", "experiment_name": "e", "online": False}}
    with Monitor(config, rank=0) as monitor:
        for samples in (64, 128, 163, 164, 192, 264):
            monitor.write_events([(LR, 0.1, samples)])
    assert calls.said[0] == ("start", (), {
        "api_key": None, "project": "p", "workspace": None, "experiment_key": None, "mode": None,
        "online": False})
    assert calls.said[1] == ("set_name", ("e",), {})
    sent = [named["step"] for name, _, named in calls.said if name == "log_metric"]
    assert sent == [64, 164, 264]


def test_an_old_comet_is_refused(package):
    package("comet_ml", __version__="3.40.9")
    with pytest.raises(Unsupported, match="3.40.9; install 3.41.0"):
        Monitor({"comet": {"enabled": True}}, rank=0)


def test_the_module_needs_neither_torch_nor_the_extension(tmp_path):
    import subprocess

    from serving import REPO

    code = (
        "import sys, json\nfrom ballast.monitor import Monitor\n"
        "monitor = Monitor(json.loads(sys.argv[1]), 0)\n"
        "monitor.write_events([('a', 1, 2)])\n"
        "monitor.write_events([('a', 1, 4)])\n"  # the end of the process writes it
        "assert not {'torch', 'ballast._core'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", code, json.dumps(csv_config(tmp_path))]
    environ = {**os.environ, "PYTHONPATH": str(REPO / "client" / "python")}
    subprocess.run(command, env=environ, check=True, timeout=120)
    assert (tmp_path / "job" / "a.csv").read_bytes() == b"step,a\r\n2,1\r\n4,1\r\n"
