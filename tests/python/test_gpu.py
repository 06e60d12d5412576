"""Parameters on a GPU: the whole way of gradients and weights, on a stand-in for CUDA.

The stand-in counts memory of the host as a GPU's, so that torch's CPU tensors take the way of CUDA
tensors: the CUDA part's own objects, pinned buffers, streams and events. No GPU is needed, and none
is tested.
"""

import copy
import ctypes
import pathlib

import ballast.torch as bt
import pytest
import torch
from ballast.errors import BadArgument, BallastError, Unsupported
from ballast.torch import gpu
from torch import nn

from real_training import fresh_job
from serving import built_ballastd

ORDINAL = 1
SMALL = {"extent_elements": 128, "tile_elements": 64}


class Standin:
    """The stand-in, and which tensors count as being on its GPU."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.standin_copied.restype = ctypes.c_size_t
        self.library.standin_alive.restype = ctypes.c_size_t
        self.library.standin_reset()
        self.on_gpu = set()

    def move(self, *tensors, ordinal=ORDINAL):
        for tensor in tensors:
            self.on_gpu.add(tensor.data_ptr())
            self.library.standin_claim(
                ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes), ordinal
            )

    def move_model(self, model):
        self.move(*(p.data for p in model.parameters()))
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(lambda p: self.move(p.grad))

    @property
    def copied(self):
        return self.library.standin_copied()


@pytest.fixture
def standin(monkeypatch):
    path = pathlib.Path(built_ballastd()).parent.parent / "tests" / "libcuda_standin.so"
    assert path.exists(), "build the target cuda_standin; it needs nvcc (scripts/setup.sh)"
    standin = Standin(path)
    monkeypatch.setattr(gpu, "LIBRARY", path)
    monkeypatch.setattr(gpu, "on_gpu", lambda t: t.data_ptr() in standin.on_gpu)
    monkeypatch.setattr(gpu, "ordinal_of", lambda t: ORDINAL)
    monkeypatch.setattr(gpu, "current_stream", lambda ordinal: 0)
    yield standin
    standin.library.standin_reset()


def model(dtype=torch.float32):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(7, 33), nn.Tanh(), nn.Linear(33, 5)).to(dtype)


def train(module, optimizer, steps, first=0):
    for i in range(first, first + steps):
        x = torch.randn(4, 7, generator=torch.Generator().manual_seed(i))
        optimizer.zero_grad(set_to_none=i % 2 == 0)
        module(x.to(next(module.parameters()).dtype)).square().mean().backward()
        optimizer.step()


def assert_equal(a, b):
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_have_the_bits_of_the_same_job_on_the_cpu(standin, shared_servers, dtype):
    endpoints = shared_servers(2)
    here = model(dtype)
    there = copy.deepcopy(here)
    train(here, bt.AdamW(here.parameters(), endpoints=endpoints, job=fresh_job("cpu"), **SMALL), 4)
    assert standin.copied == 0
    standin.move_model(there)
    optimizer = bt.AdamW(there.parameters(), endpoints=endpoints, job=fresh_job("gpu"), **SMALL)
    train(there, optimizer, 4)
    assert_equal(here, there)
    parameters = sum(p.nbytes for p in there.parameters())
    # Digests of the initial weights, their upload, then gradients up and weights down.
    assert standin.copied == 2 * parameters + 4 * 2 * parameters


def test_tensors_of_host_and_gpu_are_mixed_in_one_job(standin, shared_servers):
    ours, theirs = model(), model()
    standin.move(ours[0].weight.data, ours[2].bias.data)
    for p in (ours[0].weight, ours[2].bias):
        p.register_post_accumulate_grad_hook(lambda p: standin.move(p.grad))
    options = {"endpoints": shared_servers(2), **SMALL}
    train(ours, bt.AdamW(ours.parameters(), job=fresh_job("mixed"), **options), 3)
    train(theirs, bt.AdamW(theirs.parameters(), job=fresh_job("host"), **options), 3)
    assert_equal(ours, theirs)
    assert 0 < standin.copied


def test_an_upload_a_fetch_and_a_late_group(standin, shared_servers):
    ours, theirs = model(), model()
    standin.move_model(ours)
    options = {"endpoints": shared_servers(2), **SMALL}
    optimizer = bt.AdamW(ours[0].parameters(), job=fresh_job("gpu"), **options)
    reference = bt.AdamW(theirs[0].parameters(), job=fresh_job("host"), **options)
    train(ours, optimizer, 1)
    train(theirs, reference, 1)
    optimizer.add_param_group({"params": list(ours[2].parameters())})
    reference.add_param_group({"params": list(theirs[2].parameters())})
    train(ours, optimizer, 2, 1)
    train(theirs, reference, 2, 1)
    assert_equal(ours, theirs)
    with torch.no_grad():
        kept = copy.deepcopy(ours)
        ours[0].bias.fill_(9)
        optimizer.fetch_weights()
    assert_equal(ours, kept)
    with torch.no_grad():
        for module in (ours, theirs):
            module[2].weight.mul_(0.5)
    optimizer.upload_weights()
    reference.upload_weights()
    train(ours, optimizer, 2, 3)
    train(theirs, reference, 2, 3)
    assert_equal(ours, theirs)
    for i, state in reference.export_state()["state"].items():
        for key, value in optimizer.export_state()["state"][i].items():
            assert torch.equal(value, state[key])


def test_accumulated_and_strided_gradients_come_from_the_gpu(standin, shared_servers):
    ours, theirs = model(), model()
    for module in (ours, theirs):
        module[0].weight.data = module[0].weight.data.t().contiguous().t()
    standin.move_model(ours)
    options = {"endpoints": shared_servers(2), "job": fresh_job("sums"), "max_grad_norm": 0.05}
    optimizer = bt.AdamW(ours.parameters(), **options, **SMALL)
    train(ours, optimizer, 3)
    reference = bt.AdamW(
        theirs.parameters(), **{**options, "job": fresh_job("sums")}, **SMALL
    )
    train(theirs, reference, 3)
    assert_equal(ours, theirs)


def test_a_failing_call_of_cuda_is_the_steps_error(standin, shared_servers):
    ours = model()
    standin.move_model(ours)
    options = {"endpoints": shared_servers(2), "job": fresh_job("fails"), **SMALL}
    optimizer = bt.AdamW(ours.parameters(), **options)
    train(ours, optimizer, 1)
    standin.library.standin_fail(b"cudaLaunchKernel", 700)
    said = r"GPU 1: pack of \d+ elements \(cudaLaunchKernel\): .*\(700\).* tensor \"g0.p\d\""
    with pytest.raises(BallastError, match=said):
        train(ours, optimizer, 1)


def test_a_capture_is_refused_before_anything_is_done(standin, shared_servers, monkeypatch):
    """In Python before the closure; in the client before it takes memory of the GPU."""
    ours = model()
    standin.move_model(ours)
    options = {"endpoints": shared_servers(2), "job": fresh_job("captures"), **SMALL}
    optimizer = bt.AdamW(ours.parameters(), **options)
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_initialized", lambda: True)
        patched.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        for call in (optimizer.attach, lambda: optimizer.step(lambda: pytest.fail("closure"))):
            with pytest.raises(Unsupported, match=r"captures a CUDA graph, .* after the capture"):
                call()
        bt.AdamW(model().parameters(), **options)._membership.refuse_step([{"params": []}])
    standin.library.standin_capture(ctypes.c_void_p(0))
    with pytest.raises(BallastError, match="captures a CUDA graph"):
        train(ours, optimizer, 1)
    assert standin.library.standin_alive() == 0
    standin.library.standin_reset()
    train(ours, optimizer, 1)


def test_what_cannot_be_is_named_before_anything_is_sent(standin, shared_servers, monkeypatch):
    ours = model()
    standin.move_model(ours)
    options = {"endpoints": shared_servers(2), "job": fresh_job("refused"), **SMALL}
    with pytest.raises(BadArgument, match="pinned_bytes is 1000; give at least 4194304"):
        train(ours, bt.AdamW(ours.parameters(), pinned_bytes=1000, **options), 1)
    with monkeypatch.context() as patched:
        patched.setattr(gpu, "LIBRARY", pathlib.Path("no/libballast_cuda.so"))
        with pytest.raises(BallastError, match="has no CUDA part .* needed: .* keep the model"):
            train(ours, bt.AdamW(ours.parameters(), **options), 1)
    with monkeypatch.context() as patched:
        ordinals = iter([0, 1, 1, 1])
        patched.setattr(gpu, "ordinal_of", lambda t: next(ordinals))
        with pytest.raises(Unsupported, match="'g0.p0' is on GPU 0 and 'g0.p1' on GPU 1"):
            train(ours, bt.AdamW(ours.parameters(), **options), 1)
    with monkeypatch.context() as patched:
        patched.setattr(gpu, "ordinal_of", lambda t: 2)
        with pytest.raises(BallastError, match="no GPU 2: this process sees 2"):
            train(ours, bt.AdamW(ours.parameters(), **options), 1)


def test_the_first_tensor_on_a_gpu_cannot_join_a_job_of_the_cpu(standin, shared_servers):
    ours = model()
    options = {"endpoints": shared_servers(2), "job": fresh_job("late"), **SMALL}
    optimizer = bt.AdamW(ours[0].parameters(), **options)
    train(ours, optimizer, 1)
    standin.move(*(p.data for p in ours[2].parameters()))
    optimizer.add_param_group({"params": list(ours[2].parameters())})
    with pytest.raises(Unsupported, match="'g1.p0' is on GPU 1, and the job began with"):
        train(ours, optimizer, 1, 1)


def test_without_a_driver_the_real_cuda_part_says_so(standin, shared_servers, monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("this host has a GPU")
    package = pathlib.Path(gpu.__file__).parent.parent
    monkeypatch.setattr(gpu, "LIBRARY", package / "libballast_cuda.so")
    ours = model()
    standin.move_model(ours)
    options = {"endpoints": shared_servers(2), "job": fresh_job("none"), **SMALL}
    with pytest.raises(BallastError, match="no NVIDIA driver|update the driver|shows no GPU"):
        train(ours, bt.AdamW(ours.parameters(), **options), 1)
