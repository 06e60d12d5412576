"""accumulation_steps and no_sync(): micro-batches add up in fp32 and are rounded once."""

import contextlib
import itertools

import pytest
import torch
from torch import nn

import ballast
import ballast.torch as bt
from real_training import SMALL, fresh_job, in_threads
from training import assert_equal, batch, model


def loss_of(module, i):
    x = batch(i).to(next(module.parameters()).dtype)
    return module(x).float().square().mean()


def gradients(module, i):
    """Of one micro-batch, each in its parameter's dtype; the module keeps none."""
    module.zero_grad()
    loss_of(module, i).backward()
    grads = [p.grad for p in module.parameters()]
    module.zero_grad()
    return grads


def summed(module, batches):
    """The pushed values: the gradients of the micro-batches in fp32, rounded once."""
    total = [g.float() for g in gradients(module, batches[0])]
    for i in batches[1:]:
        for t, g in zip(total, gradients(module, i)):
            t.add_(g)
    return [t.to(p.dtype) for t, p in zip(total, module.parameters())]


class Oracle:
    """fp32 masters of a module, stepped by torch with the mean of the trainers' sums."""

    def __init__(self, module):
        self.module = module
        self.masters = [nn.Parameter(p.detach().float()) for p in module.parameters()]
        self.opt = torch.optim.AdamW(self.masters, lr=1e-2, foreach=False)

    def step(self, *trainers):
        """trainers: of each one the micro-batches of the round."""
        sums = [summed(self.module, batches) for batches in trainers]
        for master, *grads in zip(self.masters, *sums):
            master.grad = sum(g.float() for g in grads) / len(grads)
        self.opt.step()
        with torch.no_grad():
            for p, master in zip(self.module.parameters(), self.masters):
                p.copy_(master)


def micro(module, opt, i):
    opt.zero_grad()
    loss_of(module, i).backward()
    opt.step()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_micro_batches_add_up_in_fp32_and_are_rounded_once(fake, k, dtype):
    ours, twin = model().to(dtype), Oracle(model().to(dtype))
    opt = bt.AdamW(ours.parameters(), lr=1e-2, accumulation_steps=k)
    for r in range(3):
        batches = range(r * k, (r + 1) * k)
        for done, i in enumerate(batches):
            assert (opt.round, opt.micro_steps) == (r, done)
            micro(ours, opt, i)
        twin.step(batches)
        assert_equal(ours, twin.module)
    assert (opt.round, opt.micro_steps) == (3, 0)


def test_in_bf16_the_sum_differs_from_what_torch_adds_up(fake):
    # Else the test above would also pass without a sum of our own.
    module = model().bfloat16()
    module.zero_grad()
    for i in range(8):
        loss_of(module, i).backward()
    theirs = [p.grad for p in module.parameters()]
    assert any(not torch.equal(a, b) for a, b in zip(theirs, summed(module, range(8))))


@pytest.mark.parametrize("k", [3, 8])
@pytest.mark.e2e
def test_two_trainers_push_one_sum_each(shared_servers, k):
    twin = Oracle(model().bfloat16())
    modules = [model().bfloat16() for _ in range(2)]
    job = {"endpoints": shared_servers(2), "job": fresh_job("sums"), "world_size": 2, **SMALL}
    opts = [bt.AdamW(m.parameters(), lr=1e-2, accumulation_steps=k, rank=i, **job)
            for i, m in enumerate(modules)]  # fmt: skip

    def train(rank):
        for i in range(2 * k):
            micro(modules[rank], opts[rank], 2 * i + rank)

    in_threads(lambda: train(0), lambda: train(1))
    for r in range(2):
        twin.step(*(range(2 * r * k + rank, 2 * (r + 1) * k, 2) for rank in range(2)))
    for module in modules:
        assert_equal(module, twin.module)
    assert [opt.round for opt in opts] == [2, 2]
    in_threads(*(o.close for o in opts))


def test_without_accumulation_nothing_is_copied_and_grad_stays(fake):
    module = model()
    opt = bt.AdamW(module.parameters())
    micro(module, opt, 0)
    _, _, lent = fake.last.calls[0]
    assert lent == [p.grad.data_ptr() for p in module.parameters()]


def test_a_micro_batch_attaches_nothing_and_changes_no_weight(fake):
    module = model()
    before = [p.detach().clone() for p in module.parameters()]
    opt = bt.AdamW(module.parameters(), accumulation_steps=2)
    micro(module, opt, 0)
    assert not fake.attached and opt.micro_steps == 1
    assert all(torch.equal(p, b) for p, b in zip(module.parameters(), before))


@pytest.mark.parametrize("zero", [lambda m, o: None, lambda m, o: o.zero_grad(set_to_none=False)])
def test_a_gradient_that_was_added_is_not_added_again(fake, zero):
    ours, twin = model(), Oracle(model())
    opt = bt.AdamW(ours.parameters(), lr=1e-2, accumulation_steps=3)
    for i in range(6):
        loss_of(ours, i).backward()
        opt.step()
        assert all(p.grad is None for p in ours.parameters())
        zero(ours, opt)
    twin.step(range(3))
    twin.step(range(3, 6))
    assert_equal(ours, twin.module)


def test_no_sync_makes_rounds_of_any_length(fake):
    ours, twin = model().bfloat16(), Oracle(model().bfloat16())
    opt = bt.AdamW(ours.parameters(), lr=1e-2)
    batches = iter(itertools.count())
    for length in (3, 1, 2):  # the last one is a short one
        used = [next(batches) for _ in range(length)]
        for i in used:
            with contextlib.nullcontext() if i == used[-1] else opt.no_sync():
                micro(ours, opt, i)
        twin.step(used)
    assert_equal(ours, twin.module)
    assert opt.round == 3


def test_a_short_last_round_of_counted_micro_batches(fake):
    ours, twin = model(), Oracle(model())
    opt = bt.AdamW(ours.parameters(), lr=1e-2, accumulation_steps=4)
    for i in range(6):
        if i == 4:
            opt.accumulation_steps = 2
        micro(ours, opt, i)
    twin.step(range(4))
    twin.step(range(4, 6))
    assert_equal(ours, twin.module)
    with opt.no_sync(), opt.no_sync():
        micro(ours, opt, 6)
        micro(ours, opt, 7)
    assert (opt.round, opt.micro_steps) == (2, 2)
    micro(ours, opt, 8)  # the count was reached inside
    assert (opt.round, opt.micro_steps) == (3, 0)


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, None, "x"])
def test_a_number_of_micro_batches_that_is_none_is_refused(fake, steps):
    with pytest.raises(ballast.BadArgument, match=f"accumulation_steps={steps!r}"):
        bt.AdamW(model().parameters(), accumulation_steps=steps)
    opt = bt.AdamW(model().parameters())
    with pytest.raises(ballast.BadArgument, match="accumulation_steps="):
        opt.accumulation_steps = steps
    assert opt.accumulation_steps == 1


def test_a_parameter_without_gradient_in_some_micro_batches_counts_as_zeros(fake):
    a, b, c = (nn.Parameter(torch.ones(3)) for _ in range(3))
    opt = bt.AdamW([a, b, c], accumulation_steps=3)
    for grads in ((1.0, None, None), (2.0, 5.0, None), (None, 7.0, None)):
        for p, g in zip((a, b), grads):
            p.grad = None if g is None else torch.full((3,), g)
        opt.step()
    _, _, lent = fake.last.calls[0]
    assert lent[2] == 0
    assert opt.grad_norm == pytest.approx((3 * 3.0**2 + 3 * 12.0**2) ** 0.5)


def test_a_closure_is_one_micro_batch(fake):
    ours, twin = model(), Oracle(model())
    opt = bt.AdamW(ours.parameters(), lr=1e-2, accumulation_steps=2)
    for i in range(2):

        def closure(i=i):
            opt.zero_grad()
            loss = loss_of(ours, i)
            loss.backward()
            return loss

        assert opt.step(closure) > 0
    twin.step(range(2))
    assert_equal(ours, twin.module)


def test_parameters_that_thaw_between_micro_batches_join_with_what_they_have(fake):
    ours, twin = model(), Oracle(model())
    opt = bt.AdamW(ours.parameters(), lr=1e-2, accumulation_steps=2)
    ours[0].requires_grad_(False)
    micro(ours, opt, 0)
    ours[0].requires_grad_(True)
    micro(ours, opt, 1)
    head = [g if i >= 2 else torch.zeros_like(g) for i, g in enumerate(gradients(twin.module, 0))]
    for master, first, second in zip(twin.masters, head, gradients(twin.module, 1)):
        master.grad = first + second
    twin.opt.step()
    assert all(torch.equal(p, m) for p, m in zip(ours.parameters(), twin.masters))


def test_one_micro_batch_that_is_not_finite_skips_the_whole_round(fake):
    module = model()
    before = [p.detach().clone() for p in module.parameters()]
    opt = bt.AdamW(module.parameters(), accumulation_steps=3)
    for i in range(3):
        opt.zero_grad()
        loss_of(module, i).backward()
        if i == 1:
            module[0].bias.grad[0] = float("inf")
        opt.step()
    assert opt.step_was_skipped and (opt.round, opt.micro_steps) == (1, 0)
    assert all(torch.equal(p, b) for p, b in zip(module.parameters(), before))


def test_clipping_is_of_the_sum(fake):
    module = model()
    opt = bt.AdamW(module.parameters(), accumulation_steps=2, max_grad_norm=1e-3)
    micro(module, opt, 0)
    assert opt.clip_coef is None
    norm = torch.cat([g.flatten() for g in summed(module, range(2))]).double().norm().item()
    micro(module, opt, 1)
    assert opt.grad_norm == pytest.approx(norm)


def fail_in_backward(module, opt):
    with pytest.raises(RuntimeError, match="element 0"):
        loss_of(module, 1).detach().backward()


def fail_in_closure(module, opt):
    def closure():
        raise MemoryError

    with pytest.raises(MemoryError):
        opt.step(closure)


def fail_in_step(module, opt):
    loss_of(module, 1).backward()
    module[2].weight.grad = module[2].weight.grad.to_sparse()
    with pytest.raises(ballast.Unsupported, match="2.weight"):
        opt.step()


def fail_before_the_round(module, opt):
    loss_of(module, 1).backward()
    opt.user_state = object()
    with pytest.raises(ballast.BadArgument):
        opt.step()
    opt.user_state = None


@pytest.mark.parametrize(
    ("k", "fail"),
    [
        (2, fail_in_backward), (2, fail_in_closure), (2, fail_in_step), (2, fail_before_the_round),
        (3, fail_in_backward), (3, fail_in_closure), (3, fail_in_step),
    ],
)  # fmt: skip
def test_after_an_exception_the_micro_batch_can_be_tried_again(fake, fail, k):
    ours, twin = model().bfloat16(), Oracle(model().bfloat16())
    opt = bt.AdamW(ours.named_parameters(), lr=1e-2, accumulation_steps=k)
    micro(ours, opt, 0)
    fail(ours, opt)
    assert opt.micro_steps == 1
    for i in range(1, k):
        micro(ours, opt, i)
    twin.step(range(k))
    assert_equal(ours, twin.module)


def test_the_state_dict_is_refused_between_micro_batches(fake):
    module = model()
    opt = bt.AdamW(module.parameters(), accumulation_steps=2)
    micro(module, opt, 0)
    with pytest.raises(ballast.BadArgument, match="1 micro-batches.*discard_accumulated"):
        opt.state_dict()
    micro(module, opt, 1)
    assert opt.state_dict()["ballast"]["round"] == 1
    micro(module, opt, 2)
    opt.discard_accumulated()
    assert opt.micro_steps == 0
    assert opt.state_dict()["ballast"]["round"] == 1


def test_strided_scalar_and_empty_parameters_add_up(fake):
    params = [
        nn.Parameter(torch.ones(4, 3).t()), nn.Parameter(torch.ones(())),
        nn.Parameter(torch.ones(0)),
    ]  # fmt: skip
    opt = bt.SGD(params, lr=1.0, accumulation_steps=2)
    for g in (0.25, 0.5):
        for p in params:
            p.grad = torch.full_like(p, g)
        opt.step()
    assert all(torch.equal(p, torch.full_like(p, 0.25)) for p in params)
