"""States of random generators as JSON-able values and back, for opt.user_state.

Comes from: user code. Knows torch.Generator, numpy's Generator and RandomState, and random.Random.
No pickle: a state is numbers and text, and only a generator of the same kind takes it.
"""

from __future__ import annotations

import array
import base64
import random
import sys
from typing import Any

import torch

from ballast.errors import BadArgument


def random_state(*generators: Any) -> list[dict[str, Any]]:
    """The states of `generators`, in their order; without any, of the global generators.

    Those are torch's for the CPU, Python's `random`, and numpy's if numpy is imported; together
    about 14 KB of JSON. Raises BadArgument for anything else.
    """
    return [_pack(g) for g in generators or _global_generators()]


def set_random_state(state: list[dict[str, Any]], *generators: Any) -> None:
    """Puts `generators`, or the global ones, into the states that random_state() gave.

    Raises BadArgument when number or kinds of generators are not those of the state, or when the
    state is damaged.
    """
    into = list(generators or _global_generators())
    kinds, given = [_kind(g) for g in into], [s.get("kind") for s in state]
    if kinds != given:
        raise BadArgument(f"the random state is of {given}, the generators are {kinds}")
    for generator, packed in zip(into, state, strict=True):
        try:
            _unpack(generator, packed)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise BadArgument(f"a random state of {packed['kind']} is damaged: {error}") from error


class _PythonsOwn:
    # The functions of the module `random`, with the methods of a random.Random.
    getstate = staticmethod(random.getstate)
    setstate = staticmethod(random.setstate)


class _NumpysOwn:
    # The functions of numpy.random, with the methods of a RandomState.
    @staticmethod
    def get_state(legacy: bool) -> dict[str, Any]:
        return sys.modules["numpy"].random.get_state(legacy=legacy)

    @staticmethod
    def set_state(state: dict[str, Any]) -> None:
        sys.modules["numpy"].random.set_state(state)


def _global_generators() -> list[Any]:
    generators = [torch.default_generator, _PythonsOwn]
    return [*generators, _NumpysOwn] if "numpy" in sys.modules else generators


def _kind(generator: Any) -> str:
    if isinstance(generator, torch.Generator):
        return "torch.Generator"
    if generator is _PythonsOwn or isinstance(generator, random.Random):
        return "random.Random"
    numpy = sys.modules.get("numpy")
    if generator is _NumpysOwn or (numpy and isinstance(generator, numpy.random.RandomState)):
        return "numpy.random.RandomState"
    if numpy and isinstance(generator, numpy.random.Generator):
        return "numpy.random.Generator"
    raise BadArgument(
        f"a {type(generator).__name__} is no generator that is known here; torch.Generator, "
        "random.Random, numpy.random.Generator and numpy.random.RandomState are"
    )


def _pack(generator: Any) -> dict[str, Any]:
    kind = _kind(generator)
    if kind == "torch.Generator":
        return {"kind": kind, "state": _to_text(generator.get_state().numpy().tobytes())}
    if kind == "random.Random":
        version, words, gauss = generator.getstate()
        text = _to_text(array.array("I", words).tobytes())
        return {"kind": kind, "version": version, "words": text, "gauss": gauss}
    if kind == "numpy.random.RandomState":
        return {"kind": kind, "state": _pack_arrays(generator.get_state(legacy=False))}
    return {"kind": kind, "state": _pack_arrays(generator.bit_generator.state)}


def _unpack(generator: Any, packed: dict[str, Any]) -> None:
    kind = packed["kind"]
    if kind == "torch.Generator":
        state = torch.frombuffer(bytearray(_from_text(packed["state"])), dtype=torch.uint8)
        generator.set_state(state)
    elif kind == "random.Random":
        words = array.array("I", _from_text(packed["words"]))
        generator.setstate((packed["version"], tuple(words), packed["gauss"]))
    elif kind == "numpy.random.RandomState":
        generator.set_state(_unpack_arrays(packed["state"]))
    else:
        generator.bit_generator.state = _unpack_arrays(packed["state"])


def _to_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _from_text(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _pack_arrays(value: Any) -> Any:
    # numpy's states are dicts of numbers, text and arrays of integers.
    if isinstance(value, dict):
        return {key: _pack_arrays(item) for key, item in value.items()}
    if hasattr(value, "tobytes") and getattr(value, "shape", ()):
        return {"dtype": value.dtype.str, "data": _to_text(value.tobytes())}
    return value.item() if hasattr(value, "item") else value


def _unpack_arrays(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value.keys() == {"dtype", "data"}:
        numpy = sys.modules["numpy"]
        return numpy.frombuffer(_from_text(value["data"]), dtype=value["dtype"]).copy()
    return {key: _unpack_arrays(item) for key, item in value.items()}
