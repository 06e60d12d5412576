"""Which tensors may be parameters, and how odd ones travel: ballast.torch.manifest and .buffers."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_module

import ballast
import ballast.torch as bt
from ballast.torch import buffers


def pair(make, lr=1e-1):
    """Equal parameters under both optimizers."""
    ours, theirs = nn.Parameter(make()), nn.Parameter(make())
    return (ours, bt.AdamW([("w", ours)], lr=lr)), (
        theirs,
        torch.optim.AdamW([theirs], lr=lr, foreach=False),
    )


def steps_equal(make, grad, count=4):
    ours, theirs = pair(make)
    for i in range(count):
        for p, optimizer in (ours, theirs):
            p.grad = grad(i)
            optimizer.step()
    assert torch.equal(ours[0], theirs[0])
    return ours[1]


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_scalar_parameter_steps(fake):
    steps_equal(lambda: torch.tensor(2.0), lambda i: torch.tensor(0.5 + i))
    assert fake.last.tensors[0][1] == ()


def test_a_tensor_without_elements_has_a_gradient_too(fake):
    opt = steps_equal(lambda: torch.zeros(0, 3), lambda i: torch.zeros(0, 3))
    assert fake.last.calls[-1][2][0] != 0
    assert opt.export_state()["state"][0]["exp_avg"].shape == (0, 3)


def test_strided_parameters_travel_in_logical_order(fake):
    steps_equal(lambda: randn(6, 4).t(), lambda i: randn(4, 6, seed=i).contiguous())
    assert fake.last.tensors[0][1] == (4, 6)
    logical = randn(6, 4).t().contiguous()
    fake.attached.clear()
    opt = bt.AdamW([("w", nn.Parameter(randn(6, 4).t()))])
    opt.step()
    assert torch.equal(fake.last.masters[0], logical)


def test_channels_last_parameters_step(fake):
    steps_equal(
        lambda: randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        lambda i: randn(2, 3, 4, 4, seed=i).to(memory_format=torch.channels_last),
    )


def test_strided_and_expanded_gradients_are_copied_in_order(fake):
    steps_equal(lambda: randn(4, 6), lambda i: randn(6, 4, seed=i).t())
    steps_equal(lambda: randn(4, 6), lambda i: torch.full((1, 1), 0.1 + i).expand(4, 6))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_parameters_have_fp32_masters_in_the_service(fake, dtype):
    p = nn.Parameter(randn(64).to(dtype))
    master = nn.Parameter(p.detach().float())
    ours = bt.AdamW([("w", p)], lr=1e-4)
    theirs = torch.optim.AdamW([master], lr=1e-4, foreach=False)
    for i in range(20):
        p.grad = randn(64, seed=i).to(dtype)
        master.grad = p.grad.float()
        ours.step()
        theirs.step()
    assert torch.equal(p, master.to(dtype))
    assert torch.equal(ours.export_state()["state"][0]["master"], master)


def test_contiguous_gradients_are_lent_without_a_copy(fake):
    p = nn.Parameter(randn(8))
    p.grad = randn(8, seed=1)
    bt.AdamW([p]).step()
    assert fake.last.calls[0][2] == [p.grad.data_ptr()]


def test_tied_weights_are_one_tensor_with_aliases(fake):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(7, 4)
            self.head = nn.Linear(4, 7, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.embed(x))

    torch.manual_seed(0)
    module = Tied()
    twin = copy.deepcopy(module)
    every_name = list(module.named_parameters(remove_duplicate=False))
    assert len(every_name) == 2
    ours = bt.AdamW(every_name)
    theirs = torch.optim.AdamW(twin.parameters(), foreach=False)
    for m, optimizer in ((module, ours), (twin, theirs)):
        for _ in range(3):
            optimizer.zero_grad()
            m(torch.arange(7)).square().mean().backward()
            optimizer.step()
    assert torch.equal(module.embed.weight, twin.embed.weight)
    assert [(t[0], t[4]) for t in fake.last.tensors] == [("embed.weight", ("head.weight",))]

    bt.AdamW(module.parameters(), model=module).step()
    assert [(t[0], t[4]) for t in fake.last.tensors] == [("embed.weight", ("head.weight",))]


def test_a_tensor_that_a_group_has_twice_is_warned_of(fake, recwarn):
    p, tied = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    with pytest.warns(UserWarning, match="more than once, as number 2: .*stepped once") as warned:
        opt = bt.SGD([p, tied, p], lr=1.0)
    assert [w.filename for w in warned] == [__file__]
    with pytest.warns(UserWarning, match="more than once, as 'a': .*stepped once"):
        bt.SGD([("a", p), ("a", p)], job="named")
    recwarn.clear()
    bt.SGD([("a", tied), ("b", tied)], job="tied")
    assert not recwarn.list
    p.grad = torch.ones(2)
    opt.step()
    assert torch.equal(p, -torch.ones(2))


class Wrapper(torch.Tensor):
    """A tensor without memory of its own, as DTensor is."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, requires_grad=True)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


def of_gpu(values, **more):
    """The properties of a tensor on a GPU."""
    said = {"dtype": values.dtype, "shape": values.shape, "device": torch.device("cuda", 1)}
    return SimpleNamespace(**said, **more)


def test_a_gradient_on_another_device_than_its_parameter_is_refused_with_both():
    # torch refuses `p.grad = ...` of that kind; other frameworks write past it.
    entry = SimpleNamespace(name="w", param=of_gpu(torch.zeros(2), grad=torch.zeros(2)))
    with pytest.raises(ballast.BadArgument, match="the gradient of parameter 'w' is .* on cpu but "
                       "the parameter is .* on cuda:1"):  # fmt: skip
        buffers.gradient(entry)


def test_a_parameter_that_has_moved_after_the_attach_is_refused_with_both_places():
    was = torch.zeros(2)
    entry = SimpleNamespace(
        name="w", param=of_gpu(was), dtype=was.dtype, shape=was.shape, device=was.device
    )
    with pytest.raises(ballast.Unsupported, match="'w' is now .* on cuda:1 but joined the job as "
                       ".* on cpu; convert or move the model before the first step"):  # fmt: skip
        buffers.weight_address(entry)


@pytest.fixture
def mesh(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1
    )
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("how", ["DTensor", "fully_shard"])
def test_parameters_of_dtensor_and_fsdp_are_refused_by_name(fake, mesh, how):
    module = nn.Sequential(nn.Linear(3, 2, bias=False))
    if how == "DTensor":
        distribute_module(module, mesh)
    else:
        fully_shard(module, mesh=mesh)
    with pytest.raises(ballast.Unsupported, match="'0.weight' is a DTensor, of FSDP 2"):
        bt.AdamW(module.named_parameters())
    opt = bt.AdamW([nn.Parameter(torch.ones(1))])
    with pytest.raises(ballast.Unsupported, match="'g1.p0' is a DTensor, of FSDP 2"):
        opt.add_param_group({"params": module.parameters()})
    assert len(opt.param_groups) == 1


def inference_tensor():
    with torch.inference_mode():
        return torch.zeros(2)


REFUSED = {
    "float64": lambda: nn.Parameter(torch.zeros(2, dtype=torch.float64)),
    "complex64": lambda: nn.Parameter(torch.zeros(2, dtype=torch.complex64)),
    "sparse": lambda: torch.eye(2).to_sparse().requires_grad_(),
    "device meta": lambda: nn.Parameter(torch.zeros(2, device="meta")),
    "share memory": lambda: nn.Parameter(torch.zeros(1).expand(3)),
    "as_strided|share memory": lambda: nn.Parameter(torch.zeros(4).as_strided((3, 2), (1, 1))),
    "not initialized": lambda: nn.LazyLinear(3).weight,
    "Wrapper": lambda: Wrapper(torch.zeros(2)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_other_tensors_are_refused_by_name(fake, what):
    good = nn.Parameter(torch.zeros(2))
    opt = bt.AdamW([("good", good), ("layer.bad", REFUSED[what]())])
    with pytest.raises(ballast.Unsupported, match=rf"'layer.bad'.*({what})") as caught:
        opt.step()
    assert caught.value.reason == "UNSUPPORTED"
    assert not fake.attached


def test_a_tensor_of_inference_mode_is_refused(fake):
    p = inference_tensor()
    p.grad = None
    good = nn.Parameter(torch.zeros(2))
    opt = bt.AdamW([("good", good)])
    with pytest.raises(ballast.Unsupported, match="inference_mode"):
        ballast.torch.manifest.check_tensor(p, "w")
    opt.step()


def test_different_parameters_over_the_same_memory_are_refused(fake):
    base = torch.zeros(10)
    a, b = nn.Parameter(base[:6]), nn.Parameter(base[5:])
    with pytest.raises(ballast.Unsupported, match="'a' and 'b' share memory"):
        bt.AdamW([("a", a), ("b", b)]).step()
    with pytest.raises(ballast.Unsupported, match="'a' and 'c' share memory"):
        bt.AdamW([("a", a), ("c", nn.Parameter(base[:6].view(torch.bfloat16)))]).step()


def test_interleaved_columns_share_no_memory(fake):
    base = randn(6, 6)
    columns = [nn.Parameter(base[:, i : i + 2]) for i in (0, 2, 4)]
    opt = bt.AdamW([(f"c{i}", p) for i, p in enumerate(columns)])
    for p in columns:
        p.grad = torch.ones_like(p)
    opt.step()
    overlapping = nn.Parameter(base[:, 1:2])
    opt.add_param_group({"params": [("late", overlapping)]})
    with pytest.raises(ballast.Unsupported, match="'c0' and 'late' share memory"):
        opt.step()


def test_a_sparse_gradient_is_refused_by_name(fake):
    embedding = nn.Embedding(4, 2, sparse=True)
    opt = bt.AdamW(embedding.named_parameters())
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(ballast.Unsupported, match="gradient of parameter 'weight'.*sparse"):
        opt.step()


BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize(
    ("dtype", "of_gradient"), [(BF16, FP32), (FP16, FP32), (BF16, FP64), (FP32, BF16)]
)
def test_a_gradient_of_another_dtype_is_rounded_once_to_the_parameters(
    fake, dtype, of_gradient, batches
):
    """Tensor.grad_dtype; with halves that go to the even neighbour, up and down."""
    p = nn.Parameter(torch.zeros(5, dtype=dtype))
    p.grad_dtype = of_gradient
    opt = bt.SGD([("w", p)], lr=1.0, accumulation_steps=batches)
    small = 2.0**-8 if dtype == BF16 else 2.0**-11
    values = torch.tensor([1 + small, 1 + 3 * small, 1e-3, -0.1, 0.0], dtype=of_gradient)
    for _ in range(batches):
        p.grad = values / batches
        opt.step()
    pushed = -opt.export_state()["state"][0]["master"]
    assert torch.equal(pushed, values.float().to(dtype).float())
    p.grad = None
    (p.float() * values.float()).sum().backward()
    assert p.grad.dtype == of_gradient


def test_weights_stay_correct_for_autograd(fake):
    p = nn.Parameter(randn(3))
    opt = bt.AdamW([p])
    loss = (p * p).sum()
    p.grad = torch.ones(3)
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    "edit",
    [
        lambda p: p.mul_(2),
        lambda p: p.data.add_(1),  # which torch does not notice
        lambda p: setattr(p, "data", torch.ones(2, 3)),
        lambda p: setattr(p, "data", torch.arange(6.0).view(3, 2).t()),
    ],
)
@pytest.mark.parametrize("strided", [False, True])
def test_edits_can_be_uploaded_and_moments_stay(fake, edit, strided):
    start = randn(2, 3)
    p = nn.Parameter(start.t().contiguous().t() if strided else start.clone())
    twin = nn.Parameter(start.clone())
    opt, reference = bt.AdamW([("w", p)], lr=0.1), torch.optim.AdamW([twin], lr=0.1, foreach=False)
    for i in range(4):
        if i == 2:
            with torch.no_grad():
                edit(p)
                twin.copy_(p)
            report = opt.last_report
            opt.upload_weights()
            assert torch.equal(p, twin) and opt.last_report == report
        for tensor, optimizer in ((p, opt), (twin, reference)):
            tensor.grad = torch.full((2, 3), float(i + 1))
            optimizer.step()
    assert torch.equal(p, twin)
    assert (opt.round, opt.opt_step) == (5, 4)


def test_a_group_that_comes_with_an_edit_is_uploaded_too(fake):
    p, late = nn.Parameter(randn(3)), nn.Parameter(randn(2))
    opt = bt.AdamW([("w", p)])
    opt.step()
    opt.add_param_group({"params": [("late", late)]})
    with torch.no_grad():
        p.zero_()
    opt.upload_weights()
    opt.step()
    assert [call[0] for call in fake.last.calls] == ["step", "extend", "upload", "step"]
    assert torch.equal(fake.last.masters[0], torch.zeros(3))


def test_a_model_converted_during_the_job_is_refused_before_memory_is_touched(fake):
    module = nn.Linear(3, 2)
    opt = bt.AdamW(module.named_parameters())
    opt.step()
    module.half()
    with pytest.raises(ballast.WeightsEdited):
        opt.step()
    with pytest.raises(ballast.Unsupported, match="'weight' is now torch.float16.*torch.float32"):
        opt.fetch_weights()


def test_calls_that_need_a_job_say_so_before_the_first_step(fake):
    opt = bt.AdamW([nn.Parameter(torch.zeros(1))])
    for call in (opt.export_state, opt.fetch_weights):
        with pytest.raises(ballast.BadArgument, match="first step"):
            call()
