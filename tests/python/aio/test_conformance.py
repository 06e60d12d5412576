"""DeepNVMe's handle: what Ballast's and DeepSpeed's answer alike.

Every expectation is what async_io of DeepSpeed 0.19.8 answers; `pytest -m deepspeed` runs the same
tests against it.
"""

from __future__ import annotations

import importlib
import os
import stat
from pathlib import Path

import pytest
import torch

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int64, torch.float64]
BYTES = 1 << 20


@pytest.fixture(params=["ballast", pytest.param("deepspeed", marks=pytest.mark.deepspeed)])
def module(request):
    """The module async_io of one of the two."""
    builder = importlib.import_module(f"{request.param}.ops.op_builder")
    return builder.AsyncIOBuilder().load()


def random(count: int, dtype: torch.dtype = torch.uint8, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype)


def content(tensor: torch.Tensor) -> bytes:
    return tensor.view(torch.uint8).numpy().tobytes()


def settings(handle) -> tuple:
    return (
        handle.get_block_size(), handle.get_queue_depth(), handle.get_single_submit(),
        handle.get_overlap_events(), handle.get_intra_op_parallelism(), handle.get_alignment(),
    )  # fmt: skip


def test_the_names_are_there(module):
    functions = {"aio_handle", "aio_read", "aio_write", "deepspeed_memcpy"}
    methods = {
        "async_pread", "async_pwrite", "free_cpu_locked_tensor", "get_alignment", "get_block_size",
        "get_intra_op_parallelism", "get_overlap_events", "get_queue_depth", "get_single_submit",
        "is_pinned", "new_cpu_locked_tensor", "pread", "pwrite", "read", "sync_pread",
        "sync_pwrite", "wait", "write",
    }  # fmt: skip
    public = {name for name in dir(module) if not name.startswith("_")}
    assert functions <= public
    assert {name for name in dir(module.aio_handle) if not name.startswith("_")} == methods


def test_the_defaults(module):
    assert settings(module.aio_handle()) == (1048576, 128, False, False, 1, 512)


def test_arguments_by_position_and_by_name(module):
    expected = (65536, 32, True, True, 4, 2048)
    assert settings(module.aio_handle(65536, 32, True, True, 4)) == expected
    named = module.aio_handle(
        intra_op_parallelism=4, overlap_events=True, single_submit=True, queue_depth=32,
        block_size=65536,
    )  # fmt: skip
    assert settings(named) == expected


def test_any_block_size_will_do(module, folder):
    for block_size in (1, 1024, 5000):
        handle = module.aio_handle(block_size, 4, False, False, 2)
        written, read = random(65536), torch.empty(65536, dtype=torch.uint8)
        handle.sync_pwrite(written, str(folder / str(block_size)))
        handle.sync_pread(read, str(folder / str(block_size)))
        assert torch.equal(read, written) and handle.get_block_size() == block_size


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("parallel", [1, 4])
def test_blocking_write_and_read(module, folder, dtype, parallel):
    handle = module.aio_handle(intra_op_parallelism=parallel)
    written, read = random(4096 * parallel, dtype), torch.empty(4096 * parallel, dtype=dtype)
    path = str(folder / "file")
    assert handle.sync_pwrite(written, path) == 1
    assert Path(path).read_bytes() == content(written)
    assert handle.sync_pread(read, path) == 1
    assert content(read) == content(written)


def test_wait_counts_what_ended_since_the_last_one(module, folder):
    handle = module.aio_handle()
    tensors = [random(BYTES, seed=seed) for seed in range(3)]
    for i, tensor in enumerate(tensors):
        assert handle.async_pwrite(tensor, str(folder / str(i))) == 0
    assert handle.wait() == 3
    read = [torch.empty_like(tensor) for tensor in tensors]
    assert handle.async_pread(read[0], str(folder / "0")) == 0
    assert handle.wait() == 1
    for i in (1, 2):
        handle.async_pread(read[i], str(folder / str(i)))
    assert handle.wait() == 2
    assert all(torch.equal(a, b) for a, b in zip(read, tensors, strict=True))


def test_a_blocking_call_ends_and_counts_all_others(module, folder):
    handle = module.aio_handle()
    first, second = random(BYTES, seed=1), random(BYTES, seed=2)
    handle.async_pwrite(first, str(folder / "1"))
    assert handle.sync_pwrite(second, str(folder / "2")) == 2
    assert (folder / "1").read_bytes() == content(first)


def test_pread_and_pwrite_with_validate_and_async(module, folder):
    handle = module.aio_handle()
    tensor, read, path = random(BYTES), torch.empty(BYTES, dtype=torch.uint8), str(folder / "file")
    assert handle.pwrite(tensor, path, False, False) == 1
    assert handle.pwrite(tensor, path, True, False, 0) == 1
    assert handle.pwrite(tensor, path, False, True) == 0
    assert handle.wait() == 1
    assert handle.pread(read, path, False, True) == 0
    assert handle.wait() == 1
    assert torch.equal(read, tensor)
    named = {"async": False}
    assert handle.pread(buffer=read, filename=path, validate=True, **named) == 1
    assert handle.pread(read, path, validate=False, file_offset=0, **{"async": True}) == 0
    assert handle.wait() == 1


def test_read_and_write_of_whole_files(module, folder):
    handle = module.aio_handle(block_size=65536, queue_depth=4)
    tensor = handle.new_cpu_locked_tensor(BYTES, torch.empty(0, dtype=torch.uint8))
    tensor.copy_(random(BYTES))
    path = str(folder / "file")
    assert handle.write(tensor, path, True) == 0
    expected = tensor.clone()
    tensor.zero_()
    assert handle.read(tensor, path, True) == 0
    assert torch.equal(tensor, expected)
    assert handle.read(buffer=tensor, filename=path, validate=False) == 0
    assert handle.free_cpu_locked_tensor(tensor) is True


def test_file_offsets_make_one_file_of_many_tensors(module, folder):
    handle = module.aio_handle()
    parts, path = [random(65536, seed=seed) for seed in range(4)], str(folder / "file")
    for i in (2, 0, 3, 1):
        handle.async_pwrite(parts[i], path, i * 65536)
    assert handle.wait() == 4
    assert Path(path).read_bytes() == b"".join(map(content, parts))
    read = torch.empty(65536, dtype=torch.uint8)
    assert handle.sync_pread(read, path, file_offset=3 * 65536) == 1
    assert torch.equal(read, parts[3])


def test_a_write_keeps_the_rest_of_the_file(module, folder):
    handle, path = module.aio_handle(), folder / "file"
    path.write_bytes(b"x" * 16384)
    handle.sync_pwrite(random(4096), str(path), 4096)
    expected = b"x" * 4096 + content(random(4096)) + b"x" * 8192
    assert path.read_bytes() == expected


def test_a_new_file_belongs_to_its_user_alone(module, folder):
    path = folder / "file"
    module.aio_handle().sync_pwrite(random(4096), str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_tensor_smaller_than_the_file_reads_its_beginning(module, folder):
    handle, path = module.aio_handle(), folder / "file"
    path.write_bytes(content(random(BYTES)))
    read = torch.empty(8192, dtype=torch.uint8)
    assert handle.sync_pread(read, str(path)) == 1
    assert content(read) == content(random(BYTES))[:8192]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_locked_tensors(module, dtype):
    handle = module.aio_handle()
    tensor = handle.new_cpu_locked_tensor(4096, torch.empty(3, 5, dtype=dtype))
    assert (tensor.shape, tensor.dtype, tensor.device.type) == ((4096,), dtype, "cpu")
    assert tensor.data_ptr() % 4096 == 0
    assert handle.is_pinned(tensor) and handle.is_pinned(tensor[512:])
    plain = torch.empty(4096, dtype=dtype)
    assert not handle.is_pinned(plain)
    assert handle.free_cpu_locked_tensor(plain) is False
    assert handle.free_cpu_locked_tensor(tensor) is True
    assert handle.is_pinned(plain) is False


def test_locked_tensors_are_known_to_every_handle(module, folder):
    first, second = module.aio_handle(), module.aio_handle()
    tensor = first.new_cpu_locked_tensor(4096, torch.empty(0))
    assert second.is_pinned(tensor)
    tensor.copy_(random(4096, torch.float32))
    assert second.sync_pwrite(tensor, str(folder / "file")) == 1
    assert (folder / "file").read_bytes() == content(random(4096, torch.float32))
    assert second.free_cpu_locked_tensor(tensor) is True


def test_a_descriptor_in_place_of_a_name(module, folder):
    handle, path = module.aio_handle(), folder / "file"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
    assert handle.async_pwrite(random(4096), descriptor, 4096) == 0
    assert handle.wait() == 1
    assert handle.async_pwrite(random(4096, seed=1), fd=descriptor) == 0
    assert handle.wait() == 1
    os.close(descriptor)
    assert path.read_bytes() == content(random(4096, seed=1)) + content(random(4096))


def test_functions_without_a_handle(module, folder):
    handle = module.aio_handle()
    tensor = handle.new_cpu_locked_tensor(BYTES, torch.empty(0, dtype=torch.uint8))
    tensor.copy_(random(BYTES))
    path = str(folder / "file")
    assert module.aio_write(tensor, path, 65536, 8, False, True, True) == 0
    tensor.zero_()
    assert module.aio_read(tensor, path, 65536, 8, False, True, True) == 0
    assert content(tensor) == content(random(BYTES))
    handle.free_cpu_locked_tensor(tensor)
    copy = torch.zeros(1024)
    assert module.deepspeed_memcpy(copy, torch.arange(1024.0)) == 0
    assert torch.equal(copy, torch.arange(1024.0))


@pytest.mark.parametrize("wrong", [{"single_submit": "false"}, {"block_size": 1.5}, {"depth": 8}])
def test_wrong_types_are_type_errors(module, wrong):
    with pytest.raises(TypeError):
        module.aio_handle(**wrong)


def test_no_tensor_is_a_type_error(module, folder):
    with pytest.raises(TypeError):
        module.aio_handle().sync_pwrite([1, 2], str(folder / "file"))
    assert not (folder / "file").exists()
