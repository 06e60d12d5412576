"""YAML of what JSON can hold, as `ballastctl -o yaml` writes it.

Comes from: __main__. Goes to: stdout. Texts keep their JSON quotes, which YAML reads alike.
"""

from __future__ import annotations

import json
from typing import Any


# Plain words that a reader of YAML takes for something else than a text.
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def yaml_of(value: Any) -> str:
    """Block style, without a newline at its end. value: what json.loads gives."""
    return "\n".join(_lines(value))


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict) and value:
        return [line for key, one in value.items() for line in _below(f"{_key(key)}:", one)]
    if isinstance(value, list) and value:
        return [line for one in value for line in _item(one)]
    return [json.dumps(value)]


def _below(head: str, value: Any) -> list[str]:
    if value and isinstance(value, dict | list):
        return [head, *("  " + line for line in _lines(value))]
    return [f"{head} {json.dumps(value)}"]


def _item(value: Any) -> list[str]:
    first, *rest = _lines(value)
    return ["- " + first, *("  " + line for line in rest)]


def _key(key: str) -> str:
    plain = key.isidentifier() and key.isascii() and key.lower() not in _WORDS
    return key if plain else json.dumps(key)
