"""Which parameter, and which group, of an optimizer each one of a saved source belongs to.

Comes from: ballast.torch.load. Goes to: nothing. By name where the source has names: "names" as
export_state() writes them, "param_names" of torch's groups, or names in place of numbers, as
torch.distributed.checkpoint and FSDP write them. Else by position, as in torch. What cannot be
matched is refused: a moment at another parameter would train wrongly without a word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from ballast.errors import BadArgument
from ballast.torch.naming import Naming

_NAME_OF_POSITION = re.compile(r"g\d+\.p\d+")
# Prefixes that wrappers of modules put in front of names.
_PREFIXES = ("_orig_mod.", "module.")
# Entries of a saved group other than hyper-parameters.
_NOT_HYPER = ("params", "param_names")
_BUILD_NAMED = "build it from model.named_parameters(), or pass model="

Group = dict[str, Any]
Pairs = list[tuple[torch.Tensor, Mapping[str, Any]]]


def match(
    source: Mapping[str, Any], param_groups: list[Group], naming: Naming
) -> tuple[Pairs, list[tuple[int, Group]]]:
    """(parameter, its saved state), and per group of param_groups (saved group's number, values).

    source: with "state" and "param_groups". A group that the source lacks has (-1, {}). Values are
    its hyper-parameters, unchecked. Raises BadArgument, naming the parameter or group.
    """
    saved = _checked_groups(source["param_groups"])
    state = source["state"]
    if not isinstance(state, Mapping) or not all(isinstance(s, Mapping) for s in state.values()):
        raise BadArgument("load_export(): \"state\" must be a dict of dicts, one per parameter")
    said = _said_names(source, saved)
    names = _names(source, said)
    if names is None:
        by_index = _positioned(saved, param_groups)
        _refuse_contradiction(said, by_index, param_groups, naming)
        pairs = _pairs(state, by_index, {})
        groups = [(g, _values(group)) for g, group in enumerate(saved)]
        return pairs, groups + [(-1, {})] * (len(param_groups) - len(saved))
    ours = _ours(param_groups, naming)
    by_index = {index: ours[name] for index, name in names.items() if name in ours}
    return _pairs(state, by_index, names), _groups_by_name(saved, param_groups, by_index)


def _checked_groups(saved: Any) -> list[Mapping[str, Any]]:
    if not isinstance(saved, list) or not all(
        isinstance(g, Mapping) and isinstance(g.get("params"), list) for g in saved
    ):
        raise BadArgument(
            "load_export(): \"param_groups\" must be a list of dicts with \"params\", a list"
        )
    seen: set[int | str] = set()
    for g, group in enumerate(saved):
        where = f"load_export(): param_groups[{g}] of the source"
        for index in group["params"]:
            if isinstance(index, bool) or not isinstance(index, (int, str)):
                raise BadArgument(
                    f"{where} has {type(index).__name__} in \"params\"; they must be numbers or "
                    "names, as state_dict() has them"
                )
            if index in seen:
                raise BadArgument(f"{where} has parameter {index!r}, which it has had before")
            seen.add(index)
        names = group.get("param_names")
        if names is not None and (
            not isinstance(names, list) or len(names) != len(group["params"])
        ):
            raise BadArgument(
                f"{where} has {len(group['params'])} parameters; \"param_names\" must be a list of "
                "as many names"
            )
    return saved


def _said_names(source: Mapping[str, Any], saved: list[Mapping[str, Any]]) -> dict[Any, str]:
    # Saved index -> name, of those that the source names.
    said = source.get("names")
    if said is not None and not isinstance(said, Mapping):
        raise BadArgument("load_export(): \"names\" must be a dict of names by index")
    names: dict[Any, str] = {}
    for group in saved:
        given = group.get("param_names") or group["params"]
        names.update(
            (index, name) for index, name in zip(group["params"], given) if isinstance(name, str)
        )
    names.update(said or {})
    return names


def _names(source: Mapping[str, Any], names: dict[Any, str]) -> dict[Any, str] | None:
    # The names of all. None when the source knows none, or calls some by their position.
    if not names or any(_NAME_OF_POSITION.fullmatch(str(name)) for name in names.values()):
        return None
    unnamed = [index for index in source["state"] if index not in names]
    if unnamed:
        raise BadArgument(
            f"load_export(): the source names some of its parameters, but not {unnamed[0]!r}, "
            "which has state; give names of all, or of none"
        )
    return names


def _refuse_contradiction(
    said: Mapping[Any, str], by_index: dict[Any, torch.Tensor], ours: list[Group], naming: Naming
) -> None:
    # By position, but some parameters have names in the source: these must be theirs here, too.
    here = {
        id(parameter): naming.of(group, g, i)
        for g, group in enumerate(ours)
        for i, parameter in enumerate(group["params"])
    }
    for index, parameter in by_index.items():
        theirs = said.get(index)
        name, aliases, named = here[id(parameter)]
        known = theirs is not None and not _NAME_OF_POSITION.fullmatch(theirs)
        if known and named and theirs not in (name, *aliases):
            raise BadArgument(
                f"load_export(): the source names only some of its parameters, so that they are "
                f"matched by position, and there its {theirs!r} meets {name!r} of this optimizer; "
                "give names of all, or build the optimizer over the same parameters in the same "
                "order"
            )


def _ours(param_groups: list[Group], naming: Naming) -> dict[str, torch.Tensor]:
    ours: dict[str, torch.Tensor] = {}
    for g, group in enumerate(param_groups):
        for i, parameter in enumerate(group["params"]):
            name, aliases, named = naming.of(group, g, i)
            if not named:
                raise BadArgument(
                    "load_export(): the source says the names of its parameters, and this "
                    f"optimizer does not know that of param_groups[{g}][\"params\"][{i}]; "
                    f"{_BUILD_NAMED}. To go by position, leave the names out of the source"
                )
            ours.update(dict.fromkeys((name, *aliases), parameter))
    return ours


def _pairs(
    state: Mapping[Any, Mapping[str, Any]],
    by_index: dict[Any, torch.Tensor],
    names: Mapping[Any, str],
) -> Pairs:
    found: dict[int, Any] = {}
    pairs = []
    for index, saved in state.items():
        what = names.get(index, index)
        if index not in by_index:
            prefix = next((p for p in _PREFIXES if p in str(what)), "")
            hint = f". Wrappers add {prefix!r} to names; take it out of the source's" * bool(prefix)
            raise BadArgument(
                f"load_export(): the source has state of parameter {what!r}, which this optimizer "
                f"does not have; build it over the same parameters{hint}"
            )
        parameter = by_index[index]
        if id(parameter) in found:
            raise BadArgument(
                f"load_export(): the source has a state of {found[id(parameter)]!r} and one of "
                f"{what!r}, which are one parameter of this optimizer"
            )
        found[id(parameter)] = what
        pairs.append((parameter, saved))
    return pairs


def _positioned(saved: list[Mapping[str, Any]], ours: list[Group]) -> dict[Any, torch.Tensor]:
    if len(saved) > len(ours):
        raise BadArgument(
            f"load_export(): the source has {len(saved)} parameter groups, this optimizer "
            f"{len(ours)}; add the missing ones with add_param_group() first"
        )
    by_index: dict[Any, torch.Tensor] = {}
    for g, (theirs, group) in enumerate(zip(saved, ours)):
        if len(theirs["params"]) != len(group["params"]):
            raise BadArgument(
                f"load_export(): param_groups[{g}] has {len(theirs['params'])} parameters in the "
                f"source and {len(group['params'])} in this optimizer; they are matched by "
                "position, so build it over the same parameters in the same order"
            )
        by_index.update(zip(theirs["params"], group["params"]))
    return by_index


def _values(group: Mapping[str, Any]) -> Group:
    return {key: value for key, value in group.items() if key not in _NOT_HYPER}


def _groups_by_name(
    saved: list[Mapping[str, Any]], ours: list[Group], by_index: dict[Any, torch.Tensor]
) -> list[tuple[int, Group]]:
    # A group gets the hyper-parameters that its parameters have in the source, wherever they are.
    group_of = {
        id(by_index[index]): g
        for g, group in enumerate(saved)
        for index in group["params"]
        if index in by_index
    }
    found: list[tuple[int, Group]] = []
    for g, group in enumerate(ours):
        theirs = sorted({group_of[id(p)] for p in group["params"] if id(p) in group_of})
        if not theirs:
            found.append((-1, {}))
            continue
        first = _values(saved[theirs[0]])
        for other in theirs[1:]:
            values = _values(saved[other])
            differ = sorted(k for k in {*first, *values} if first.get(k) != values.get(k))
            if differ:
                raise BadArgument(
                    f"load_export(): param_groups[{g}] of this optimizer has parameters of the "
                    f"source's groups {theirs[0]} and {other}, whose {differ[0]} differ; build it "
                    "over the same groups"
                )
        found.append((theirs[0], first))
    return found
