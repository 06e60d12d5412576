"""The Python blocks of the pages run unchanged, against a real server.

Comes from: README.md, docs/. Goes to: a job of its own for each block, or a reason why a block is
not run. tests/tidy/blocks_test.py knows where blocks of commands run.

Each block gets the names that the text around it takes for granted: a model, a loader, files.
"""

from __future__ import annotations

import contextlib
import json
import re
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ballast.torch as bt
from e2e.cluster import fresh_job
from serving import REPO

# Pages with blocks that other tests run, and pages whose blocks cannot run here.
ELSEWHERE = {
    "docs/huggingface.md": "tests/python/hf_trainer runs such scripts on Trainer and Accelerate",
    "docs/nccl.md": "needs NVIDIA GPUs; tests/e2e/test_nccl.py runs the same loop on a stand-in",
}
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def blocks(page: str) -> list[str]:
    return BLOCK.findall((REPO / page).read_text())


def pages() -> list[str]:
    found = [REPO / "README.md", REPO / "client/python/README.md", *(REPO / "docs").rglob("*.md")]
    return sorted(str(p.relative_to(REPO)) for p in found if blocks(str(p.relative_to(REPO))))


class Place:
    """A block's surroundings: names, and files in the current folder."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.model = torch.nn.Linear(8, 4)
        self.names = {
            "bt": bt, "torch": torch, "model": self.model, "args": None, "world": 1, "rank": 0,
            "loss_of": self.loss_of, "loader": [0] * 8, "batch_size": 4, "steps": 2, "loss": 1.0,
            "Path": Path,
        }  # fmt: skip

    def loss_of(self, model: torch.nn.Module, batch: object) -> torch.Tensor:
        return model(torch.ones(2, 8)).square().mean()

    def optimizer(self, **options: object) -> bt.AdamW:
        """A job after one round, in the block's name `opt`."""
        opt = bt.AdamW(self.model.named_parameters(), lr=1e-3, job=fresh_job("page"), **options)
        self.loss_of(self.model, 0).backward()
        opt.step()
        self.names["opt"] = opt
        return opt

    def close(self) -> None:
        for value in list(self.names.values()):
            if isinstance(value, bt.AdamW):
                value.close()


def with_gradients(place: Place) -> None:
    place.loss_of(place.model, 0).backward()


def with_snapshots(place: Place) -> None:
    place.optimizer(durability="process")
    place.names["step"] = 1000


def with_checkpoint(place: Place) -> None:
    """step-5000.pt of a run with torch, which continues with torch."""
    theirs = torch.optim.AdamW(place.model.parameters(), lr=3e-4)
    with_gradients(place)
    theirs.step()
    both = {"model": place.model.state_dict(), "optimizer": theirs.state_dict()}
    torch.save(both, place.folder / "step-5000.pt")
    place.names["torch_adamw"] = theirs


def universal(place: Place) -> None:
    """A universal checkpoint of the model, in `universal` and in the block's names."""
    from ballast.ds_checkpoint import Group, states_of, to_universal

    states, _ = states_of(place.optimizer().export_state())
    place.names.update(states=states, names=list(states))
    to_universal(place.folder / "universal", "round-1", states, [Group(list(states), {})])


def with_scheduler(place: Place) -> None:
    place.names["scheduler"] = types.SimpleNamespace(step=lambda: None, state_dict=lambda: {"t": 1})


def with_config(place: Place) -> None:
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "csv_monitor": {"enabled": True, "output_path": "logs"},
    }
    (place.folder / "ds_config.json").write_text(json.dumps(config))
    with_scheduler(place)
    place.optimizer()


def with_handle(place: Place) -> None:
    from ballast.ops.op_builder import AsyncIOBuilder

    place.names.update(AsyncIOBuilder=AsyncIOBuilder, handle=AsyncIOBuilder().load().aio_handle())


def stepped(place: Place) -> None:
    assert place.names["opt"].round >= 1, "the block made no round"


def monitored(place: Place) -> None:
    place.names["monitor"].close()
    assert list(place.folder.rglob("Train_Samples_train_loss.csv"))


# By page and number of the block: its surroundings, the parts of its text made small, the check
# after its run. "" in place of these: why it does not run.
Before = Callable[[Place], None]
CASES: dict[tuple[str, int], tuple[Before, dict[str, str], Before | None] | str] = {
    ("README.md", 0): (with_gradients, {}, stepped),
    ("client/python/README.md", 0): (with_gradients, {}, stepped),
    ("docs/checkpoints.md", 0): (with_snapshots, {}, None),
    ("docs/checkpoints.md", 1): (with_checkpoint, {}, None),
    ("docs/checkpoints.md", 2): "loads an export of ballastctl: tests/e2e/test_load_export.py",
    ("docs/collectives.md", 0): "needs trainers of one process group: tests/e2e/test_collective.py",
    ("docs/deepnvme.md", 0): (lambda place: None, {}, None),
    ("docs/deepnvme.md", 1): (with_handle, {"1 << 28": "1 << 14", '"/nvme/': '"'}, None),
    ("docs/deepspeed-checkpoints.md", 0):
        "reads checkpoints of DeepSpeed: tests/python/ds_checkpoint/test_zero_checkpoint.py",
    ("docs/deepspeed-checkpoints.md", 1):
        "reads checkpoints of DeepSpeed: tests/python/ds_checkpoint/test_exchange.py",
    ("docs/deepspeed-checkpoints.md", 2): (universal, {}, None),
    ("docs/deepspeed.md", 0): "tests/python/hf_trainer/test_examples.py runs such a script",
    ("docs/deepspeed.md", 1): "tests/python/ds_engine runs such loops; this one has no body",
    ("docs/deepspeed.md", 2): "tests/python/ds_engine saves and loads in this way",
    ("docs/monitors.md", 0): (with_config, {}, monitored),
    ("docs/nvme.md", 0): (lambda place: None, {}, None),
    ("docs/operations.md", 0): (with_scheduler, {"    ...\n": "    loss_of(model, 0).backward()\n"},
                                stepped),
    ("docs/optimizers.md", 0): "grows a parameter: tests/python/test_growing.py",
    ("docs/optimizers.md", 1): (with_scheduler, {}, stepped),
    ("docs/reference/ds-config.md", 0): "tests/python/ds_config/test_ds_auto.py calls it",
    ("docs/schedules.md", 0): (lambda place: None, {}, stepped),
}  # fmt: skip


def test_every_block_has_its_case():
    here = [page for page in pages() if page not in ELSEWHERE]
    found = {(page, i) for page in here for i in range(len(blocks(page)))}
    assert found == set(CASES)
    assert set(ELSEWHERE) <= set(pages())
    for reason in (*ELSEWHERE.values(), *(c for c in CASES.values() if isinstance(c, str))):
        for path in re.findall(r"tests/[\w/.]+", reason):
            assert (REPO / path).exists(), path


@pytest.mark.parametrize(
    "page, number", [key for key, case in CASES.items() if not isinstance(case, str)]
)
def test_the_block_runs(page, number, clusters, tmp_path, monkeypatch):
    before, smaller, after = CASES[page, number]
    text = blocks(page)[number]
    for old, new in smaller.items():
        assert old in text, f"{page} has no {old!r} any more"
        text = text.replace(old, new)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BALLAST_ENDPOINTS", ",".join(clusters(1).endpoints))
    monkeypatch.setenv("BALLAST_JOB", fresh_job("page"))
    place = Place(tmp_path)
    with contextlib.closing(place):
        before(place)
        exec(compile(text, f"{page}, block {number}", "exec"), place.names)
        if after is not None:
            after(place)
