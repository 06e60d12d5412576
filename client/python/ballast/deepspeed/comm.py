"""deepspeed.comm, as far as training scripts use it: ranks and a barrier.

Comes from: user code. Goes to: torch.distributed where the script has begun it. Thread safety: as
torch.distributed.
"""

from __future__ import annotations

import os

import torch.distributed

from ballast import config
from ballast.errors import Unsupported


def get_rank() -> int:
    """This trainer's number, from torch.distributed or the environment."""
    if is_initialized():
        return torch.distributed.get_rank()
    return config.seat(os.environ)[1]


def get_world_size() -> int:
    if is_initialized():
        return torch.distributed.get_world_size()
    return config.seat(os.environ)[0]


def get_local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_initialized() -> bool:
    """Whether the script has begun torch.distributed."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def barrier() -> None:
    """Waits for all trainers. Unsupported for several without torch.distributed."""
    if is_initialized():
        torch.distributed.barrier()
    elif get_world_size() > 1:
        raise Unsupported("barrier() needs torch.distributed; call init_distributed() first")


def log_summary() -> None:
    raise Unsupported("comms_logger is not there yet; opt.counters has the bytes of the wire")


def init_distributed(dist_backend: str | None = None, **_: object) -> None:
    """Begins torch.distributed for scripts that use it; Ballast itself does not.

    dist_backend: gloo by default. Does nothing with one trainer, or where it has begun. Other
    arguments of DeepSpeed's are accepted and mean nothing.
    """
    if get_world_size() > 1 and not is_initialized():
        torch.distributed.init_process_group(dist_backend or "gloo")
