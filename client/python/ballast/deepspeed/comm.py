"""deepspeed.comm, as far as training scripts use it: ranks, a barrier, and the log of transfers.

Comes from: user code. Goes to: torch.distributed where the script has begun it. Thread safety: as
torch.distributed.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import Any

import torch.distributed
from torch.distributed import is_nccl_available as nccl_is_built

from ballast import config
from ballast.deepspeed.submodules import advise
from ballast.deepspeed.transfers import Transfers
from ballast.errors import Unsupported, warn

__path__: list[str] = []  # import statements ask ballast.deepspeed.submodules for what is not here
_shown: Transfers | None = None  # of the newest engine with comms_logger


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


def log_summary(
    show_straggler: bool = False, print_log: bool = True, return_dict: bool = False
) -> dict[str, Any] | None:
    """Prints the transfers of this trainer's rounds on rank 0, by operation and size.

    return_dict: returns them as well, as {"summary", "straggler_analysis", "metadata"}. Unsupported
    without comms_logger, and for stragglers, which the servers name.
    """
    if _shown is None:
        raise Unsupported(
            'log_summary() needs "comms_logger": {"enabled": true} in the ds_config of initialize()'
        )
    if show_straggler:
        raise Unsupported(
            "log_summary(show_straggler=True): leave it out; the servers name stragglers in their "
            "log and metrics"
        )
    if print_log and get_rank() == 0:
        print(_shown.table(), flush=True)
    if not return_dict:
        return None
    metadata = {"world_size": get_world_size(), "rank": get_rank(),
                "timestamp": datetime.now().isoformat()}  # fmt: skip
    return {"summary": _shown.summary(), "straggler_analysis": None, "metadata": metadata}


def show(transfers: Transfers) -> None:
    """What log_summary() shows from now on: that of the newest engine."""
    global _shown
    _shown = transfers


def init_distributed(
    dist_backend: str | None = None, *_: object, timeout: timedelta | None = None, **__: object
) -> None:
    """Begins torch.distributed for scripts that use it; Ballast itself does not.

    dist_backend: gloo by default, and in place of nccl where there is no GPU, which is said.
    timeout: of torch.distributed. Does nothing with one trainer, or where it has begun. Other
    arguments of DeepSpeed's are accepted and mean nothing.
    """
    if get_world_size() <= 1 or is_initialized():
        return
    backend = dist_backend or "gloo"
    if backend == "nccl" and not (torch.cuda.is_available() and nccl_is_built()):
        warn("init_distributed(): nccl needs a GPU, and there is none; gloo takes its place")
        backend = "gloo"
    torch.distributed.init_process_group(backend, timeout=timeout)


__getattr__ = advise("comm")
