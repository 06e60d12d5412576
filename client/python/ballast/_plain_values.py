"""Values of a script as JSON and a dict of tensors, and back. No pickle.

Comes from: ballast.deepspeed.folder. Thread safety: pure functions. What JSON lacks is an object
with one key: {"__tuple__": [...]}, {"__pairs__": [[key, value], ...]} for a dict with other keys
than text, {"__counter__": [[key, count], ...]}, {"__tensor__": "3"} for the tensor of that key,
{"__array__": "3"} for a numpy array, {"__number__": ["int32", 3]} for numpy's scalars, and
{"__namespace__": {...}} for argparse.Namespace.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from ballast.errors import BadArgument

_TUPLE, _PAIRS, _COUNTER, _TENSOR = "__tuple__", "__pairs__", "__counter__", "__tensor__"
_ARRAY, _NUMBER, _NAMESPACE = "__array__", "__number__", "__namespace__"
_MARKS = {_TUPLE, _PAIRS, _COUNTER, _TENSOR, _ARRAY, _NUMBER, _NAMESPACE}
_NUMBERS = "biuf"  # kinds of numpy's dtypes: bool, integers, floats
_SCALARS = (str, int, float, bool, type(None))
DEPTH_MAX = 100


class Packer:
    """Takes values apart. tensors: by key, the tensors of all values so far, on the CPU."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}

    def pack(self, value: Any, where: str, depth: int = 0) -> Any:
        """What json.dumps() takes for `value`.

        where: how an error names it. Numbers, text, None, lists, tuples, dicts with keys of these
        kinds, Counters, argparse.Namespace, dense tensors, and numpy's numbers and arrays of them
        pass. BadArgument names the place of anything else.
        """
        if depth > DEPTH_MAX:
            raise BadArgument(f"{where} is nested deeper than {DEPTH_MAX}, or holds itself")
        if isinstance(value, torch.Tensor):
            return self._tensor(value, where)
        if isinstance(value, _SCALARS):
            return _scalar(value)
        if isinstance(value, dict):
            return self._dict(value, where, depth)
        if isinstance(value, (list, tuple)):
            items = [self.pack(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
            return {_TUPLE: items} if isinstance(value, tuple) else items
        if type(value) is Namespace:
            return {_NAMESPACE: self.pack(vars(value), where, depth + 1)}
        numpy = sys.modules.get("numpy")  # Before its import no value is of it.
        if numpy is not None and isinstance(value, (numpy.generic, numpy.ndarray)):
            return self._of_numpy(value, where)
        raise BadArgument(
            f"{where} is a {type(value).__name__}, which a checkpoint cannot hold: it takes "
            "numbers, text, None, lists, tuples, dicts, Namespaces, tensors and arrays. Save a "
            "state_dict(), vars() or a tensor of it"
        )

    def _of_numpy(self, value: Any, where: str) -> Any:
        kind = value.dtype
        if kind.kind not in _NUMBERS or kind.itemsize > 8 or not kind.isnative:
            raise BadArgument(f"{where} has numpy's dtype {kind}; save bool, int or float numbers")
        if value.ndim == 0 and type(value).__name__ != "ndarray":
            return {_NUMBER: [kind.name, value.item()]}
        return {_ARRAY: self._tensor(torch.from_numpy(value.copy()), where)[_TENSOR]}

    def _tensor(self, value: torch.Tensor, where: str) -> Any:
        if value.layout != torch.strided or value.is_quantized:
            raise BadArgument(f"{where} is a tensor that is not dense; save value.to_dense()")
        key = str(len(self.tensors))
        self.tensors[key] = value.detach().to("cpu", copy=True).contiguous()
        return {_TENSOR: key}

    def _dict(self, value: dict[Any, Any], where: str, depth: int) -> Any:
        for key in value:
            if not isinstance(key, _SCALARS):
                raise BadArgument(f"{where} has the key {key!r}; keys are text or numbers")
        items = [
            [_scalar(key), self.pack(item, f"{where}[{key!r}]", depth + 1)]
            for key, item in value.items()
        ]
        if isinstance(value, Counter):
            return {_COUNTER: items}
        if all(isinstance(key, str) for key in value) and not value.keys() & _MARKS:
            return dict(items)
        return {_PAIRS: items}


def unpack(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The value that pack() was given. Raises ValueError for what pack() does not make."""
    if isinstance(value, list):
        return [unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    mark = next(iter(value)) if len(value) == 1 else None
    if mark == _TENSOR:
        return _found(value[mark], tensors)
    if mark == _ARRAY:
        return _found(value[mark], tensors).numpy()
    if mark == _NUMBER:
        return _number(value[mark])
    if mark == _NAMESPACE:
        return Namespace(**unpack(value[mark], tensors))
    if mark == _TUPLE and isinstance(value[mark], list):
        return tuple(unpack(value[mark], tensors))
    if mark in (_PAIRS, _COUNTER):
        items = {key: unpack(item, tensors) for key, item in value[mark]}
        return Counter(items) if mark == _COUNTER else items
    return {key: unpack(item, tensors) for key, item in value.items()}


def _found(key: Any, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if key not in tensors:
        raise ValueError(f"its tensor {key!r} is missing")
    return tensors[key]


def _number(given: Any) -> Any:
    import numpy

    kind = numpy.dtype(given[0])
    if kind.kind not in _NUMBERS:
        raise ValueError(f"{given[0]!r} is no dtype of a number")
    return kind.type(given[1])


def _scalar(value: Any) -> Any:
    # numpy's numbers are floats and ints, too, of another class.
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return value if type(value) is kind else kind(value)
    return value
