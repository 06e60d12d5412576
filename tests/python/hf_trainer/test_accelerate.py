"""Accelerate's prepare() takes an optimizer of ballast.torch unchanged."""

from __future__ import annotations

import accelerate
import ballast.torch as bt
import pytest
import torch
from hf_trainer import tiny
from real_training import fresh_job


def loop(optimizer_of, precision):
    accelerator = accelerate.Accelerator(
        cpu=True, mixed_precision=precision, gradient_accumulation_steps=2)
    module = tiny.model()
    loader = torch.utils.data.DataLoader(tiny.Data(), batch_size=4)
    optimizer = optimizer_of(module)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)
    model, optimizer, loader, scheduler = accelerator.prepare(
        module, optimizer, loader, scheduler)
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return module, optimizer.optimizer


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_raw_loop_has_the_bits_of_torch(one_server, precision):
    ours, optimizer = loop(
        lambda m: bt.AdamW(m.named_parameters(), lr=1e-2, job=fresh_job("accelerate")), precision)
    theirs, _ = loop(lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, fused=True), precision)
    assert optimizer.opt_step == tiny.SAMPLES // 8
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters()):
        assert torch.equal(a, b), name
    optimizer.close()
