"""What of a job's configuration an attach sends: keywords of the extension module's start_attach.

Comes from: ballast.config. Goes to: ballast.session. Pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ballast.config import JobConfig
from ballast.loss_scale import DynamicLossScale


def of(config: JobConfig) -> dict[str, Any]:
    """The keywords of the extension module's start_attach that come from the configuration."""
    return {
        "endpoints": list(config.endpoints),
        "security": config.security.for_core(),
        "job": config.job,
        "world": config.world_size,
        "slot": config.rank,
        "max_grad_norm": config.max_grad_norm,
        "nonfinite": config.nonfinite,
        "max_consecutive_skips": config.max_consecutive_skips,
        "tile_elements": config.tile_elements,
        "extent_elements": config.extent_elements,
        "init": config.init,
        "attach_timeout_s": config.attach_timeout,
        "time_scale": config.time_scale,
        "durability": config.durability,
        "reconnect_timeout_s": config.reconnect_timeout,
        "resume": config.resume,
        "variable_world": config.variable_world,
        "min_world": config.min_world,
        "device": config.device,
        "gradients": config.gradients,
    }


def policy(config: JobConfig, schedule_groups: Sequence[int]) -> dict[str, Any]:
    """The keywords for the service's decisions in each round, or a static loss scale."""
    scale, schedule = config.loss_scale, config.lr_schedule
    dynamic = isinstance(scale, DynamicLossScale)
    decided = {
        "dynamic_loss_scale": dataclasses.astuple(scale) if dynamic else None,
        "schedule": "" if schedule is None else schedule.name,
        "schedule_arguments": {} if schedule is None else schedule.arguments(),
        "schedule_groups": [] if schedule is None else list(schedule_groups),
        "schedule_group_count": 0 if schedule is None else schedule.groups,
        "profile": config.profile,
    }
    return {"loss_scale": 1.0 if dynamic else scale, "policy": decided}
