"""A script's state saved with each round for continuing from there, to bytes and back.

Comes from: ballast.torch.rounds (opt.user_state). Goes to: the servers, which keep it with the
round and do not look into it. The first byte says what follows: 0, raw bytes; 1, JSON in
UTF-8; 2, how far load_export() has come (Loading, 16 bytes and one), and then one of the others or
nothing; 3, the position of training_data (Place, three integers of 8 bytes, little-endian), and
then 0, 1 or nothing. No pickle: a server's answer is data, never code. JSON has text keys only; a
dict with others, as some schedulers have in their state, becomes {"__pairs__": [[key, value],
...]}, and a Counter, which they have too, {"__counter__": [[key, count], ...]}.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from typing import Any, NamedTuple

from ballast.errors import BadArgument

# The servers' limit, of the encoded form (ballast::client::kUserStateBytesMax).
BYTES_MAX = 65536
_BYTES, _JSON, _LOADING, _PLACE = b"\0", b"\1", b"\2", b"\3"
_PLACE_BODY = struct.Struct("<QQq")
_PLACE_BYTES = len(_PLACE) + _PLACE_BODY.size
_FINGERPRINT_BYTES = 16
_PAIRS, _COUNTER = "__pairs__", "__counter__"


class Loading(NamedTuple):
    """Progress of load_export() in all its rounds but the last: its source, and the planes
    loaded."""

    fingerprint: bytes
    planes: int


class Place(NamedTuple):
    """The position in the training_data of ballast.deepspeed.

    epoch: passes over the data before this one. position: samples of all trainers that this pass
    has given out. order: what set_epoch() had said when it began.
    """

    epoch: int
    position: int
    order: int


def encode_place(encoded: bytes, place: Place) -> bytes:
    """The result of encode() with `place` added. Raises BadArgument when the two are too large
    together."""
    if _PLACE_BYTES + len(encoded) > BYTES_MAX:
        raise BadArgument(
            f"opt.user_state takes {len(encoded)} bytes, the limit next to the position of "
            f"training_data is {BYTES_MAX - _PLACE_BYTES}; keep a position there, not the data"
        )
    return _PLACE + _PLACE_BODY.pack(*place) + encoded


def place_of(encoded: bytes) -> Place | None:
    """What encode_place() was given, also during a load; None without it."""
    rest = _behind_loading(encoded)
    if rest[:1] != _PLACE or len(rest) < _PLACE_BYTES:
        return None
    return Place(*_PLACE_BODY.unpack_from(rest, len(_PLACE)))


def _behind_loading(encoded: bytes) -> bytes:
    return encoded if loading_of(encoded) is None else encoded[2 + _FINGERPRINT_BYTES :]


def encode_loading(encoded: bytes, loading: Loading) -> bytes:
    """The result of encode() with `loading` added. Raises BadArgument when the two are too large
    together."""
    head = _LOADING + loading.fingerprint + bytes([loading.planes])
    if len(head) + len(encoded) > BYTES_MAX:
        raise BadArgument(
            f"opt.user_state takes {len(encoded)} bytes, the limit during load_export() is "
            f"{BYTES_MAX - len(head)}; keep a position there, not the data"
        )
    return head + encoded


def loading_of(encoded: bytes) -> Loading | None:
    """The `loading` given to encode_loading(); None for bytes of encode()."""
    if encoded[:1] != _LOADING or len(encoded) < 2 + _FINGERPRINT_BYTES:
        return None
    return Loading(encoded[1 : 1 + _FINGERPRINT_BYTES], encoded[1 + _FINGERPRINT_BYTES])


def encode(value: Any) -> bytes:
    """`value` for the wire; b"" for None.

    Raises BadArgument for a value neither bytes-like nor JSON, and beyond BYTES_MAX bytes.
    """
    if value is None:
        return b""
    if isinstance(value, (bytes, bytearray, memoryview)):
        encoded = _BYTES + bytes(value)
    else:
        try:
            encoded = _JSON + json.dumps(_without_odd_keys(value), separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise BadArgument(
                f"opt.user_state cannot be kept: {error}. Give bytes, or what JSON can hold (dict, "
                "list, str, int, float, bool, None); "
                "ballast.torch.random_state() makes that of random generators"
            ) from None
    if len(encoded) > BYTES_MAX:
        raise BadArgument(
            f"opt.user_state takes {len(encoded)} bytes, the limit is {BYTES_MAX}; keep a position "
            "there, not the data"
        )
    return encoded


def _without_odd_keys(value: Any) -> Any:
    # JSON would make text of these keys without a word.
    if isinstance(value, dict):
        for key in value:
            if not (key is None or isinstance(key, (str, int, float))):
                raise TypeError(f"a dict has the key {key!r}; keys are text or numbers")
        items = [(key, _without_odd_keys(item)) for key, item in value.items()]
        if isinstance(value, Counter):
            return {_COUNTER: items}
        if all(isinstance(key, str) for key in value) and not value.keys() & {_PAIRS, _COUNTER}:
            return dict(items)
        return {_PAIRS: items}
    if isinstance(value, (list, tuple)):
        return [_without_odd_keys(item) for item in value]
    return value


def _with_odd_keys(value: dict[str, Any]) -> dict[Any, Any]:
    if set(value) == {_COUNTER}:
        return Counter(dict(value[_COUNTER]))
    return dict(value[_PAIRS]) if set(value) == {_PAIRS} else value


def decode(encoded: bytes) -> Any:
    """The value that encode() was given: None, bytes, or JSON's (a tuple comes back as a list).

    Raises BadArgument for bytes that no function here makes.
    """
    has_place = place_of(encoded) is not None
    encoded = _behind_loading(encoded)
    if has_place:
        encoded = encoded[_PLACE_BYTES:]
    if not encoded:
        return None
    if encoded[:1] == _BYTES:
        return encoded[1:]
    try:
        if encoded[:1] != _JSON:
            raise ValueError(f"its first byte is {encoded[0]}")
        return json.loads(encoded[1:], object_hook=_with_odd_keys)
    except (ValueError, TypeError) as error:
        raise BadArgument(
            f"the job's user state was written by another program than this package ({error}); "
            "resume it with the program that began it"
        ) from None
