"""torch's own database of optimizer arguments, over a real server: no bit differs.

Each row is one job of several groups: as given, with numbers of its own, one tensor per group, and
one that comes late. torch runs its loop (foreach=False) with a correctly rounded sqrt, oracle (b)
of docs/numerics.md.
"""

from __future__ import annotations

import copy
import importlib
import sys
from unittest import mock

import pytest
import torch
from e2e.oracle import differing_bits, rounded_sqrt
from real_training import SMALL, fresh_job
from torch import nn

import ballast
import ballast.torch as bt

KINDS = {"AdamW": bt.AdamW, "Adam": bt.Adam, "SGD": bt.SGD, "Adagrad": bt.Adagrad}
STEPS, LATE_AT, SILENT_AT = 6, 3, 2
_INTERNAL = "torch.testing._internal."


def database():
    """(kind, row, kwargs) and those that torch refuses, without the further needs of its tests."""
    importlib.import_module(_INTERNAL[:-1])
    others = ("common_methods_invocations", "common_device_type", "common_utils")
    named = _INTERNAL + "common_optimizers"
    with mock.patch.dict(sys.modules, {_INTERNAL + each: mock.MagicMock() for each in others}):
        module = importlib.import_module(named)
        sys.modules.pop(named)
    rows, refused = [], []
    for info in module.optim_db:
        kind = info.optim_cls.__name__
        if kind not in KINDS:
            continue
        for row in info.optim_inputs_func(device="cpu"):
            rows.append(pytest.param(kind, row.kwargs, id=f"{kind} {row.desc}"))
        for bad in info.optim_error_inputs_func(device="cpu", dtype=torch.float32):
            refused.append((kind, bad.optimizer_error_input))
    return rows, refused


ROWS, REFUSED = database()


def tensors():
    generator = torch.Generator().manual_seed(0)
    shapes = {"a.weight": (10, 13), "a.bias": (13,), "b": (130,), "c": (2, 3, 5), "late": (7,)}
    return {n: nn.Parameter(torch.randn(s, generator=generator)) for n, s in shapes.items()}


def groups(of):
    own = {"lr": 0.05, "weight_decay": 0.02}
    return [
        {"params": [(n, of[n]) for n in ("a.weight", "a.bias")]},
        {"params": [("b", of["b"])], **own},
        {"params": [("c", of["c"])]},
    ]


def train(opt, parameters):
    for i in range(STEPS):
        if i == LATE_AT:
            opt.add_param_group({"params": [("late", parameters["late"])], "weight_decay": 0.3})
        generator = torch.Generator().manual_seed(i)
        for name, p in parameters.items():
            p.grad = torch.randn(p.shape, generator=generator)
            if (i == SILENT_AT and name == "b") or (i < LATE_AT and name == "late"):
                p.grad = None
        opt.step()


@pytest.mark.parametrize("kind, kwargs", ROWS)
def test_every_row_has_torchs_bits(shared_servers, kind, kwargs):
    mine, theirs = tensors(), tensors()
    opt = KINDS[kind](
        groups(mine), endpoints=shared_servers(1), job=fresh_job("row"), durability="none",
        **copy.deepcopy(kwargs), **SMALL,
    )  # fmt: skip
    oracle = getattr(torch.optim, kind)(groups(theirs), **copy.deepcopy(kwargs), foreach=False)
    train(opt, mine)
    with rounded_sqrt():
        train(oracle, theirs)
    assert [differing_bits(mine[n], theirs[n]) for n in mine] == [0] * len(mine)
    state, expected = opt.export_state()["state"], oracle.state_dict()["state"]
    for i, arrays in expected.items():
        for key, value in arrays.items():
            if value is not None:
                assert differing_bits(state[i][key].float(), value.float()) == 0, (i, key)
    opt.close()


def test_what_torch_refuses_is_refused(fake):
    accepted = []
    for kind, row in REFUSED:
        try:
            KINDS[kind](row.params if row.params is not None else tensors().values(), **row.kwargs)
        except (ballast.BallastError, ValueError, TypeError):
            continue
        accepted.append(f"{kind}: {row.desc}")
    # Numbers in tensors, which only some of torch's loops cannot read; and what torch warns of.
    others = [desc for desc in accepted if "ensor" not in desc and "duplicate" not in desc]
    assert len(REFUSED) > 20 and others == []
