"""fp16 under Trainer: whatever a loss is made of, all of its gradient has the loss scale."""

from __future__ import annotations

import itertools

import accelerate
import ballast.hf
import ballast.torch as bt
import pytest
import torch
import transformers
from ballast.errors import BadArgument
from ballast.hf import scaling
from ballast.hf.resuming import resuming
from hf_trainer import tiny

REAL = accelerate.Accelerator.backward
SCALE = 1024.0
FP16 = {"optimizer": {"type": "SGD", "params": {"lr": "auto"}},
        "fp16": {"enabled": True, "loss_scale": SCALE}, "gradient_clipping": 0.0}  # fmt: skip
OUTPUTS = ("loss", "logits", "log_probs", "aux")


class Outputs(torch.nn.Module):
    """Outputs made from one another, and from parameters of their own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 6)
        self.aux = torch.nn.Linear(8, 3)

    def forward(self, input_ids, labels):
        x = torch.nn.functional.one_hot(input_ids % 8, 8).to(self.body.weight.dtype)
        hidden = torch.tanh(self.body(x))
        logits = self.head(hidden)
        log_probs = logits.log_softmax(-1).gather(-1, (labels % 6)[..., None])
        return {"loss": -log_probs.mean(), "logits": logits, "log_probs": log_probs,
                "aux": self.aux(hidden)}  # fmt: skip


def batch(i):
    return {key: torch.stack([tiny.Data()[i][key], tiny.Data()[i + 1][key]])
            for key in ("input_ids", "labels")}  # fmt: skip


def loss_of(module, i, names):
    out = module(**batch(i))
    return sum(out[n] if n == "loss" else out[n].float().square().mean() for n in names)


def scaled(module, **more):
    """An accelerator and an optimizer of the service, as the callback leaves them."""
    optimizer = resuming(bt.SGD)(
        module.named_parameters(), lr=0.0, loss_scale=SCALE, job="scaled", **more)
    optimizer.managed = True
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.prepare(optimizer)
    scaling.begin(optimizer)
    return accelerator, optimizer


def gradients(module, divisor=1.0):
    return {n: p.grad.float() / divisor for n, p in module.named_parameters() if p.grad is not None}


def assert_close(ours, theirs, within):
    """Each gradient, relative to the largest one: fp16 has 11 bits."""
    assert ours.keys() == theirs.keys() and theirs
    for name, value in theirs.items():
        worst = (ours[name] - value).abs().max() / value.abs().max().clamp(min=1e-6)
        assert worst < within, (name, float(worst))


@pytest.fixture(autouse=True)
def restored():
    yield
    for optimizer in list(scaling._guards):
        scaling.end(optimizer)
    assert accelerate.Accelerator.backward is REAL


SUBSETS = [s for n in range(1, 5) for s in itertools.combinations(OUTPUTS, n)]


def test_the_gradient_of_each_subset_of_outputs_is_that_of_fp32(fake):
    halves, whole = Outputs().half(), Outputs()
    accelerator, optimizer = scaled(halves)
    plain = accelerate.Accelerator(cpu=True)
    for names in SUBSETS:
        for i in (0, 2):  # micro-batches of one step
            given = loss_of(halves, i, names)
            before = given.item()
            accelerator.backward(given)
            assert given.item() == before
            plain.backward(loss_of(whole, i, names))
        assert_close(gradients(halves, SCALE), gradients(whole), 0.01)
        optimizer.step()
        halves.zero_grad()
        whole.zero_grad()


def refused(optimizer):
    for _ in range(2):  # a second try is as wrong
        with pytest.raises(BadArgument, match="lack the loss scale 1024.*accelerator.backward"):
            optimizer.step()


def test_each_step_refuses_gradients_that_lack_the_scale(fake):
    module = Outputs().half()
    accelerator, optimizer = scaled(module)
    for rounds in (1, 2):
        accelerator.backward(loss_of(module, 0, ["loss"]))
        optimizer.step()
        module.zero_grad()
        module.head.weight.grad = torch.ones_like(module.head.weight)
        refused(optimizer)
        module.zero_grad()
        loss_of(module, 0, ["aux"]).backward()
        refused(optimizer)
        module.zero_grad()
        accelerator.backward(loss_of(module, 0, ["loss"]))
        loss_of(module, 0, ["aux"]).backward()
        refused(optimizer)
        module.zero_grad()
        assert optimizer.round == rounds


def test_a_model_that_another_optimizer_takes_over_is_scaled_once(fake):
    """As after an exception in train(): the first one has not ended."""
    module = Outputs().half()
    first = scaled(module)
    second = scaled(module)
    whole = Outputs()
    loss_of(whole, 0, OUTPUTS).backward()
    for accelerator, optimizer in (second, first):
        scaling.begin(optimizer)
        accelerator.backward(loss_of(module, 0, OUTPUTS))
        assert_close(gradients(module, SCALE), gradients(whole), 0.01)
        optimizer.step()
        module.zero_grad()
    scaling.end(second[1])
    loss_of(module, 0, OUTPUTS).backward()  # trained on without a scale
    assert_close(gradients(module), gradients(whole), 0.01)


def test_a_loss_is_not_multiplied_for_optimizers_that_do_not_divide(fake):
    module = Outputs().half()
    accelerator, optimizer = scaled(module)
    with pytest.raises(BadArgument, match=r"accelerator.backward\(loss\) multiplies"):
        optimizer.scale(loss_of(module, 0, ["loss"]))
    accelerator.prepare(torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1))
    with pytest.raises(BadArgument, match="by different scales .SGD by 1024, SGD by 1.*prepare"):
        accelerator.backward(loss_of(module, 0, ["loss"]))
    scaling.end(optimizer)
    assert optimizer.scale(torch.ones(())) == SCALE and accelerate.Accelerator.backward is REAL


class Kept(ballast.hf.Callback):
    """Keeps the gradients of the step."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        self.kept = {n: p.grad.float() for n, p in model.named_parameters()}


class Mixed(transformers.Trainer):
    """A term of its own next to the model's loss."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        loss = out.loss + 0.1 * out.logits.float().logsumexp(-1).square().mean()
        return (loss, out) if return_outputs else loss


class Fused(torch.nn.Module):
    """Returns neither a loss nor logits, as the models of TRL's trainers."""

    def __init__(self):
        super().__init__()
        self.inner = tiny.model()

    def forward(self, input_ids, labels):
        logits = self.inner(input_ids).logits[:, :-1]
        chosen = logits.log_softmax(-1).gather(-1, labels[:, 1:, None])
        return {"entropy": -chosen.exp().square().mean(), "log_probs": chosen}


class FromLogProbs(transformers.Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        return -out["log_probs"].float().mean()


class InTwoPasses(transformers.Trainer):
    """Calls Accelerate itself, once for each part of the loss; one part under its own autocast."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        out = model(**inputs)
        self.accelerator.backward(out.loss, retain_graph=True)
        with torch.autocast("cpu", torch.bfloat16):
            likeness = out.logits @ out.logits.mT
        self.accelerator.backward(likeness.float().square().mean())
        return out.loss.detach()


@pytest.mark.parametrize(("kind", "more", "within"), [
    (Mixed, {"gradient_accumulation_steps": 2}, 0.02),
    (FromLogProbs, {}, 0.02),
    (InTwoPasses, {}, 0.05),
    (transformers.Trainer, {"label_smoothing_factor": 0.3}, 0.02),
], ids=["mixed", "log_probs", "two_passes", "smoothed"])  # fmt: skip
def test_trainer_has_the_gradients_and_the_loss_of_fp32(fake, tmp_path, kind, more, within):
    args = tiny.arguments(tmp_path, max_steps=1, logging_steps=1, **more)
    runs = []
    for config in (FP16, {**FP16, "fp16": {"enabled": False}}):
        callback = Kept()
        model = Fused() if kind is FromLogProbs else tiny.model()
        run = kind(model, args, train_dataset=tiny.Data(), callbacks=[callback])
        run.optimizer_cls_and_kwargs = ballast.hf.optimizer(config, args)
        run.train()
        runs.append((callback.kept, run.state.log_history[0]["loss"]))
    (ours, logged), (theirs, wanted) = runs
    assert_close({n: g / SCALE for n, g in ours.items()}, theirs, within)
    assert logged == pytest.approx(wanted, rel=0.01)


def test_a_training_step_with_a_backward_of_its_own_is_refused(fake, tmp_path):
    class Own(transformers.Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            loss = super().training_step(model, inputs, num_items_in_batch)
            model(**inputs).loss.backward()
            return loss

    args = tiny.arguments(tmp_path, max_steps=1)
    run = Own(tiny.model(), args, train_dataset=tiny.Data(), callbacks=[ballast.hf.Callback()],
              optimizer_cls_and_kwargs=ballast.hf.optimizer(FP16, args))  # fmt: skip
    with pytest.raises(BadArgument, match="lack the loss scale 1024"):
        run.train()
    assert not any(call[0] == "step" for call in fake.last.calls)
