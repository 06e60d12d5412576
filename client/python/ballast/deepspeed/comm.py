"""deepspeed.comm: ranks, torch.distributed's operations by its names, and the log of transfers.

Comes from: user code. Goes to: torch.distributed where the script has begun it. Thread safety: as
torch.distributed.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import torch.distributed
from torch.distributed import is_nccl_available as nccl_is_built

from ballast import config
from ballast.deepspeed.submodules import advise
from ballast.deepspeed.transfers import Transfers
from ballast.errors import BadArgument, Unsupported, at_border, warn

__path__: list[str] = []  # import statements ask ballast.deepspeed.submodules for other names
_shown: Transfers | None = None  # of the newest engine with comms_logger


# DeepSpeed's own names of operations that torch.distributed has, too.
_OTHER_NAMES = {
    "allgather_fn": "all_gather_into_tensor",
    "inference_all_reduce": "all_reduce",
    "reduce_scatter_fn": "reduce_scatter_tensor",
}
_LOGGED = ("prof", "log_name", "debug")  # Arguments for DeepSpeed's log; without effect here.


def get_rank(group: Any = None) -> int:
    """This trainer's number, from torch.distributed or the environment. group: of torch."""
    if is_initialized():
        return torch.distributed.get_rank(group)
    return config.seat(os.environ)[1]


def get_world_size(group: Any = None) -> int:
    """The number of trainers, from the same source."""
    if is_initialized():
        return torch.distributed.get_world_size(group)
    return config.seat(os.environ)[0]


def get_local_rank() -> int:
    """This trainer's number on its host, from LOCAL_RANK; 0 without it."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def get_global_rank(group: Any = None, group_rank: int = 0) -> int:
    """The number among all trainers of a group's member; of the whole world, the same number."""
    return torch.distributed.get_global_rank(group, group_rank) if group else group_rank


def get_all_ranks_from_group(group: Any = None) -> list[int]:
    """The numbers of a group's members; None: of all trainers."""
    return torch.distributed.get_process_group_ranks(group) if group else [*range(get_world_size())]


def get_world_group() -> Any:
    """torch.distributed's group of all trainers."""
    return torch.distributed.group.WORLD


def _get_data_parallel_group() -> Any:
    return torch.distributed.group.WORLD


def _get_data_parallel_rank() -> int:
    return get_rank()


def _get_data_parallel_world_size() -> int:
    return get_world_size()


def _get_model_parallel_world_size() -> int:
    return 1


def _get_sequence_parallel_rank() -> int:
    return 0


_get_sequence_parallel_world_size = _get_model_parallel_world_size


def is_initialized() -> bool:
    """Whether the script has begun torch.distributed."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


@at_border
def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None, **_: object) -> Any:
    """Waits for all trainers. Unsupported for several without torch.distributed."""
    if is_initialized():
        return torch.distributed.barrier(group, async_op, device_ids)
    if get_world_size() > 1:
        raise Unsupported("barrier() needs torch.distributed; call init_distributed() first")
    return None


def mean_of(tensor: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    """The mean over all trainers, in fp32, where one without a tensor counts as zeros.

    None if no trainer has one. All trainers call it. Unsupported without torch.distributed.
    """
    if not is_initialized():
        raise Unsupported(
            "the mean over the trainers needs torch.distributed; call init_distributed() first"
        )
    sent = torch.zeros(like.numel() + 1, dtype=torch.float32, device=like.device)
    if tensor is not None:
        sent[:-1] = tensor.flatten()
        sent[-1] = 1.0
    torch.distributed.all_reduce(sent)
    if not sent[-1]:
        return None
    return (sent[:-1] / torch.distributed.get_world_size()).view(like.shape)


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


@at_border
def init_distributed(
    dist_backend: str | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int = 29500,
    verbose: bool = True,
    timeout: timedelta | None = None,
    init_method: str | None = None,
    dist_init_required: bool | None = None,
    config: Any = None,
    rank: int = -1,
    world_size: int = -1,
) -> None:
    """Begins torch.distributed for scripts that use it; Ballast itself does not.

    dist_backend: gloo by default, and, with a warning, instead of a backend that this machine
    lacks, such as nccl without a GPU. timeout, init_method, rank, world_size: of torch.distributed;
    by default the environment's. One trainer is a group of one, which needs no MASTER_ADDR. Does
    nothing where the script has begun. Other arguments mean nothing.
    Raises BadArgument for dist_init_required=False where the script has not begun it.
    """
    refuse_unbegun(dist_init_required)
    if is_initialized():
        return
    world = world_size if world_size > 0 else get_world_size()
    options: dict[str, Any] = {"backend": _usable(dist_backend or "gloo"), "timeout": timeout}
    if init_method is not None:
        seat = rank if rank >= 0 else get_rank()
        options.update(init_method=init_method, rank=seat, world_size=world)
    elif world == 1:
        options.update(store=torch.distributed.HashStore(), rank=0, world_size=1)
    torch.distributed.init_process_group(**options)


def refuse_unbegun(dist_init_required: bool | None) -> None:
    """BadArgument where False says that torch.distributed has begun, and it has not."""
    if dist_init_required is False and not is_initialized():
        raise BadArgument(
            "dist_init_required=False: torch.distributed has not begun; leave the argument out, or "
            "call torch.distributed.init_process_group() before"
        )


def _usable(backend: str) -> str:
    """The backend, such as nccl or cpu:gloo,cuda:nccl, or gloo where a part of it is not there."""
    for part in backend.split(","):
        name = part.split(":")[-1]
        there = torch.distributed.is_backend_available(name)
        if name == "nccl":
            there = torch.cuda.is_available() and nccl_is_built()
        if not there:
            why = "needs a GPU, and there is none" if name == "nccl" else "is not in this torch"
            place = "its place" if name == backend else f"the place of {backend}"
            warn(f"init_distributed(): {name} {why}; gloo takes {place}")
            return "gloo"
    return backend


def _operation(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch's function, which also takes the arguments of DeepSpeed's log."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **{k: v for k, v in named.items() if k not in _LOGGED})

    return call


def __getattr__(name: str) -> Any:
    """A name of torch.distributed, such as all_reduce or ReduceOp; advice for any other."""
    found = None if name.startswith("_") else getattr(
        torch.distributed, _OTHER_NAMES.get(name, name), None
    )
    if found is None or inspect.ismodule(found):
        return _advised(name)
    return _operation(found) if inspect.isfunction(found) else found


_advised = advise("comm")
