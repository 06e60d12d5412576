"""Names of parameters and their aliases.

Comes from: ballast.torch.service_optimizer. Goes to: ballast.torch.manifest. Names are, in this
order: those of (name, tensor) pairs or "param_names", those found by identity in `model`,
`g<group>.p<position>`.
"""

from __future__ import annotations

from typing import Any

import torch

from ballast.errors import BadArgument, Unsupported, warn


class Naming:
    """Holds the known names; `normalise` every group before torch sees it."""

    def __init__(self, model: torch.nn.Module | None = None) -> None:
        self._model_names: dict[int, list[str]] = {}
        self._aliases: dict[int, list[str]] = {}
        if model is not None:
            if not isinstance(model, torch.nn.Module):
                raise BadArgument(f"model={model!r}: must be a torch.nn.Module, or None")
            for name, parameter in model.named_parameters(remove_duplicate=False):
                self._model_names.setdefault(id(parameter), []).append(name)

    def normalise(self, group: dict[str, Any]) -> dict[str, Any]:
        """A copy of a torch param group in which every tensor occurs once.

        A tensor that occurs again is dropped. Its name is kept as an alias where it has another one
        (tied weights from named_parameters(remove_duplicate=False)); else there is a warning, as
        torch would step it twice. Malformed groups pass unchanged: torch's own add_param_group has
        the error for them.
        """
        params = group.get("params")
        if isinstance(params, (torch.Tensor, set)) or params is None:
            return dict(group)
        if not hasattr(params, "__iter__"):
            raise TypeError(
                f"\"params\" of a parameter group is a {type(params).__name__}; it must be a "
                "tensor or an iterable of tensors or of (name, tensor) pairs"
            )
        params, names = list(params), list(group.get("param_names", ()))
        if names and len(names) != len(params):
            raise BadArgument(
                f"a parameter group has {len(params)} tensors but {len(names)} param_names"
            )
        kept, kept_names, seen, twice = [], [], {}, []
        for i, item in enumerate(params):
            tensor = item[1] if isinstance(item, tuple) and len(item) == 2 else item
            name = item[0] if tensor is not item else names[i] if names else None
            if id(tensor) in seen:
                if name is not None and name != seen[id(tensor)]:
                    self._aliases.setdefault(id(tensor), []).append(name)
                else:
                    twice.append(f"number {i}" if name is None else repr(name))
                continue
            seen[id(tensor)] = name
            kept.append(item)
            kept_names.append(name)
        if twice:
            warn(
                f"a parameter group has parameters more than once, as {', '.join(twice[:5])}: each "
                "is stepped once in a round. torch steps it as often as it is there; pass it once"
            )
        normal = {**group, "params": kept}
        if names:
            normal["param_names"] = kept_names
        return normal

    def refuse_shards(self, groups: list[dict[str, Any]]) -> None:
        """Unsupported, naming it, for a shard among the newest group's trainable parameters."""
        g = len(groups) - 1
        for i, parameter in enumerate(groups[g]["params"]):
            if parameter.requires_grad:
                refuse_shard(parameter, self.of(groups[g], g, i)[0])

    def of(self, group: dict[str, Any], g: int, i: int) -> tuple[str, tuple[str, ...], bool]:
        """(name, aliases, whether the user gave the name) of tensor i of param_groups[g]."""
        parameter = group["params"][i]
        known = list(self._model_names.get(id(parameter), ()))
        if "param_names" in group:
            known.insert(0, group["param_names"][i])
        known += self._aliases.get(id(parameter), ())
        if not known:
            return f"g{g}.p{i}", (), False
        names = tuple(dict.fromkeys(known))
        return names[0], names[1:], True


def refuse_shard(p: torch.Tensor, name: str) -> None:
    """Unsupported, naming the parameter, when this process may have a part of it only.

    FSDP 1 marks its flattened parameters, and with use_orig_params its views of them: both have
    plain types. FSDP 2 and tensor parallelism make DTensors.
    """
    if getattr(p, "_is_flat_param", False):
        what = "a FlatParameter of FSDP"
    elif getattr(p, "_fsdp_flattened", False):
        what = "a view of a FlatParameter of FSDP (use_orig_params)"
    elif any(of.__name__ == "DTensor" for of in type(p).__mro__):
        what = "a DTensor, of FSDP 2 or of tensor parallelism"
    else:
        return
    raise Unsupported(
        f"parameter {name!r} is {what}: this process may hold a shard of it, and Ballast needs "
        "whole parameters; leave the model unsharded, its optimizer takes no memory of the trainers"
    )


# Trainer takes "model" out of the arguments and passes it where an optimizer has its parameters.
_INSTEAD_OF_MODULE = (
    "pass model.parameters(). Under Hugging Face's Trainer pass "
    "optimizer_cls_and_kwargs=ballast.hf.optimizer(...), which gets the model"
)


def check_params(params: Any) -> None:
    """TypeError, with the remedy, for anything but an iterable of parameters, such as a module."""
    is_module = isinstance(params, torch.nn.Module)
    if is_module or not hasattr(params, "__iter__"):
        raise TypeError(
            f"params is a {type(params).__name__}; it must be an iterable of tensors, of "
            "(name, tensor) pairs or of group dicts"
            + (f"; {_INSTEAD_OF_MODULE}" if is_module else "")
        )
