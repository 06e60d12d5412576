"""ballast.ops.aio beyond DeepNVMe: any size and alignment, and errors where DeepNVMe has none."""

from __future__ import annotations

import copy
import errno
import gc
import os
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import ballast
from ballast import _aio
from ballast.ops.aio import AsyncIOBuilder, errors
from ballast.ops.op_builder import GDSBuilder

aio_handle = AsyncIOBuilder().load().aio_handle


@pytest.fixture
def handle():
    return aio_handle(block_size=65536, queue_depth=8)


def numbers(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int64).to(torch.uint8)


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    head = """
        import os, sys, torch
        from ballast.ops.op_builder import AsyncIOBuilder
        handle = AsyncIOBuilder().load().aio_handle(block_size=65536, queue_depth=2)
        path = sys.argv[1]
    """
    text = textwrap.dedent(head) + textwrap.dedent(script)
    command = [sys.executable, "-c", text, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_deepspeeds_name_of_the_package_needs_no_import_of_its_own():
    code = """
import ballast.deepspeed as deepspeed
print(deepspeed.ops.aio.AsyncIOBuilder.NAME)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "async_io\n"), done.stderr


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("count", [0, 1, 511, 4097, 300_001])
def test_odd_sizes_offsets_and_addresses(folder, parallel, count):
    handle, path = aio_handle(65536, 8, intra_op_parallelism=parallel), folder / "file"
    path.write_bytes(bytes(7))
    written = numbers(count + 3)[3:]
    assert handle.sync_pwrite(written, path, 7) == 1
    assert path.read_bytes() == bytes(7) + written.numpy().tobytes()
    read = torch.zeros(count + 5, dtype=torch.uint8)
    assert handle.pread(read[5:], path, True, False, 7) == 1
    assert torch.equal(read[5:], written)
    assert read[:5].sum() == 0


def test_tensors_of_any_shape(handle, folder):
    written = torch.randn(3, 5, 7, requires_grad=True)
    handle.sync_pwrite(written.detach(), folder / "file")
    read = torch.empty(3, 5, 7)
    handle.sync_pread(read, folder / "file")
    assert torch.equal(read, written)


def test_paths_are_texts_bytes_or_path_objects(handle, folder):
    for path in (folder / "ü", str(folder / "ü"), os.fsencode(folder / "ü")):
        handle.sync_pwrite(numbers(10), path)
        assert handle.read(numbers(10), path, True) == 0


def test_a_tensor_that_is_not_contiguous_is_refused(handle, folder):
    for tensor in (torch.zeros(4, 4).t(), torch.zeros(8)[::2], torch.zeros(1).expand(4)):
        with pytest.raises(ballast.BadArgument, match=r"buffer is not contiguous \(shape .*copy_"):
            handle.sync_pwrite(tensor, folder / "file")
    with pytest.raises(ballast.BadArgument, match="no plain dense tensor .*sparse_coo"):
        handle.async_pread(torch.eye(2).to_sparse(), folder / "file")
    assert not (folder / "file").exists()
    assert handle.wait() == 0


def test_a_tensor_elsewhere_is_refused_by_name(handle, folder):
    with pytest.raises(ballast.Unsupported, match=r"META tensor \(meta\).*new_cpu_locked_tensor"):
        handle.sync_pwrite(torch.zeros(4, device="meta"), folder / "file")


def test_gds_is_an_error_that_names_aio_handle():
    assert not GDSBuilder().is_compatible()
    with pytest.raises(ballast.Unsupported, match="GDSBuilder.*aio_handle"):
        GDSBuilder().load()
    assert AsyncIOBuilder().is_compatible()


def test_deepspeeds_names_lead_here_or_say_what_to_use():
    import ballast.deepspeed as deepspeed

    assert deepspeed.ops.op_builder.AsyncIOBuilder is AsyncIOBuilder
    with pytest.raises(AttributeError, match="no 'lion': .*bt.AdamW"):
        _ = ballast.ops.lion
    with pytest.raises(AttributeError, match="no 'sparse_attention': .*bt.AdamW"):
        _ = deepspeed.ops.sparse_attention


def test_a_read_past_the_end_changes_nothing(handle, folder):
    (folder / "file").write_bytes(b"0123456789")
    read = torch.zeros(11, dtype=torch.uint8)
    with pytest.raises(errors.FileTooShort, match="read 11 bytes at offset 0.*has 10 bytes"):
        handle.async_pread(read, folder / "file")
    with pytest.raises(EOFError, match="read 11 bytes"):
        handle.read(read, folder / "file", False)
    assert read.sum() == 0
    assert handle.wait() == 0


def test_read_wants_the_size_of_the_file(handle, folder):
    (folder / "file").write_bytes(b"0123456789")
    with pytest.raises(ballast.BadArgument, match="has 10 bytes from offset 0 on, the tensor 9"):
        handle.read(numbers(9), folder / "file", False)
    read = torch.zeros(4, dtype=torch.uint8)
    assert handle.read(read, folder / "file", True, 6) == 0
    assert bytes(read.tolist()) == b"6789"


def test_files_that_cannot_be_opened(handle, folder):
    with pytest.raises(FileNotFoundError, match="no-file") as missing:
        handle.sync_pread(numbers(1), folder / "no-file")
    assert isinstance(missing.value, ballast.BallastError)
    assert missing.value.errno == errno.ENOENT
    with pytest.raises(FileNotFoundError):
        handle.async_pwrite(numbers(1), folder / "no-folder" / "file")
    with pytest.raises(errors.AioError, match="Is a directory"):
        handle.async_pwrite(numbers(1), folder)
    with pytest.raises(ballast.BadArgument, match="no regular file"):
        handle.sync_pread(numbers(1), "/dev/zero")
    with pytest.raises(OSError, match="Bad file descriptor"):
        handle.async_pwrite(numbers(1), fd=1 << 20)
    assert handle.wait() == 0


def test_a_full_disk_is_enospc():
    error = errors.from_status("RESOURCE_EXHAUSTED", "cannot write")
    assert isinstance(error, OSError) and error.errno == errno.ENOSPC
    again = copy.copy(error)
    assert (type(again), again.errno, again.reason) == (errors.AioError, 28, "STORAGE_FAILED")


def test_a_write_that_the_system_refuses_fails_in_wait_and_the_handle_lives(folder):
    done = run(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        handle.async_pwrite(torch.ones(200_000, dtype=torch.uint8), path)
        handle.async_pwrite(torch.ones(50_000, dtype=torch.uint8), path + ".2")
        try:
            handle.wait()
        except OSError as error:
            print(type(error).__name__, error)
        print(handle.wait(), os.path.getsize(path + ".2"), handle.sync_pwrite(torch.ones(9), path))
        """,
        folder / "file",
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("AioError cannot reserve 200000 bytes") and "file" in first
    assert second == "0 50000 1"


def test_validation_finds_a_tensor_that_changed_too_early(handle, folder):
    tensor = torch.zeros(20_000_000, dtype=torch.uint8)
    handle.pwrite(tensor, folder / "file", True, True)
    tensor.fill_(1)
    handle_error = None
    try:
        handle.wait()
    except errors.AioError as error:
        handle_error = error
    written = (folder / "file").read_bytes()
    # All bytes may have been written after the change; then there is nothing to find.
    assert (handle_error is None) == (written == tensor.numpy().tobytes())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"block_size": 0}, f"block_size 0; use 1 to {1 << 40}"),
        ({"block_size": (1 << 40) + 1}, "block_size"),
        ({"queue_depth": 0}, "queue_depth 0; use 1 to 4096"),
        ({"intra_op_parallelism": 0}, "intra_op_parallelism 0; use 1 to 64"),
        ({"block_size": -4096}, "block_size -4096"),
        ({"block_size": 1 << 64}, "block_size"),
        ({"queue_depth": 1 << 40}, "queue_depth"),
    ],
)
def test_options_out_of_range(arguments, text):
    with pytest.raises(ballast.BadArgument, match=text):
        aio_handle(**arguments)


@pytest.mark.parametrize("offset", [-1, 1 << 63, 1 << 70])
def test_offsets_out_of_range(handle, folder, offset):
    with pytest.raises(ballast.BadArgument, match=str(offset)[:10]):
        handle.sync_pwrite(numbers(4096), folder / "file", offset)
    assert handle.wait() == 0


def test_arguments_of_pread_are_checked_as_those_of_any_function(handle):
    for arguments, named in [
        ((numbers(1), "x"), {}),
        ((numbers(1), "x", False, False, 0, 1), {}),
        ((numbers(1), "x", False, False), {"async": True}),
        ((numbers(1), "x", False, False), {"offset": 1}),
    ]:
        with pytest.raises(TypeError, match=r"pread\(\) takes \(buffer, filename, validate, async"):
            handle.pread(*arguments, **named)
    with pytest.raises(TypeError, match="validate is the text 'true'"):
        handle.pread(numbers(1), "x", "true", False)
    with pytest.raises(TypeError, match="filename is float"):
        handle.sync_pread(numbers(1), 1.5)
    with pytest.raises(ballast.BadArgument, match="zero byte"):
        handle.sync_pread(numbers(1), "a\0b")


def test_a_locked_tensor_is_freed_once_and_not_under_way(handle, folder):
    tensor = handle.new_cpu_locked_tensor(50_000_000, numbers(0))
    assert tensor.sum() == 0
    handle.async_pwrite(tensor[:-5], folder / "file")
    with pytest.raises(ballast.BadArgument, match="under way; call wait"):
        aio_handle().free_cpu_locked_tensor(tensor)
    assert handle.wait() == 1
    part = tensor[10:]
    assert handle.free_cpu_locked_tensor(part) is False
    assert handle.free_cpu_locked_tensor(tensor) is True
    assert handle.free_cpu_locked_tensor(tensor) is False
    assert part.sum() == 0 and not handle.is_pinned(part)
    assert handle.new_cpu_locked_tensor(0, numbers(0)).numel() == 0
    with pytest.raises(ballast.BadArgument, match="num_elem -1"):
        handle.new_cpu_locked_tensor(-1, numbers(0))
    for count in (1 << 60, 1 << 70):
        with pytest.raises(ballast.BadArgument, match=f"num_elem {count}"):
            handle.new_cpu_locked_tensor(count, numbers(0))
    with pytest.raises(errors.AioError, match="bytes"):
        handle.new_cpu_locked_tensor(1 << 47, numbers(0))


def mapped(address: int) -> bool:
    ranges = (line.split()[0].split("-") for line in Path("/proc/self/maps").open())
    return any(int(low, 16) <= address < int(high, 16) for low, high in ranges)


def test_a_locked_tensor_that_goes_away_takes_its_memory_with_it(handle):
    tensor = handle.new_cpu_locked_tensor(1 << 26, numbers(0))
    part, address = tensor[1 << 25:], tensor.data_ptr()
    del tensor
    assert handle.is_pinned(part) and mapped(address)
    del part
    gc.collect()
    assert not mapped(address)


def test_a_missing_extension_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ballast._aio", None)
    monkeypatch.delitem(sys.modules, "ballast.ops.aio.async_io")
    assert AsyncIOBuilder().is_compatible(verbose=True) is False
    assert "ballast: async_io:" in capsys.readouterr().err
    with pytest.raises(ImportError, match="libaio1.*--target ballast_python"):
        AsyncIOBuilder().load()


def test_a_handle_that_goes_away_writes_what_it_has_begun(folder):
    handle = aio_handle(block_size=4096, queue_depth=1)
    handle.async_pwrite(torch.ones(3_000_001, dtype=torch.uint8), folder / "file")
    del handle
    assert (folder / "file").read_bytes() == b"\1" * 3_000_001


@pytest.mark.parametrize(("ending", "code"), [("", 0), ("sys.exit(3)", 3)])
def test_the_interpreter_ends_with_work_under_way(folder, ending, code):
    done = run(
        f"""
        for i in range(20):
            handle.async_pwrite(torch.full((500_001,), i, dtype=torch.uint8), path + str(i))
        {ending}
        """,
        folder / "file",
    )
    assert done.returncode == code, done.stderr
    for i in range(20):
        assert Path(f"{folder}/file{i}").read_bytes() == bytes([i]) * 500_001


def test_an_error_that_no_wait_has_raised_is_said_at_the_end(folder):
    done = run(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        handle.async_pwrite(torch.ones(200_000, dtype=torch.uint8), path)
        """,
        folder / "file",
    )
    assert done.returncode == 0
    assert "ballast: aio_handle, without a wait(): cannot reserve 200000 bytes" in done.stderr


class Interrupting:
    """The extension's handle with a Ctrl-C in one of its calls.

    The interpreter raises it when the call has returned, and its result is gone.
    """

    def __init__(self, native: Any, name: str) -> None:
        self._native, self._name = native, name

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._native, name)
        if name != self._name:
            return call

        def interrupted(*arguments: Any) -> None:
            self._name = ""
            call(*arguments)
            raise KeyboardInterrupt

        return interrupted


def test_wait_after_an_interrupted_wait_returns_every_operation(handle, folder):
    tensor = handle.new_cpu_locked_tensor(100_000, numbers(0))
    handle.async_pwrite(tensor, folder / "first")
    handle.async_pwrite(numbers(10), folder / "second")
    handle._native = Interrupting(handle._native, "wait")
    with pytest.raises(KeyboardInterrupt):
        handle.wait()
    with pytest.raises(ballast.BadArgument, match="under way; call wait"):
        handle.free_cpu_locked_tensor(tensor)
    handle.async_pwrite(numbers(20), folder / "third")
    assert handle.wait() == 3
    assert [(folder / name).stat().st_size for name in ("first", "second", "third")] == [
        100_000, 10, 20
    ]  # fmt: skip
    assert handle.free_cpu_locked_tensor(tensor) is True
    assert handle.wait() == 0


def test_a_tensor_outlives_a_call_that_was_interrupted(handle, folder):
    tensor = torch.ones(3_000_000, dtype=torch.uint8)
    alive = weakref.ref(tensor)
    handle._native = Interrupting(handle._native, "start")
    with pytest.raises(KeyboardInterrupt):
        handle.async_pwrite(tensor, folder / "file")
    del tensor
    gc.collect()
    assert alive() is not None, "the disk may still read it"
    assert handle.wait() == 1
    gc.collect()
    assert alive() is None
    assert (folder / "file").read_bytes() == b"\1" * 3_000_000


def test_other_threads_run_while_a_call_waits(handle, folder):
    handle.sync_pwrite(numbers(1 << 20), folder / "file")
    calls, stop, started = 1000, threading.Event(), threading.Event()
    interval = sys.getswitchinterval()
    done: list[int] = []
    # The extension itself: functions of torch give the interpreter up, too.
    native, buffer, path = _aio.Handle(65536, 8, 1), numbers(1 << 20), str(folder / "file")
    address, count = buffer.data_ptr(), buffer.nbytes

    def read() -> None:
        started.set()
        while len(done) < calls and not stop.is_set():
            number = native.start(False, path, 0, address, count, False, buffer)
            assert native.wait(number, 60.0) and native.take() == 1
            done.append(number)

    thread = threading.Thread(target=read)
    # From here on a thread runs until it gives the interpreter up of its own accord.
    sys.setswitchinterval(1000)
    try:
        thread.start()
        started.wait()
        stop.set()
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(done) < calls


def test_threads_share_a_handle(handle, folder):
    def work(i: int) -> None:
        for _ in range(10):
            handle.async_pwrite(torch.full((100_000,), i, dtype=torch.uint8), folder / str(i))
            counts.append(handle.wait())

    counts: list[int] = []
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) + handle.wait() == 40
    for i in range(4):
        assert (folder / str(i)).read_bytes() == bytes([i]) * 100_000


def test_a_forked_process_gets_closed(folder):
    done = run(
        """
        from ballast.errors import Closed
        handle.sync_pwrite(torch.ones(10), path)
        child = os.fork()
        if child == 0:
            try:
                handle.sync_pwrite(torch.ones(10), path)
            except Closed as error:
                print(error, flush=True)
                sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), handle.sync_pwrite(
            torch.zeros(10), path))
        """,
        folder / "file",
    )
    assert done.returncode == 0, done.stderr
    child, parent = done.stdout.splitlines()
    assert "forked from" in child and parent == "7 1"


def test_memcpy_checks_its_tensors():
    module = AsyncIOBuilder().load()
    dest = torch.zeros(1003)
    assert module.deepspeed_memcpy(dest, torch.ones(1003)) == 0
    assert dest.sum() == 1003
    with pytest.raises(ballast.BadArgument, match="1003 x torch.float32, src 4 x torch.int64"):
        module.deepspeed_memcpy(dest, torch.zeros(4, dtype=torch.int64))
