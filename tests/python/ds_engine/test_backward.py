"""loss.backward() and engine.scale() next to engine.backward(): each is divided and scaled once.

What DeepSpeed 0.19.8 gives for rounds of one pass a micro-batch was seen there (stage 1); for a
model that returns its loss and the loss's inputs DeepSpeed divides the loss twice.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import itertools

import ballast.deepspeed as deepspeed
import pytest
import torch
from ballast.errors import BadArgument
from torch.utils.checkpoint import checkpoint

SCALE = 256
MODES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclasses.dataclass
class Both:
    loss: torch.Tensor
    logits: torch.Tensor


class Net(torch.nn.Module):
    """Two layers; returns what `form` makes of a loss and the logits that it comes from."""

    def __init__(self, form=lambda loss, logits: logits, reentrant=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)
        self.form, self.reentrant = form, reentrant

    def forward(self, x):
        if self.reentrant:
            x = checkpoint(self.first, x.requires_grad_(), use_reentrant=True)
        else:
            x = self.first(x)
        logits = self.last(x)
        return self.form(logits.float().sum(), logits)


def config(mode="fp32", accumulation=2, **more):
    short = {} if mode == "fp32" else {mode: {"enabled": True}}
    if mode == "fp16":
        short["fp16"]["loss_scale"] = SCALE
    return {
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 0.0, "optimizer": {"type": "SGD", "params": {"lr": 1.0}},
        **short, **more,
    }  # fmt: skip


def engine_of(net, *given, **more):
    return deepspeed.initialize(model=net, config=config(*given, **more))[0]


def batch(i, mode="fp32"):
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(i)).to(MODES[mode])


PASSES = {
    "engine": lambda engine, loss: engine.backward(loss),
    "plain": lambda engine, loss: loss.backward(),
    "scaled": lambda engine, loss: engine.scale(loss).backward(),
}


def masters(engine):
    return [state["master"] for state in engine.optimizer.export_state()["state"].values()]


def step_of(loss_of, accumulation, mode):
    """The parameters after the step of SGD with rate 1, whose gradients are those of fp32."""
    twin = Net().to(MODES[mode]).float()
    for i in range(accumulation):
        loss_of(twin, i).backward()
    return [p.detach() - p.grad / accumulation for p in twin.parameters()]


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_passes_in_any_order_count_alike(fake, mode, accumulation):
    kinds = ["engine", "scaled"] if mode == "fp16" else list(PASSES)
    expected = step_of(lambda net, i: net(batch(i)).square().mean(), accumulation, mode)
    for chosen in itertools.product(kinds, repeat=accumulation):
        engine = engine_of(Net(), mode, accumulation)
        for i, kind in enumerate(chosen):
            PASSES[kind](engine, engine(batch(i, mode)).float().square().mean())
            engine.step()
        for mine, theirs in zip(masters(engine), expected, strict=True):
            torch.testing.assert_close(mine, theirs, atol=3e-3 if mode != "fp32" else 1e-6, rtol=0)
        assert engine.global_steps == 1


@pytest.mark.parametrize("form", [
    lambda loss, logits: {"loss": loss, "logits": logits},
    lambda loss, logits: (loss, [logits, logits], 3, None),
    Both,
])  # fmt: skip
def test_a_loss_and_the_logits_that_it_comes_from_are_divided_once(fake, form):
    def parts(given):
        if isinstance(given, dict):
            return given["loss"], given["logits"]
        return (given.loss, given.logits) if isinstance(given, Both) else (given[0], given[1][1])

    def both(net, i):
        logits = net(batch(i))
        return logits.sum() + logits.square().mean()

    for kind in ("plain", "engine"):
        engine = engine_of(Net(form))
        for i in range(2):
            given = engine(batch(i))
            assert type(given) is type(form(torch.ones(1), torch.ones(1)))
            loss, logits = parts(given)
            PASSES[kind](engine, loss + logits.square().mean())
            engine.step()
        for mine, theirs in zip(masters(engine), step_of(both, 2, "fp32"), strict=True):
            torch.testing.assert_close(mine, theirs)


def test_passes_of_one_micro_batch_add_up_and_no_graph_is_divided_twice(fake):
    """A kept graph goes through both kinds; a model of two engines is divided by one of them."""
    engine = engine_of(Net())
    loss = engine(batch(0)).square().mean()
    engine.backward(loss / 2, retain_graph=True, scale_wrt_gas=False)
    engine.zero_grad()
    engine.backward(loss, retain_graph=True, scale_wrt_gas=False)
    engine.zero_grad()
    engine.backward(loss, retain_graph=True)
    loss.backward()
    twin = Net()
    twin(batch(0)).square().mean().backward()
    assert torch.equal(engine.module.last.bias.grad, twin.last.bias.grad)  # 1/2 + 1/2
    engine.zero_grad()
    above = engine_of(torch.nn.Linear(2, 1), "fp32", 1)
    scores = above(engine(batch(0))).mean()
    above.backward(scores)
    undivided = engine.module.last.bias.grad.clone()
    engine.zero_grad()
    torch.manual_seed(0)
    above.module(engine.module(batch(0))).mean().backward()
    assert torch.equal(engine.module.last.bias.grad, undivided)


def test_a_chain_of_engines_is_divided_by_each_and_by_one_only_is_refused(fake):
    """As DeepSpeed 0.19.8 divides a plain backward(); the other pass one of its engines divides."""
    def chain():
        last = deepspeed.initialize(model=torch.nn.Linear(2, 2), config=config(accumulation=4))[0]
        return engine_of(Net(), "fp32", 2), last

    first, last = chain()
    plain = copy.deepcopy([first.module, last.module])
    last(first(batch(0))).sum().backward()
    plain[1](plain[0](batch(0))).sum().backward()
    for module, whole, divisor in ((last.module, plain[1], 4), (first.module, plain[0], 8)):
        for mine, theirs in zip(module.parameters(), whole.parameters()):
            assert torch.equal(mine.grad, theirs.grad / divisor)
    first, last = chain()
    last.backward(last(first(batch(1))).sum())
    first.set_gradient_accumulation_boundary(True)
    with pytest.raises(BadArgument, match="neither engine.backward.loss. was called in it"):
        first.step()


def test_a_loss_that_is_an_output_and_was_divided_is_not_divided_again(fake):
    engine = engine_of(Net(lambda loss, logits: loss), "fp32", 4)
    gradients = []
    for same in (lambda loss: loss, lambda loss: loss * 1.0):
        engine.backward(same(engine(batch(0))), scale_wrt_gas=False)
        gradients.append(engine.module.last.bias.grad.tolist())
        engine.zero_grad()
    assert gradients == [[3, 3], [3, 3]]


@pytest.mark.parametrize("kind", ["plain", "engine"])
def test_an_edit_of_an_output_in_place_is_divided(fake, kind):
    """Of an input with three dimensions, as here, a Linear returns a view."""

    def masked(logits):
        logits.div_(2)
        logits[:, 0] = 0
        return logits.square().sum()

    engine = engine_of(Net(lambda loss, logits: (logits, [logits])))
    for i in range(2):
        logits, again = engine(batch(i)[None])
        assert again[0] is logits
        PASSES[kind](engine, masked(logits))
        engine.step()
    expected = step_of(lambda net, i: masked(net(batch(i)[None])), 2, "fp32")
    for mine, theirs in zip(masters(engine), expected, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("form", [
    lambda net, x: net.last.bias.view(2, 1),
    lambda net, x: x,
    lambda net, x: x[:, 1:],
    lambda net, x: (lambda y: (y[:, 1:], y))(net.first(x)),
])  # fmt: skip
def test_an_edit_that_other_graphs_would_not_see_is_refused(fake, form):
    class Returns(Net):
        def forward(self, x):
            return form(self, x)

    engine = engine_of(Returns())
    given = engine(batch(0).requires_grad_() * 1)
    with pytest.raises(RuntimeError, match="cloning the output"):
        (given[0] if isinstance(given, tuple) else given).div_(2)


def test_a_parameter_that_takes_the_place_of_another_joins_and_is_guarded(fake):
    engine = engine_of(Net(), "fp16", 1)
    engine.backward(engine(batch(0, "fp16")).float().sum())
    engine.step()
    engine.module.last = torch.nn.Linear(4, 2).half()
    engine.module.first.requires_grad_(False)
    engine.optimizer.param_groups[0]["params"][2:] = engine.module.last.parameters()
    assert engine.optimizer._membership.may_grow(engine.optimizer.param_groups)
    with pytest.raises(BadArgument, match="without the loss scale"):
        engine(batch(0, "fp16")).float().sum().backward()


@pytest.mark.parametrize("accumulation", [1, 2])
def test_an_unscaled_pass_of_fp16_raises_and_its_gradients_make_no_round(fake, accumulation):
    engine = engine_of(Net(), "fp16", accumulation)
    for loss in (
        lambda: engine(batch(0, "fp16")).float().sum(),
        lambda: engine.module(batch(0, "fp16")).float().sum(),
        lambda: sum(p.float().square().sum() for p in engine.parameters()),
    ):
        engine.backward(engine(batch(0, "fp16")).float().sum())
        with pytest.raises(RuntimeError, match="without the loss scale: call engine.backward"):
            loss().backward()
        if accumulation == 2:
            engine.step()
        with pytest.raises(BadArgument, match="without the loss scale"):
            engine.step()
        engine.zero_grad()
        if accumulation == 2:
            engine._boundary.micro_steps = 0
    assert engine.optimizer.round == 0
    engine.scale(engine(batch(0, "fp16")).float().sum()).backward()  # and those after it count
    for _ in range(accumulation):
        engine.step()
    assert engine.global_steps == 1


def test_a_pass_inside_of_a_scaled_one_is_scaled(fake):
    """A reentrant checkpoint begins a pass of its own; so does its error leave nothing."""
    engine = engine_of(Net(reentrant=True), "fp16", 1)
    engine.backward(engine(batch(0, "fp16")).float().sum())
    engine.scale(engine(batch(0, "fp16")).float().sum()).backward()
    with pytest.raises(BadArgument, match="without the loss scale"):
        engine(batch(0, "fp16")).float().sum().backward()


def test_autograd_grad_needs_no_scale_and_copies_have_no_guard(fake):
    engine = engine_of(Net(), "fp16", 1)
    assert torch.autograd.grad(engine(batch(0, "fp16")).sum(), engine.module.last.bias)
    copied = copy.deepcopy(engine.module)
    copied(batch(0, "fp16")).sum().backward()
    module = engine.module
    engine.destroy()
    module(batch(0, "fp16")).sum().backward()
    other = engine_of(Net(), "fp16", 1).module
    gc.collect()
    other(batch(0, "fp16")).sum().backward()  # its engine is gone


def test_sums_in_fp32_take_passes_of_the_script(fake):
    sums = {"data_types": {"grad_accum_dtype": "fp32"}}
    engines = [engine_of(Net(), "bf16", 4, **sums) for _ in range(2)]
    for i in range(4):
        for engine, kind in zip(engines, ("engine", "plain" if i % 2 else "engine")):
            PASSES[kind](engine, engine(batch(i, "bf16")).float().sum() * (1 + i / 64))
            engine.step()
    for one, other in zip(*map(masters, engines), strict=True):
        assert torch.equal(one, other)


def test_a_round_that_nothing_divides_is_refused(fake):
    """Without accumulation there is nothing to divide: the gradients of any pass are right."""
    engine = engine_of(Net(), "fp32", 2)
    engine.module(batch(0)).sum().backward()
    engine.step()
    with pytest.raises(BadArgument, match="come through an output of engine"):
        engine.step()
    alone = engine_of(Net(), "fp32", 1)
    with pytest.raises(BadArgument, match="neither engine.backward"):
        alone.step()
    alone.module(batch(0)).sum().backward()
    alone.step()
    assert alone.global_steps == 1


def test_calls_that_deepspeed_asserts_raise_an_assertion_error(fake):
    engine = engine_of(Net())
    for call in (engine.backward, engine.scale):
        for wrong in (engine(batch(0)), 3.0):
            with pytest.raises(AssertionError, match="takes a loss of one element"):
                call(wrong)
    with engine.no_sync(), pytest.raises(AssertionError, match="inside no_sync"):
        engine.step()
