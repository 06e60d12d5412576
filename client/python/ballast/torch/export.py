"""Real tensors out of the service, in the shape of the torch optimizer's state_dict.

Comes from: ballast.torch.service_optimizer. Goes to: checkpoints, torch.optim.
"""

from __future__ import annotations

from typing import Any

import torch

from ballast.session import Session
from ballast.torch.kind import Kind
from ballast.torch.manifest import Manifest, warn_of_order


def export(
    session: Session,
    manifest: Manifest,
    param_groups: list[dict[str, Any]],
    kind: Kind,
    keys: tuple[str, ...],
) -> dict:
    """{"state": {i: {"step", and the job's arrays}}, "param_groups", "names"}.

    keys: the names of the arrays, in the service's order. i: position over all groups' parameters,
    as torch counts; frozen ones have no entry. Tensors are new, fp32, on the CPU, of the
    parameter's shape; "step" is a one-element fp32 tensor. load_state_dict of the kind in
    torch.optim accepts it ("master" is kept and ignored there).
    Warns when names are missing: without them only the order says which tensor is which.
    """
    warn_of_order(manifest.entries, "identifies them in this export", "the optimizer")
    arrays = {
        key: [torch.empty(e.shape, dtype=torch.float32, device="cpu") for e in manifest.entries]
        for key in keys
    }
    left = [e.left for e in manifest.entries]
    pointers = [[0 if out else t.data_ptr() for out, t in zip(left, arrays[key])] for key in keys]
    steps = session.fetch_state(pointers, keep=arrays)
    position = {}
    for group in param_groups:
        for p in group["params"]:
            position[id(p)] = len(position)
    state, names = {}, {}
    for i, entry in enumerate(manifest.entries):
        index = position.get(id(entry.param))
        if index is None:  # It has left the groups.
            continue
        names[index] = entry.name
        group = param_groups[entry.torch_group]
        state[index] = kind.torch_state(steps[i], {key: arrays[key][i] for key in keys}, group)
    order = sorted(state)
    packed = [{**g, "params": [position[id(p)] for p in g["params"]]} for g in param_groups]
    return {
        "state": {i: state[i] for i in order},
        "param_groups": packed,
        "names": {i: names[i] for i in order},
    }


def one(
    session: Session, manifest: Manifest, param: torch.Tensor, keys: tuple[str, ...], wanted: str
) -> torch.Tensor:
    """The array `wanted` of one parameter: a new fp32 tensor on the CPU, of its shape.

    keys: as for export(), `wanted` among them. param: one of the manifest's. The servers send that
    array of all parameters, 4 bytes each.
    """
    value = torch.empty(param.shape, dtype=torch.float32, device="cpu")
    here = [value.data_ptr() if entry.param is param else 0 for entry in manifest.entries]
    left_out = [0] * len(here)
    if value.numel():
        session.fetch_state([here if key == wanted else left_out for key in keys], keep=value)
    return value
