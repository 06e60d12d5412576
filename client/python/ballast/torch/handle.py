"""The small state_dict of a Ballast optimizer: a handle to the state, not the state.

Comes from: ballast.torch.service_optimizer. Frameworks move, save and reload optimizer state
dicts at will (Accelerate's prepare() loads its own dict right after saving it), so saving must cost
nothing and loading one's own handle must change nothing. Only Python numbers, strings, lists and
dicts: it survives torch.save and torch.load(weights_only=True).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast.errors import BadArgument, Unsupported

FORMAT = 1


def make(*, job: str, job_id: int, round: int, opt_step: int, world_size: int) -> dict[str, Any]:
    """The handle. job_id 0: not attached yet. Equal on all ranks."""
    return {
        "format": FORMAT,
        "job": job,
        "job_id": job_id,
        "round": round,
        "opt_step": opt_step,
        "world_size": world_size,
    }


def check(state_dict: Mapping[str, Any], *, job_id: int, round: int) -> None:
    """Refuses state dicts whose state this optimizer would not have after loading.

    job_id, round: those of the loading optimizer (job_id 0: not attached). Accepted: a handle from
    before the first step, the handle of this very job and round, and a torch state dict without
    state (its hyper-parameters are loaded). Raises Unsupported or BadArgument otherwise.
    """
    if not isinstance(state_dict, Mapping) or "param_groups" not in state_dict:
        raise BadArgument(
            f"this {type(state_dict).__name__} is no state dict of an optimizer: it must be a dict "
            "with \"param_groups\", as state_dict() returns it"
        )
    if state_dict.get("state"):
        raise Unsupported(
            "this state dict holds moments of a torch optimizer; call opt.load_export(state_dict) "
            "on all trainers to load them into the service. Or load only its hyper-parameters by "
            "passing {'state': {}, 'param_groups': sd['param_groups']}"
        )
    saved = state_dict.get("ballast")
    if saved is None:
        return
    if not isinstance(saved, Mapping) or saved.get("format") != FORMAT:
        version = saved.get("format") if isinstance(saved, Mapping) else saved
        raise BadArgument(
            f"the state dict's ballast handle has format {version!r}; this version reads {FORMAT}"
        )
    missing = [key for key in ("job", "job_id", "round") if key not in saved]
    if missing:
        raise BadArgument(f"the state dict's ballast handle lacks {', '.join(missing)}")
    if not saved["job_id"] or (saved["job_id"] == job_id and saved["round"] == round):
        return
    where = f"job {saved['job']!r} at round {saved['round']}"
    if saved["job_id"] == job_id:
        raise Unsupported(
            f"the state dict is a handle to {where}, but the job is at round {round}; going back "
            "needs a snapshot: opt.snapshot(name), or ballast.hf.Callback() under Trainer"
        )
    raise Unsupported(
        f"the state dict is a handle to {where}, not to this optimizer's job. To continue that "
        "one, give its name with resume=\"must\" and call opt.attach() before loading; save "
        "opt.export_state() if the moments must outlive the job"
    )
