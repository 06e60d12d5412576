"""ballast-zero-to-fp32 DIR OUT.safetensors: the weights of a DeepSpeed ZeRO checkpoint.

Comes from: the shell. Goes to: ballast.ds_checkpoint.zero, safetensors_file.
Exit code: 0, or 2 when the checkpoint cannot be read or the file not be written.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence

import torch

from ballast.ds_checkpoint.errors import CheckpointError, shown
from ballast.ds_checkpoint.safetensors_file import DTYPES, Plan, size_of, write_safetensors
from ballast.ds_checkpoint.zero import Zero, open_zero

# Tensors may share bytes of a checkpoint, so a small one could ask for a file without end.
_GROWTH_MAX = 2
_SIZE_FREE = 1 << 30


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="ballast-zero-to-fp32",
        allow_abbrev=False,
        description="Writes the fp32 weights of a DeepSpeed ZeRO checkpoint (stages 1, 2 and 3) as "
        "one safetensors file. Needs no DeepSpeed and runs no code of the checkpoint.",
    )
    p.add_argument("directory", metavar="DIR", help="has `latest` and a folder per tag")
    p.add_argument("out", metavar="OUT.safetensors", help="the file to write")
    p.add_argument("-t", "--tag", help="which checkpoint (the one that DIR/latest names)")
    p.add_argument(
        "--exclude_frozen_parameters",
        "--exclude-frozen-parameters",
        action="store_true",
        help="leave out parameters that are not trained",
    )
    return p


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        zero = open_zero(options.directory, options.tag)
        count = convert(zero, options.out, frozen=not options.exclude_frozen_parameters)
    except CheckpointError as error:
        print(f"ballast-zero-to-fp32: {error.message}", file=sys.stderr)
        return 2
    what = f"{zero.directory}, stage {zero.stage}, {zero.world} ranks"
    print(f"{options.out}: {count} tensors of {what}")
    return 0


def convert(zero: Zero, out: str | os.PathLike[str], *, frozen: bool = True) -> int:
    """Writes weights and buffers of a checkpoint; returns the number of tensors.

    Floats become fp32; integers and bools stay as they are. Other names of tied weights are in the
    metadata, each with the name of its tensor. frozen: whether to include untrained parameters.
    Raises CheckpointError; the file is whole or absent.
    """
    path = os.fspath(out)
    plan = _plan(zero, frozen)
    limit = _GROWTH_MAX * _bytes_in(zero.directory) + _SIZE_FREE
    if size_of(plan) > limit:
        raise CheckpointError(
            zero.directory,
            f"asks for a file of {size_of(plan)} bytes, more than {limit}: twice its own and 1 GiB",
        )
    aliases = {alias: name for alias, name in zero.model.aliases.items() if name in plan}
    write_safetensors(path, plan, _tensors(zero, plan), {**aliases, "format": "pt"})
    return len(plan)


def _plan(zero: Zero, frozen: bool) -> Plan:
    """Buffers, frozen and trained parameters: the order of DeepSpeed's own tool."""
    shapes = {name: (b.dtype, b.shape) for name, b in zero.model.buffers.items()}
    if frozen:
        for name, (shape, tensors) in zero.model.frozen.items():
            shapes[name] = (tensors[0].dtype, shape)
    shapes.update({name: (torch.float32, shape) for name, shape in zero.shapes.items()})
    plan = {}
    for name, (dtype, shape) in shapes.items():
        kept = torch.float32 if dtype.is_floating_point else dtype
        if kept not in DTYPES:
            raise CheckpointError(zero.directory, f"{shown(name)} is {dtype}, which is not written")
        plan[name] = (kept, shape)
    return plan


def _tensors(zero: Zero, plan: Plan) -> Iterator[tuple[str, torch.Tensor]]:
    for name, (dtype, _) in plan.items():
        if name in zero.shapes:
            tensor = zero.read(name)
        elif name in zero.model.frozen:
            tensor = zero.read_frozen(name)
        else:
            tensor = zero.model.buffers[name].read()
        yield name, tensor.to(dtype)


def _bytes_in(directory: str) -> int:
    with os.scandir(directory) as entries:
        return sum(entry.stat().st_size for entry in entries if entry.is_file())


if __name__ == "__main__":
    sys.exit(main())
