"""The steps of DeepNVMe's tutorial, on small tensors: blocking, non-blocking, parallel, pinned.

After DeepSpeed's docs/_tutorials/deepnvme.md, with the import changed and CPU tensors.
"""

from __future__ import annotations

import os

import pytest
import torch

import ballast
from ballast.ops.op_builder import AsyncIOBuilder

BYTES = 4 << 20


def test_blocking_file_write(folder):
    h = AsyncIOBuilder().load().aio_handle()
    t = torch.full((BYTES,), 7, dtype=torch.uint8)
    assert h.sync_pwrite(t, f"{folder}/test.pt") == 1
    assert os.path.getsize(f"{folder}/test.pt") == BYTES


def test_non_blocking_file_write(folder):
    h = AsyncIOBuilder().load().aio_handle()
    t = torch.full((BYTES,), 7, dtype=torch.uint8)
    assert h.async_pwrite(t, f"{folder}/test.pt") == 0
    assert h.wait() == 1
    t += 1  # after wait(): the file keeps the written bytes
    assert set((folder / "test.pt").read_bytes()) == {7}


def test_parallel_file_write_and_read(folder):
    h = AsyncIOBuilder().load().aio_handle(intra_op_parallelism=4)
    t = torch.randint(0, 256, (BYTES,), dtype=torch.uint8)
    assert h.async_pwrite(t, f"{folder}/test.pt") == 0
    assert h.wait() == 1
    read = torch.empty(BYTES, dtype=torch.uint8)
    assert h.async_pread(read, f"{folder}/test.pt") == 0
    assert h.wait() == 1
    assert torch.equal(read, t)


def test_pinned_tensors(folder):
    h = AsyncIOBuilder().load().aio_handle()
    t = h.new_cpu_locked_tensor(BYTES, torch.empty(0, dtype=torch.uint8))
    assert h.is_pinned(t)
    t.fill_(9)
    assert h.async_pwrite(t, f"{folder}/test.pt") == 0
    assert h.wait() == 1
    h.free_cpu_locked_tensor(t)
    assert set((folder / "test.pt").read_bytes()) == {9}


def test_a_model_as_one_file_of_tensors(folder):
    h = AsyncIOBuilder().load().aio_handle(block_size=1 << 16, queue_depth=16)
    parameters = [torch.randn(size) for size in (1000, 1, 4097, 1 << 18)]
    offset, places = 0, []
    for parameter in parameters:
        assert h.async_pwrite(parameter, f"{folder}/model.bin", offset) == 0
        places.append(offset)
        offset += parameter.nbytes
    assert h.wait() == len(parameters)
    assert os.path.getsize(f"{folder}/model.bin") == offset
    read = [torch.empty_like(parameter) for parameter in parameters]
    for tensor, place in zip(read, places, strict=True):
        h.async_pread(tensor, f"{folder}/model.bin", place)
    assert h.wait() == len(parameters)
    assert all(torch.equal(a, b) for a, b in zip(read, parameters, strict=True))


def test_gds_names_the_other_handle():
    from ballast.ops.op_builder import GDSBuilder

    with pytest.raises(ballast.Unsupported, match="aio_handle"):
        GDSBuilder().load().gds_handle()
