"""ZeRO checkpoints as DeepSpeed lays them out, made from values, which the tests of readers
compare.

Written from the layout's description, not from the reader.
"""

from __future__ import annotations

import collections
import dataclasses
import math

import torch


@dataclasses.dataclass
class Made:
    """A checkpoint before it is cut: values by name, each [fp32, exp_avg, exp_avg_sq]."""

    stage: int
    world: int
    groups: list
    step: int = 7
    frozen: dict = dataclasses.field(default_factory=dict)
    buffers: dict = dataclasses.field(default_factory=dict)
    shared: dict = dataclasses.field(default_factory=dict)

    def values(self):
        return {name: arrays for group in self.groups for name, arrays in group.items()}


def random_groups(shapes_of_groups, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [
        {name: [torch.randn(shape, generator=generator) for _ in range(3)]
         for name, shape in shapes.items()}
        for shapes in shapes_of_groups
    ]


def padded(flat, multiple):
    return torch.cat([flat, torch.zeros(-flat.numel() % multiple)])


def vectors(made):
    """[array][rank][group] as the ranks have them; elements that the last rank does not save."""
    found, padding = [], []
    for array in range(3):
        ranks = [[] for _ in range(made.world)]
        padding = []
        for group in made.groups:
            flats = [arrays[array].reshape(-1) for arrays in group.values()]
            if made.stage == 3:
                cut = [padded(flat, made.world).chunk(made.world) if flat.numel() else
                       [flat] * made.world for flat in flats]
                rows = [torch.cat([pieces[rank] for pieces in cut]) for rank in range(made.world)]
                padding.append(0)
            else:
                whole = torch.cat(flats)
                rows = padded(whole, 2 * made.world).chunk(made.world)
                padding.append(-whole.numel() % (2 * made.world))
            for rank, row in enumerate(rows):
                ranks[rank].append(row.clone())
        found.append(ranks)
    return found, padding


def optimizer_state(made, rank):
    arrays, padding = vectors(made)
    masters, first, second = (array[rank] for array in arrays)
    state = {index: {"step": made.step, "exp_avg": first[index], "exp_avg_sq": second[index]}
             for index in range(len(made.groups))}
    base = {"state": state, "param_groups": [{"lr": 0.1, "params": [0]}]}
    if made.stage == 3:
        return {"zero_stage": 3, "partition_count": made.world, "fp32_flat_groups": masters,
                "optimizer_state_dict": base}
    if rank == made.world - 1:  # as DeepSpeed trims it, also where the padding is all it has
        masters = [m[: m.numel() - p] for m, p in zip(masters, padding)]
    return {"zero_stage": made.stage, "partition_count": [made.world] * len(made.groups),
            "single_partition_of_fp32_groups": masters, "base_optimizer_state": base,
            "param_alignment_paddings": [[0] * len(group) for group in made.groups]}


def model_state(made, rank):
    shapes = [collections.OrderedDict((name, arrays[0].shape) for name, arrays in group.items())
              for group in made.groups]
    module = {**made.buffers, **{n: a[0].bfloat16() for n, a in made.values().items()}}
    state = {"module": module, "buffer_names": list(made.buffers), "param_shapes": shapes,
             "shared_params": made.shared, "frozen_param_shapes": None,
             "frozen_param_fragments": None, "ds_version": "0.19.8"}
    if made.frozen:
        state["frozen_param_shapes"] = {n: t.shape for n, t in made.frozen.items()}
        state["frozen_param_fragments"] = {n: fragment(made, t, rank)
                                           for n, t in made.frozen.items()}
    return state


def fragment(made, tensor, rank):
    if made.stage < 3:
        return tensor
    flat = tensor.reshape(-1)
    size = math.ceil(flat.numel() / made.world)
    return torch.cat([flat, flat.new_zeros(size * made.world - flat.numel())])[
        rank * size : (rank + 1) * size].clone()


def files_of(made):
    """{file name: the value saved in it}."""
    files = {}
    for rank in range(made.world):
        files[f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"] = {
            "optimizer_state_dict": optimizer_state(made, rank)}
        if made.stage == 3:
            files[f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt"] = model_state(made, rank)
    if made.stage < 3:
        files["mp_rank_00_model_states.pt"] = model_state(made, 0)
    return files


def save(directory, files, tag="step7"):
    """Writes a checkpoint's files and `latest`; returns the directory."""
    (directory / tag).mkdir(parents=True, exist_ok=True)
    (directory / "latest").write_text(tag)
    for name, value in files.items():
        torch.save(value, directory / tag / name)
    return directory
