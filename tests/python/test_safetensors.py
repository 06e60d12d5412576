"""Our reader and writer of safetensors files against the format's own library, both ways."""

from __future__ import annotations

import json
import os
import struct
import subprocess

import pytest
import safetensors
import torch
from serving import REPO
from safetensors.torch import load_file, save_file

COPY = REPO / "build" / "release" / "tests" / "safetensors_copy"

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.float8_e5m2, torch.float8_e4m3fn, torch.int16,
    torch.uint16, torch.float16, torch.bfloat16, torch.int32, torch.uint32, torch.float32,
    torch.float64, torch.int64, torch.uint64)


def copy(source, target):
    """Reads source with our reader and writes target with our writer; returns the output."""
    binary = os.environ.get("BALLAST_TEST_SAFETENSORS_COPY", str(COPY))
    if not os.path.exists(binary):
        pytest.skip("safetensors_copy is not built")
    return subprocess.run([binary, source, target], capture_output=True, text=True, timeout=60)


def tensors():
    """One tensor of each dtype, of random bits, and the odd shapes."""
    generator = torch.Generator().manual_seed(1)
    result = {}
    for dtype in DTYPES:
        bits = torch.randint(0, 2 if dtype == torch.bool else 256, (5, 3, dtype.itemsize),
                             generator=generator, dtype=torch.uint8)
        result[f"layers.0.{dtype}"] = bits.view(dtype).reshape(5, 3)
    result["scalar"] = torch.tensor(1.5)
    result["empty"] = torch.zeros(3, 0)
    result['odd " \\ \n é 😀'] = torch.arange(100_000, dtype=torch.float32)
    return result


def bits(tensor):
    """The bytes of a tensor: NaNs are compared, too."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def test_copies_are_readable_by_the_reference_library(tmp_path):
    want = tensors()
    save_file(want, tmp_path / "a", metadata={"format": "pt", "odd": 'a "b"\n é'})
    done = copy(tmp_path / "a", tmp_path / "b")
    assert (done.returncode, done.stderr) == (0, "")
    got = load_file(tmp_path / "b")
    assert set(got) == set(want)
    for name, tensor in want.items():
        assert got[name].dtype == tensor.dtype and got[name].shape == tensor.shape, name
        assert bits(got[name]) == bits(tensor), name
    with safetensors.safe_open(tmp_path / "b", "pt") as opened:
        assert opened.metadata() == {"format": "pt", "odd": 'a "b"\n é'}


def test_data_of_our_files_begins_on_a_page(tmp_path):
    save_file({"w": torch.zeros(3)}, tmp_path / "a")
    assert copy(tmp_path / "a", tmp_path / "b").returncode == 0
    head = (tmp_path / "b").read_bytes()
    assert struct.unpack("<Q", head[:8]) == (4096 - 8,)
    assert len(head) == 4096 + 12


@pytest.mark.parametrize("entry", [
    {"dtype": "U8", "shape": [4], "data_offsets": [0, 3]},
    {"dtype": "U8", "shape": [3], "data_offsets": [1, 4]},
    {"dtype": "U8", "shape": [5], "data_offsets": [0, 5]},
    {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
    {"dtype": "U8", "shape": [2**63, 2], "data_offsets": [0, 4]},
    {"dtype": "Q9", "shape": [4], "data_offsets": [0, 4]},
    {"dtype": "U8", "shape": [4]},
    {"dtype": "U8", "shape": [-4], "data_offsets": [0, 4]},
    {"dtype": "U8", "shape": [4.0], "data_offsets": [0, 4]},
], ids=str)
def test_what_their_reader_refuses_we_refuse(tmp_path, entry):
    header = json.dumps({"w": entry}).encode()
    (tmp_path / "a").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(safetensors.SafetensorError):
        load_file(tmp_path / "a")
    done = copy(tmp_path / "a", tmp_path / "b")
    assert done.returncode == 1 and "INVALID_ARGUMENT" in done.stderr
    assert not list(tmp_path.glob("b*"))
