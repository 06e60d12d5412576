"""The files of a DeepSpeed ZeRO checkpoint and their contents.

Comes from: ballast.ds_checkpoint.zero. Goes to: ballast.ds_checkpoint.torch_file. Thread safety:
reads files.

```
DIR/latest                                                   text: TAG
DIR/TAG/mp_rank_00_model_states.pt                           stages 1 and 2
DIR/TAG/zero_pp_rank_<r>_mp_rank_00_model_states.pt          stage 3, one of each rank r
DIR/TAG/[bf16_]zero_pp_rank_<r>_mp_rank_00_optim_states.pt   one of each rank r
```
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any

from ballast.ds_checkpoint import torch_file
from ballast.ds_checkpoint.errors import CheckpointError, shown
from ballast.ds_checkpoint.fields import of_kind
from ballast.ds_checkpoint.unpickle import Build, Name, Names, Refused, record

_LATEST = "latest"
_TAG_BYTES_MAX = 4096
_MODEL = "mp_rank_00_model_states.pt"
_RANKED = re.compile(
    r"(?:bf16_|fp16_)?zero_pp_rank_([0-9]{1,6})_mp_rank_([0-9]{1,6})_(optim|model)_states\.pt"
)
_EXPERT = re.compile(r"(?:layer_.*)?_?exp.*_mp_rank_.*\.pt")


def _set(arguments: tuple[Any, ...]) -> list[Any]:
    """A set, as the list of its elements."""
    return list(arguments[0]) if arguments and isinstance(arguments[0], (list, tuple)) else []


_STAGE = "deepspeed.runtime.zero.config.ZeroStageEnum"
_STAGES = {"disabled": 0, "optimizer_states": 1, "gradients": 2, "weights": 3}


def _getattr(arguments: tuple[Any, ...]) -> int:
    """Python 3.11 pickles a member of an enum as getattr(class, name): here, the stage's number."""
    if len(arguments) == 2 and arguments[0] == Name(_STAGE) and isinstance(arguments[1], str):
        if arguments[1] in _STAGES:
            return _STAGES[arguments[1]]
    raise Refused("the pickle calls getattr; only the ZeRO stage is read so, and no code runs")


# Classes whose objects DeepSpeed 0.19.8 pickles into its files, and that scripts often do, in
# client_state. They are read as Records.
_RECORDS = (
    "argparse.Namespace",
    "deepspeed.checkpoint.utils.SubparamShape",
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    _STAGE,
    "deepspeed.utils.tensor_fragment.fragment_address",
)
_BUILTINS: dict[str, Build | None] = {"__builtin__.getattr": _getattr, "__builtin__.set": _set}
NAMES: Names = {**{name: record(name) for name in _RECORDS}, **_BUILTINS}


@dataclasses.dataclass(frozen=True)
class ZeroFiles:
    """The files' contents. Paths and values are in rank order.

    optimizers: of each rank, with "optimizer_state_dict". models: with "module" and the shapes; of
    each rank in stage 3 (model_per_rank), of rank 0 alone before.
    """

    directory: str
    optimizers: list[tuple[str, dict[Any, Any]]]
    models: list[tuple[str, dict[Any, Any]]]
    model_per_rank: bool


def tag_of(directory: str, latest: str = _LATEST) -> str:
    """The tag that DIR/latest names. CheckpointError if there is no such file."""
    path = os.path.join(directory, latest)
    try:
        with open(path, "rb") as file:
            text = file.read(_TAG_BYTES_MAX + 1).decode().strip()
    except (OSError, UnicodeDecodeError):
        raise CheckpointError(path, "cannot be read; name a tag of the checkpoint") from None
    return text


def folder_of(directory: str, tag: str | None, latest: str = _LATEST) -> str:
    """The folder of a tag in `directory`; of the latest one without a tag."""
    tag = tag_of(directory, latest) if tag is None else tag
    parts = tag.split("/")
    if not tag or len(tag) > _TAG_BYTES_MAX or "\0" in tag or "" in parts or ".." in parts:
        raise CheckpointError(directory, f"{shown(tag)} is no tag: the name of a folder in it")
    folder = os.path.join(directory, tag)
    if not os.path.isdir(folder):
        raise CheckpointError(folder, "is no directory")
    return folder


def read_zero_files(directory: str, tag: str | None = None) -> ZeroFiles:
    """Reads the files of a tag, without their tensors. Raises CheckpointError."""
    folder = folder_of(directory, tag)
    optimizers = _of_all_ranks(folder, "optim")
    models = _of_all_ranks(folder, "model")
    if models and len(models) != len(optimizers):
        raise CheckpointError(
            folder,
            f"has model states of {len(models)} ranks and optimizer states of {len(optimizers)}",
        )
    paths = models or [os.path.join(folder, _MODEL)]
    return ZeroFiles(
        folder, [_dict(path) for path in optimizers], [_dict(path) for path in paths], bool(models)
    )


def _dict(path: str) -> tuple[str, dict[Any, Any]]:
    value = torch_file.load(path, NAMES)
    return path, of_kind(path, "what was saved", value, dict)


def _of_all_ranks(folder: str, which: str) -> list[str]:
    """Paths of rank 0, 1, 2 ...; empty if there is none of them. CheckpointError for a hole."""
    ranks: dict[int, str] = {}
    for name in sorted(os.listdir(folder)):
        found = _RANKED.fullmatch(name)
        if _EXPERT.fullmatch(name):
            raise CheckpointError(os.path.join(folder, name), "is of experts, which are not read")
        if not found or found[3] != which:
            continue
        if int(found[2]) != 0:
            raise CheckpointError(
                os.path.join(folder, name), "is of tensor parallelism, which is not read"
            )
        if int(found[1]) in ranks:
            raise CheckpointError(folder, f"has two files of {which} states of rank {found[1]}")
        ranks[int(found[1])] = os.path.join(folder, name)
    if which == "optim" and not ranks:
        raise CheckpointError(folder, "has no *_optim_states.pt, so it is no ZeRO checkpoint")
    missing = [rank for rank in range(len(ranks)) if rank not in ranks]
    if missing:
        raise CheckpointError(folder, f"lacks the {which} states of rank {missing[0]}")
    return [ranks[rank] for rank in range(len(ranks))]
