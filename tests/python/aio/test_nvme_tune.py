"""ballast-nvme-tune: ds_nvme_tune's flags reach ballastctl, and its output has their form."""

from __future__ import annotations

import json
import re
import sys

import pytest

from ballast import nvme_tune
from ballast.launcher import servers

SAMPLES = [
    {"block_size": 1 << 20, "queue_depth": 8, "read_mb_s": 3000.0, "write_mb_s": 2000.0,
     "mixed_mb_s": 2500.0},
    {"block_size": 1 << 23, "queue_depth": 4, "read_mb_s": 2900.0, "write_mb_s": 2100.0,
     "mixed_mb_s": 2400.0},
]  # fmt: skip


def aio(depth: int) -> dict:
    return {
        "block_size": 1 << 20, "queue_depth": depth, "intra_op_parallelism": 1,
        "single_submit": False, "overlap_events": True,
    }  # fmt: skip


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A ballastctl that writes its words to a file and prints two disks, the second one slower."""
    slow = [{**sample, "queue_depth": 2, "mixed_mb_s": 100.0} for sample in SAMPLES]
    disks = [
        {"path": "/a", "aio": aio(8), "samples": SAMPLES},
        {"path": "/b", "aio": aio(2), "samples": slow},
    ]
    script = tmp_path / "ballastctl"
    words = tmp_path / "words"
    script.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        f"json.dump(sys.argv[1:], open({str(words)!r}, 'w'))\nprint('''{json.dumps(disks)}''')\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("BALLAST_BALLASTCTL", str(script))
    monkeypatch.chdir(tmp_path)
    return words


def test_the_defaults(program, capsys):
    assert nvme_tune.main(["--nvme_dir", "/a", "/b"]) == 0
    assert json.loads(program.read_text()) == [
        "tune", "nvme", "-o", "json", "--io-size", "400MiB", "--seconds", "0.3", "--path", "/a",
        "--path", "/b",
    ]  # fmt: skip
    out = capsys.readouterr().out
    assert "Running DeepNVMe performance tuning on ['/a', '/b']" in out
    assert "/a:\nBest performance (GB/sec): read =  3.00, write =  2.00" in out
    section = json.loads(out[out.index("{"):])
    assert section == {"aio": aio(2)}
    assert section["aio"]["single_submit"] is False
    log = json.loads((program.parent / "_aio_bench_logs" / "ballast_nvme_tune.json").read_text())
    assert [disk["path"] for disk in log] == ["/a", "/b"]


def test_every_flag(program, capsys):
    sweep = program.parent / "sweep.json"
    sweep.write_text(json.dumps({
        "block_size": ["1M", "512K", 4096], "queue_depth": [32, 128],
        "sequential_requests": [True], "io_parallel": [1, 2],
    }))  # fmt: skip
    words = ["--nvme_dir", "/a", "--sweep_config", str(sweep), "--no_read", "--io_size", "1G"]
    words += ["--flush_page_cache", "--log_dir", "logs/here", "--loops", "3", "--verbose"]
    assert nvme_tune.main(words) == 0
    called = json.loads(program.read_text())
    assert called[4:] == [
        "--io-size", "1GiB", "--seconds", called[7], "--path", "/a", "--no-read",
        "--block-size", "1MiB,512KiB,4096", "--queue-depth", "32,128",
    ]  # fmt: skip
    assert float(called[7]) == pytest.approx(0.9)
    said = capsys.readouterr()
    assert "no effect: io_parallel, sequential_requests" in said.err
    assert "--flush_page_cache has no effect" in said.err
    assert '"queue_depth": 4' in said.out
    assert (program.parent / "logs/here/ballast_nvme_tune.json").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--gpu"], "--gpu: Ballast moves no bytes between GPUs and disks"),
        (["--gds"], "--gds: Ballast moves"),
        (["--io_size", "many"], "'many' is no size; write a number with K, M or G"),
        (["--loops", "0"], "--loops 0; use 1 or more"),
        (["--sweep_config", "none.json"], "none.json"),
    ],
)
def test_wrong_flags(program, capsys, words, text):
    assert nvme_tune.main(["--nvme_dir", "/a", *words]) == 2
    assert text in capsys.readouterr().err
    assert not program.exists()


@pytest.mark.parametrize("content", ["[1]", "{", '{"block_size": "1M"}', '{"queue_depth": []}'])
def test_wrong_sweeps(program, capsys, content):
    sweep = program.parent / "sweep.json"
    sweep.write_text(content)
    assert nvme_tune.main(["--nvme_dir", "/a", "--sweep_config", str(sweep)]) == 2
    assert str(sweep) in capsys.readouterr().err
    assert not program.exists()


def test_a_missing_program_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(servers, "__file__", str(tmp_path / "a/b/c/d/servers.py"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvme_tune.main(["--nvme_dir", "/a"]) == 2
    assert "no ballastctl found" in capsys.readouterr().err


def test_the_real_program(folder, capfd):
    sweep = folder / "sweep.json"
    sweep.write_text('{"block_size": ["64K"], "queue_depth": [2]}')
    words = ["--nvme_dir", str(folder), "--sweep_config", str(sweep), "--io_size", "64M"]
    assert nvme_tune.main([*words, "--log_dir", str(folder / "logs")]) == 0
    out = capfd.readouterr().out
    assert re.search(r"Best performance \(GB/sec\): read = +\d+\.\d\d, write = +\d+\.\d\d", out)
    assert json.loads(out[out.index("{"):])["aio"] == {**aio(2), "block_size": 65536}
    with pytest.raises(SystemExit):
        nvme_tune.main([])
    missing = ["--nvme_dir", str(folder / "none"), "--io_size", "64M", "--log_dir", str(folder)]
    assert nvme_tune.main(missing) != 0
    assert "none" in capfd.readouterr().err
