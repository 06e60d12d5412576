"""Ballast's present capabilities on which keys of a ds_config depend.

Comes from: the state of this repository. Goes to: ballast.ds_config.row. A table row is refused
with `instead` while a capability it needs is not ready. When a feature lands, set its
`ready` to True here, which turns all rows that need it, and generate docs/reference/ds-config.md.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Capability:
    """ready: it works on this branch. what: its name in texts. instead: what to do until then."""

    ready: bool
    what: str
    instead: str


_OPTIMIZER = 'use "AdamW"'
_LATER_SCHEDULE = (
    "leave the section out and drive opt.param_groups with a torch scheduler "
    "(torch.optim.lr_scheduler), which works with bt.AdamW as with torch's"
)

CAPABILITIES = {
    # Optimizers and their options.
    "adam_l2": Capability(True, "Adam with L2 decay", "leave adam_w_mode true: AdamW"),
    "adagrad": Capability(True, "Adagrad", _OPTIMIZER),
    "lion": Capability(True, "Lion", _OPTIMIZER),
    "lamb": Capability(True, "LAMB", _OPTIMIZER),
    "sgd": Capability(True, "SGD", _OPTIMIZER),
    "amsgrad": Capability(True, "amsgrad", "leave amsgrad false"),
    # Decisions made in each round.
    "schedules": Capability(True, "a schedule in the service", _LATER_SCHEDULE),
    "dynamic_loss_scale": Capability(
        True,
        "a dynamic loss scale",
        "write a fixed scale, such as fp16.loss_scale 1024 with bt.AdamW(loss_scale=1024.0), "
        "or use bf16, which needs none",
    ),
    "sum_of_gradients": Capability(
        False, "a sum of gradients over the trainers", "multiply the loss by the number of trainers"
    ),
    "wire_dtype": Capability(
        False,
        "gradients in another dtype than their parameter's",
        "leave the key out; sums are in fp32 in any case",
    ),
    "short_accumulation": Capability(
        False,
        "accumulation in another dtype than fp32 or the parameter's",
        "leave the key out, or write fp32",
    ),
    # Memory and links.
    "stage3": Capability(
        False,
        "stage 3, weights that are partitioned over the trainers",
        "write stage 2: the optimizer state leaves the trainers, and the weights stay whole",
    ),
    "quantized_transfer": Capability(
        False, "quantized weights or gradients on the wire", "leave the key false"
    ),
    # The SDK's work around the training loop.
    "autocast_inputs": Capability(
        False, "casting of a module's inputs", "cast the inputs in the script: x.half()"
    ),
    "monitors": Capability(
        True,
        "monitors",
        "write opt.last_report yourself, for example with torch.utils.tensorboard.SummaryWriter "
        "or the csv module, on rank 0",
    ),
    "comms_logger": Capability(
        True,
        "a log of transfers",
        "read opt.last_report, and /metrics of the servers' admin port",
    ),
    "universal_checkpoint": Capability(
        True,
        "DeepSpeed's universal checkpoints",
        "convert to safetensors and load it with opt.load_export()",
    ),
    "config_section": Capability(
        True,
        "a ballast section that an engine reads",
        "give the value to bt.AdamW(...) or set the BALLAST_* variable",
    ),
}
