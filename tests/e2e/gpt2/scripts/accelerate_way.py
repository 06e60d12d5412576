"""GPT-2 in a loop with Accelerate. The tests change the optimizer, which then clips, too."""

import accelerate
import torch
from e2e.gpt2 import net, run


def train(case):
    accelerator = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=case.accumulation
    )
    module, log = net.model(case).to(net.DTYPES[case.dtype]), run.Log(case)
    data = net.Data(case, accelerator.num_processes)
    loader = torch.utils.data.DataLoader(data, batch_size=net.MICRO)
    clip = case.clip
    optimizer = torch.optim.AdamW(net.groups(module), lr=net.LR, fused=True)
    model, optimizer, loader = accelerator.prepare(module, optimizer, loader)
    inner = optimizer.optimizer
    scaled = getattr(inner, "scale", lambda loss: loss)  # torch's has no loss scale
    if case.resume:
        inner.attach()
    for place, batch in run.from_round(getattr(inner, "round", 0), case, loader):
        share = case.accumulation / case.window(place) if case.own_length else 1.0
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(scaled(loss * share))
            if accelerator.sync_gradients and clip:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
        log.loss(loss)
        if accelerator.sync_gradients:
            log.round_ended(**said(inner))
    log.ended(module)
    return log


def said(optimizer):
    policy = getattr(optimizer, "policy", None) or {}
    return {
        "rate": float(optimizer.param_groups[0]["lr"]),
        "position": policy.get("schedule_index", 0),
        "applied": not getattr(optimizer, "step_was_skipped", False),
        "scale": getattr(optimizer, "loss_scale", 1.0),
    }
