"""The directory of an engine's checkpoints: DIR/TAG/checkpoint.json, its tensors, and DIR/latest.

Comes from: ballast.deepspeed.checkpoint. Goes to: the disk. Thread safety: one process writes.

checkpoint.json names the files of its tensors and of its weights, and takes its place as a whole,
so that a reader sees the old checkpoint of that tag or the new one. Both are files of torch.save()
that hold a dict of plain tensors; they are read with weights_only, so no code in them runs. The
weights are read only where a job does not bring them. DIR/loading.json is of ballast._rejoin.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ballast.ds_checkpoint.safetensors_file import DTYPES, write_safetensors
from ballast.errors import BadArgument, StorageFailed

FORMAT = 1
LATEST = "latest"
LOADING = "loading.json"
_NAME = "checkpoint.json"
# As the servers want names of snapshots.
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_TENSORS = re.compile(r"(?:tensors|weights)-[0-9a-f]{8}\.pt\Z")
_KEYS = ("job", "snapshot", "round", "counters", "groups", "client_state")


def check_tag(tag: Any) -> str:
    """`tag` as text, or BadArgument when it is no name of a directory and a snapshot."""
    text = str(tag)
    if not _TAG.match(text):
        raise BadArgument(
            f"tag={tag!r}: a tag is 1 to 100 of A-Z a-z 0-9 . _ - and begins with a letter or digit"
        )
    return text


def check_directory(given: Any) -> None:
    """BadArgument for a value that names no directory, such as None and ""."""
    if not isinstance(given, (str, os.PathLike)) or not os.fspath(given):
        raise BadArgument(f"{given!r} is no directory of checkpoints; give its path")


def tags(folder: str) -> list[str]:
    """The checkpoints in a directory, by time."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            path = os.path.join(entry.path, _NAME)
            if _TAG.match(entry.name) and os.path.isfile(path):
                found.append((os.stat(path).st_mtime, entry.name))
    return [name for _, name in sorted(found)]


def latest(folder: str) -> str | None:
    """The tag in DIR/latest, or None where there is no such file."""
    path = os.path.join(folder, LATEST)
    try:
        with open(path, encoding="utf-8") as file:
            return check_tag(file.read(256).strip())
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, BadArgument) as error:
        raise BadArgument(f"{path} does not hold a tag: {error}") from None


def write_latest(folder: str, tag: str) -> None:
    replace(os.path.join(folder, LATEST), lambda part: _write_text(part, tag))


def write(
    folder: str,
    tag: str,
    values: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    weights: Mapping[str, torch.Tensor],
) -> dict[str, Any] | None:
    """Writes DIR/TAG, and returns the checkpoint of that tag that it replaces, or None.

    values: what JSON takes. weights: by their names in the module. Raises StorageFailed when the
    disk refuses, and leaves the old one in its place.
    """
    place = os.path.join(folder, tag)
    make(place)
    before = None
    with contextlib.suppress(BadArgument):
        before = _values(os.path.join(place, _NAME))
    names = {kind: f"{kind}-{secrets.token_hex(4)}.pt" for kind in ("tensors", "weights")}
    for name, held in zip(names.values(), (tensors, weights)):
        replace(os.path.join(place, name), lambda part: torch.save(dict(held), part))
    text = json.dumps({"format": FORMAT, **values, **names})
    replace(os.path.join(place, _NAME), lambda part: _write_text(part, text))
    for other in os.listdir(place):
        if _TENSORS.match(other) and other not in names.values():
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(place, other))
    return before


def read(folder: str, tag: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """(values, tensors) of DIR/TAG. BadArgument for a missing tag lists the existing ones."""
    path = os.path.join(folder, tag, _NAME)
    if not os.path.isfile(path):
        there = ", ".join(tags(folder)) or "none"
        raise BadArgument(f"{folder} has no checkpoint {tag!r}; the tags there are: {there}")
    values = _values(path)
    return values, _tensors(folder, tag, "tensors", values["tensors"])


def read_weights(folder: str, tag: str, values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The trained parameters of DIR/TAG by their names in the module; values: of read().

    BadArgument for a checkpoint of an older version, which has none.
    """
    if "weights" not in values:
        raise BadArgument(
            f"{os.path.join(folder, tag)} has no weights of its own: it was saved by an older "
            "version. Load it with the optimizer's state, and save it again"
        )
    return _tensors(folder, tag, "weights", values["weights"])


def _values(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise BadArgument(f"{path} cannot be read: {error}") from None
    form = values.get("format") if isinstance(values, dict) else None
    if form != FORMAT:
        raise BadArgument(f"{path} has format {form!r}; this version reads {FORMAT}")
    missing = [key for key in (*_KEYS, "tensors") if key not in values]
    if missing:
        raise BadArgument(f"{path} lacks {', '.join(missing)}; it was not written by an engine")
    return values


def _tensors(folder: str, tag: str, key: str, name: Any) -> dict[str, torch.Tensor]:
    path = os.path.join(folder, tag, str(name))
    if not isinstance(name, str) or not _TENSORS.match(name):
        page = os.path.join(folder, tag, _NAME)
        raise BadArgument(f"{page}: {key} is {name!r}, which is no file of a checkpoint")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises its own, pickle's and zip's errors.
        first = str(error).partition("\n")[0]
        raise BadArgument(f"{path} cannot be read: {type(error).__name__}: {first}") from None
    fits = isinstance(found, dict) and all(isinstance(t, torch.Tensor) for t in found.values())
    if not fits:
        raise BadArgument(f"{path} holds something else than a dict of tensors")
    return found


def replace(path: str, write_part: Callable[[str], Any]) -> None:
    """A file that takes the name `path` when all of it is on disk. StorageFailed otherwise.

    write_part: writes the file whose name it is given.
    """
    part = f"{path}.part"
    try:
        write_part(part)
        _flush(part, os.O_RDONLY)
        os.replace(part, path)
        _flush(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
    except (OSError, RuntimeError) as error:  # torch.save() raises RuntimeError for a full disk.
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise StorageFailed(f"{path} cannot be written: {error}") from None


def make(place: str) -> None:
    """Makes a directory, if it is not there. StorageFailed otherwise."""
    try:
        os.makedirs(place, exist_ok=True)
    except OSError as error:
        raise StorageFailed(f"{place} cannot be made: {error}") from None


def write_weights(folder: str, filename: str, state: Mapping[str, torch.Tensor]) -> None:
    """A module's state dict as a file: safetensors if the name says so, else torch.save()'s.

    Raises StorageFailed when the disk refuses, BadArgument for a value that safetensors cannot
    hold.
    """
    path = os.path.join(folder, filename)
    make(os.path.dirname(path) or ".")
    if not path.endswith(".safetensors"):
        replace(path, lambda part: torch.save(dict(state), part))
        return
    for name, value in state.items():
        if not isinstance(value, torch.Tensor) or value.dtype not in DTYPES:
            raise BadArgument(f"{path}: {name} cannot be in a safetensors file")
    tensors = {name: value.detach().cpu() for name, value in state.items()}
    plan = {name: (value.dtype, tuple(value.shape)) for name, value in tensors.items()}
    write_safetensors(path, plan, tensors.items(), {"format": "pt"})


def _write_text(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _flush(path: str, flags: int) -> None:
    opened = os.open(path, flags)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
