"""A trainer runs without torch._dynamo; with it imported, torch's wrappers run."""

from __future__ import annotations

import functools
import subprocess
import sys
import types
from pathlib import Path

import torch

from ballast.torch.untraced import _untraced

CLIENT = Path(__file__).resolve().parents[2] / "client" / "python"
TRAINER = """
import sys
import torch
import ballast.torch as bt

model = torch.nn.Linear(3, 3)
opt = bt.AdamW(model.parameters(), endpoints="127.0.0.1:1", job="j", world_size=1, rank=0)
torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)
model(torch.ones(2, 3)).sum().backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
opt.zero_grad()
opt.load_state_dict(opt.state_dict())
opt.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
assert model.weight.grad is None and len(opt.param_groups) == 2
print("torch._dynamo" in sys.modules)
"""


def test_a_trainer_does_not_import_dynamo():
    done = subprocess.run(
        [sys.executable, "-c", TRAINER],
        env={"PYTHONPATH": str(CLIENT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_where_dynamo_is_imported_torchs_wrappers_run(monkeypatch):
    def plain(self):
        return f"{self} untraced"

    @functools.wraps(plain)
    def wrapped(self):
        return f"{self} wrapped"

    monkeypatch.setattr(torch.optim.Optimizer, "zero_grad", wrapped)
    method = _untraced("zero_grad")
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    assert method("opt") == "opt untraced"
    monkeypatch.setitem(sys.modules, "torch._dynamo", types.ModuleType("torch._dynamo"))
    assert method("opt") == "opt wrapped"
