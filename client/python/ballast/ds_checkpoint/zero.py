"""DeepSpeed ZeRO checkpoints of stages 1, 2 and 3, as named tensors.

Comes from: ballast.ds_checkpoint.zero_to_fp32 and scripts. Goes to: zero_files (values),
zero_states (their meaning) and zero_layout (where tensors lie). Thread safety:
thread-compatible.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections import Counter
from typing import Any

import torch

from ballast.ds_checkpoint.errors import CheckpointError, shown
from ballast.ds_checkpoint.fields import field, parameter_name, shape_of
from ballast.ds_checkpoint.torch_file import FileTensor
from ballast.ds_checkpoint.zero_files import ZeroFiles, read_zero_files
from ballast.ds_checkpoint.zero_layout import Pieces, Shapes, cut_stage_1, cut_stage_3
from ballast.ds_checkpoint.zero_states import (
    MASTER,
    OPTIMIZER,
    RankState,
    check_world,
    paddings_of,
    stage_of,
    steps_of,
    vectors_of,
)

Frozen = dict[str, tuple[tuple[int, ...], tuple[FileTensor, ...]]]


@dataclasses.dataclass(frozen=True)
class Model:
    """The contents of the model-state files.

    groups: shapes of trained parameters, in the order of the optimizer's vectors. frozen: for each
    untrained parameter its shape, and the tensors that make it up. buffers: by name. aliases: other
    names of tied parameters, each with the name that holds the tensor.
    """

    groups: list[Shapes]
    frozen: Frozen
    buffers: dict[str, FileTensor]
    aliases: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Zero:
    """A checkpoint. Nothing of its tensors is in memory until it is read.

    stage: 1, 2 or 3. world: ranks. shapes, pieces: of each trained parameter by name. vectors: by
    array, rank and group. steps: of each group; None where the checkpoint does not say.
    """

    directory: str
    stage: int
    world: int
    model: Model
    shapes: Shapes
    pieces: Pieces
    vectors: dict[str, list[list[FileTensor]]]
    steps: list[int | None]

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of what there is of every trained parameter; the first is "fp32"."""
        return tuple(self.vectors)

    def read(self, name: str, array: str = MASTER) -> torch.Tensor:
        """A new fp32 CPU tensor of a trained parameter's shape."""
        vectors = self.vectors[array]
        parts = [vectors[p.rank][p.group].read_flat(p.start, p.count) for p in self.pieces[name]]
        return _joined(parts).float().reshape(self.shapes[name])

    def read_frozen(self, name: str) -> torch.Tensor:
        """A new CPU tensor of a frozen parameter's shape, of its dtype in the file."""
        shape, tensors = self.model.frozen[name]
        flat = _joined([tensor.read().reshape(-1) for tensor in tensors])
        return flat[: math.prod(shape)].reshape(shape)

    def step(self, name: str) -> int | None:
        """Steps that a trained parameter has taken, if the checkpoint says."""
        pieces = self.pieces[name]
        return self.steps[pieces[0].group] if pieces else None


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts) if parts else torch.empty(0)


def open_zero(directory: str | os.PathLike[str], tag: str | None = None) -> Zero:
    """Reads a checkpoint's files, without their tensors.

    directory: holds `latest` and the tags' folders. tag: the latest by default. Raises
    CheckpointError naming the file; a checkpoint is read as a whole or refused as a whole.
    """
    files = read_zero_files(os.fspath(directory), tag)
    states = [(path, field(path, value, OPTIMIZER, dict)) for path, value in files.optimizers]
    stage = stage_of(*states[0])
    check_world(states)
    if (stage == 3) != files.model_per_rank:
        raise CheckpointError(files.directory, f"has model states of another stage than {stage}")
    model = _model(files, stage)
    vectors = vectors_of(states, stage)
    return Zero(
        directory=files.directory,
        stage=stage,
        world=len(states),
        model=model,
        shapes={name: shape for group in model.groups for name, shape in group.items()},
        pieces=_pieces(states[0], stage, model.groups, vectors[MASTER]),
        vectors=vectors,
        steps=steps_of(states[0][1], stage, len(vectors[MASTER][0])),
    )


def _pieces(
    first: RankState, stage: int, groups: list[Shapes], masters: list[list[FileTensor]]
) -> Pieces:
    path, state = first
    lengths = [[vector.numel for vector in rank] for rank in masters]
    if stage == 3:
        return cut_stage_3(path, groups, lengths)
    if len(groups) != len(lengths[0]):
        raise CheckpointError(path, f"has {len(lengths[0])} groups, the model {len(groups)}")
    paddings = paddings_of(path, state, [len(group) for group in groups])
    return cut_stage_1(path, groups, lengths, paddings)


def _model(files: ZeroFiles, stage: int) -> Model:
    path, model = files.models[0]
    groups = _groups(path, model)
    trained = list(itertools.chain(*groups))
    buffers = _buffers(path, model)
    frozen = _frozen(files, stage)
    aliases = _aliases(path, model, {*trained, *frozen})
    if stage == 1:
        frozen = _rest(path, model, {*trained, *buffers, *aliases})
    counts = Counter([*trained, *frozen, *buffers, *aliases])
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise CheckpointError(path, f"has two tensors {shown(twice[0])}")
    return Model(groups, frozen, buffers, aliases)


def _groups(path: str, model: dict[Any, Any]) -> list[Shapes]:
    groups = []
    for group in field(path, model, "param_shapes", list):
        if not isinstance(group, dict):
            raise CheckpointError(path, "param_shapes is no list of dicts")
        named = {parameter_name(path, name): shape for name, shape in group.items()}
        groups.append({name: shape_of(path, name, shape) for name, shape in named.items()})
    return groups


def _frozen(files: ZeroFiles, stage: int) -> Frozen:
    path, model = files.models[0]
    if not model.get("frozen_param_shapes"):
        return {}
    found: Frozen = {}
    for key, value in field(path, model, "frozen_param_shapes", dict).items():
        name = parameter_name(path, key)
        shape = shape_of(path, name, value)
        tensors = []
        for rank_path, rank_model in files.models:
            fragments = field(rank_path, rank_model, "frozen_param_fragments", dict)
            tensors.append(field(rank_path, fragments, name, FileTensor))
        count = sum(tensor.numel for tensor in tensors)
        if count < math.prod(shape) or (stage < 3 and count != math.prod(shape)):
            raise CheckpointError(path, f"the frozen {shown(name)} has {count} elements")
        found[name] = (shape, tuple(tensors))
    return found


def _rest(path: str, model: dict[Any, Any], known: set[str]) -> Frozen:
    """Frozen parameters of stage 1: DeepSpeed saves them in the module alone."""
    module = field(path, model, "module", dict)
    rest = [parameter_name(path, name) for name in module if name not in known]
    tensors = {name: field(path, module, name, FileTensor) for name in rest}
    return {name: (tensor.shape, (tensor,)) for name, tensor in tensors.items()}


def _buffers(path: str, model: dict[Any, Any]) -> dict[str, FileTensor]:
    """Saved buffers; non-persistent buffers are not part of the module's values."""
    module = field(path, model, "module", dict)
    names = [parameter_name(path, name) for name in field(path, model, "buffer_names", list)]
    return {name: field(path, module, name, FileTensor) for name in names if name in module}


def _aliases(path: str, model: dict[Any, Any], known: set[str]) -> dict[str, str]:
    """Names without a tensor of their own; a parameter without elements looks shared."""
    shared = model.get("shared_params")
    if not shared:
        return {}
    found = {}
    for alias, name in field(path, model, "shared_params", dict).items():
        if isinstance(name, str) and name in known and alias not in known:
            found[parameter_name(path, alias)] = name
    return found
