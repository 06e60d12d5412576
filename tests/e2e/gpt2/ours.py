"""bt.AdamW for the loop with Accelerate, with the settings that the other scripts have from their
ds_config.

Comes from: scripts/accelerate_way.py as ways.py changes it. Goes to: ballast.torch.
"""

from __future__ import annotations

import ballast.torch as bt
import torch
from e2e.gpt2 import net


def adamw(module: torch.nn.Module, case: net.Case) -> bt.AdamW:
    more = {} if case.profile is None else {"profile": case.profile}
    if case.dtype == "fp16":
        more["loss_scale"] = bt.DynamicLossScale(case.power, loss_scale_window=3, hysteresis=1)
    if case.schedule:
        more["lr_schedule"] = bt.schedules.WarmupDecayLR(
            net.TOTAL, warmup_min_lr=0.0, warmup_max_lr=net.LR, warmup_num_steps=net.WARMUP,
            warmup_type="linear",
        )  # fmt: skip
    return bt.AdamW(
        net.groups(module), lr=net.LR, max_grad_norm=case.clip or None,
        **({"resume": "must"} if case.resume else {}), **more,
    )  # fmt: skip
