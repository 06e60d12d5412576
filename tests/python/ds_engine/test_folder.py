"""The directory of a checkpoint: the format of its files, and when they reach the disk."""

from __future__ import annotations

import json
import os

import pytest
import torch
from ballast.deepspeed import folder
from ballast.errors import BadArgument

VALUES = {"job": "j", "snapshot": "a", "round": 1, "counters": {}, "groups": [], "client_state": {}}


@pytest.mark.parametrize("form", [2, 0, "1", None])
def test_a_folder_of_another_format_is_refused(tmp_path, form):
    folder.write(tmp_path, "a", VALUES, {"t": torch.ones(1)}, {"w": torch.ones(2)})
    assert folder.read(tmp_path, "a")[1]["t"].item() == 1
    page = tmp_path / "a" / "checkpoint.json"
    text = page.read_text()
    page.write_text(json.dumps({**json.loads(text), "format": form}))
    with pytest.raises(BadArgument, match=f"has format {form!r}; this version reads 1"):
        folder.read(tmp_path, "a")
    page.write_text(text)
    assert folder.read(tmp_path, "a")[0]["job"] == "j"


def test_a_file_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace

    def synced(opened):
        place = os.readlink(f"/proc/self/fd/{opened}")
        events.append(("sync", os.path.relpath(place, tmp_path), os.fstat(opened).st_size > 0))
        fsync(opened)

    def named(part, path):
        events.append(("name", os.path.relpath(path, tmp_path)))
        replace(part, path)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", named)
    folder.write(tmp_path, "a", VALUES, {"t": torch.ones(1)}, {"w": torch.ones(2)})
    folder.write_latest(tmp_path, "a")
    values = folder.read(tmp_path, "a")[0]
    files = (f"a/{values['tensors']}", f"a/{values['weights']}", "a/checkpoint.json", "latest")
    expected = []
    for name in files:
        place = os.path.dirname(name) or "."
        expected += [("sync", f"{name}.part", True), ("name", name), ("sync", place, True)]
    assert events == expected


def test_weights_are_read_apart_and_only_from_a_file_of_the_checkpoint(tmp_path):
    folder.write(tmp_path, "a", VALUES, {"t": torch.ones(1)}, {"w": torch.ones(2)})
    values, tensors = folder.read(tmp_path, "a")
    assert list(tensors) == ["t"]
    assert list(folder.read_weights(tmp_path, "a", values)) == ["w"]
    for name in ("../x.pt", "latest", 3):
        with pytest.raises(BadArgument, match="weights is .*, which is no file of a checkpoint"):
            folder.read_weights(tmp_path, "a", {"weights": name})
    with pytest.raises(BadArgument, match="saved by an older version. Load it with the optimizer"):
        folder.read_weights(tmp_path, "a", {})
