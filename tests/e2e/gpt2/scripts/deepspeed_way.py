"""GPT-2 in a DeepSpeed script. The tests change its import, and nothing else."""

import os

import deepspeed
from e2e.gpt2 import net, run


def train(case):
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    model, log = net.model(case), run.Log(case)
    engine, _, _, scheduler = deepspeed.initialize(
        model=model, model_parameters=net.groups(model), config=net.ds_config(case)
    )
    if case.resume:
        engine.load_checkpoint(case.folder)
    batches = net.batches(case, rank, world)
    for place, batch in run.from_round(engine.global_steps, case, batches):
        engine.set_gradient_accumulation_boundary(case.ends(place))
        before = engine.get_lr()[0]  # in DeepSpeed the rate of the next round
        loss = engine(**batch).loss
        if case.own_length:
            engine.backward(loss / case.window(place), scale_wrt_gas=False)
        else:
            engine.backward(loss)
        engine.step()
        log.loss(loss)
        if case.ends(place):
            if case.saves and engine.global_steps % case.saves == 0:
                engine.save_checkpoint(case.folder)
            log.round_ended(before=before, **said(engine, scheduler))
    log.ended(engine.module)
    engine.destroy()
    return log


def said(engine, scheduler):
    return {
        "rate": engine.get_lr()[0],
        "position": scheduler.last_batch_iteration if scheduler else 0,
        "applied": engine.was_step_applied(),
        "skipped": engine.skipped_steps,
        "scale": float(engine.optimizer.loss_scale),
    }
