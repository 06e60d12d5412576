"""loss_scale="dynamic", opt.scale() and opt.loss_scale over the fake core."""

import contextlib

import pytest
import torch

import ballast
import ballast.torch as bt
from training import batch, model


def step(module, opt, scaled=True):
    opt.zero_grad()
    loss = module(batch(0)).square().mean()
    (opt.scale(loss) if scaled else loss).backward()
    opt.step()


def test_the_defaults_are_deepspeeds(fake):
    opt = bt.AdamW(model().parameters(), loss_scale="dynamic")
    opt.attach()
    assert fake.last.options["loss_scale"] == (16, 1000, 2, False, 1.0)
    given = bt.DynamicLossScale(8, loss_scale_window=3, hysteresis=1, min_loss_scale=0.5)
    bt.AdamW(model().parameters(), loss_scale=given, job="other").attach()
    assert fake.last.options["loss_scale"] == (8, 3, 1, False, 0.5)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"initial_scale_power": 127}, "initial_scale_power must be 0 to 126, got 127; 16 is"),
        ({"initial_scale_power": -1}, "initial_scale_power must be 0 to 126, got -1"),
        ({"initial_scale_power": 1.5}, "initial_scale_power is 1.5; it must be a whole number"),
        ({"loss_scale_window": 0}, "loss_scale_window must be a positive integer, got 0; 1000"),
        ({"hysteresis": 0}, "hysteresis must be a positive integer, got 0; 1 lowers"),
        ({"hysteresis": 2**63}, "hysteresis is 9223372036854775808; it must be below"),
        ({"consecutive_hysteresis": 1}, "consecutive_hysteresis is 1; it must be True or False"),
        ({"min_loss_scale": 0}, "min_loss_scale must be above 0 and at most .* 65536, got 0"),
        ({"min_loss_scale": 2.0**17}, "at most the initial scale 65536, got 131072"),
        ({"min_loss_scale": 2.0**-21}, "min_loss_scale must be at least 9.53674e-07, got 4.76"),
        ({"min_loss_scale": float("nan")}, "min_loss_scale must be above 0 .* got nan"),
        ({"min_loss_scale": "x"}, "min_loss_scale is 'x'; it must be a number"),
    ],
)
def test_numbers_that_cannot_be_are_refused_where_they_stand(arguments, text):
    with pytest.raises(ballast.BadHyperparam, match=text):
        bt.DynamicLossScale(**arguments)


def test_the_scale_is_the_services_at_every_backward(fake):
    module = model()
    opt = bt.AdamW(module.parameters(), loss_scale=bt.DynamicLossScale(4))
    assert opt.loss_scale == opt.cur_scale == 16.0
    assert fake.attached and opt.round == 0
    step(module, opt)
    scaled = module[0].bias.grad.clone()
    assert not opt.step_was_skipped and opt.skipped_steps == 0
    opt.zero_grad()
    opt.scale(module(batch(0)).square().mean()).backward()
    module[0].bias.grad[0] = float("inf")
    opt.step()
    assert (opt.step_was_skipped, opt.skipped_steps, opt.loss_scale) == (True, 1, 8.0)
    step(module, opt)
    assert (opt.step_was_skipped, opt.skipped_steps, opt.opt_step) == (False, 1, 2)
    assert torch.isfinite(scaled).all()


def test_a_scale_is_a_power_of_two_that_changes_no_bit(fake):
    ours, twin = model(), model()
    opt = bt.AdamW(ours.parameters(), lr=1e-2, loss_scale="dynamic")
    theirs = torch.optim.AdamW(twin.parameters(), lr=1e-2, foreach=False)
    for _ in range(3):
        step(ours, opt)
        theirs.zero_grad()
        twin(batch(0)).square().mean().backward()
        theirs.step()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), twin.parameters()))


def test_gradients_that_were_not_scaled_are_refused_with_what_to_do(fake):
    module = model()
    before = [p.detach().clone() for p in module.parameters()]
    opt = bt.AdamW(module.parameters(), loss_scale="dynamic")
    with pytest.raises(ballast.LossScaleMismatch, match=r"slot 0 sent 1.*opt\.scale\(loss\)"):
        step(module, opt, scaled=False)
    assert all(torch.equal(p, b) for p, b in zip(module.parameters(), before))
    step(module, opt)
    assert opt.round == 1


def test_a_scale_that_was_read_once_and_kept_is_refused_when_it_has_moved(fake):
    module = model()
    opt = bt.AdamW(module.parameters(), loss_scale=bt.DynamicLossScale(4))
    kept = opt.loss_scale
    for r in range(3):
        opt.zero_grad()
        (kept * module(batch(0)).square().mean()).backward()
        if r == 1:
            module[0].bias.grad[0] = float("nan")
        refused = pytest.raises(ballast.LossScaleMismatch, match="sent 16")
        with refused if r == 2 else contextlib.nullcontext():
            opt.step()


def test_a_resumed_job_says_the_scale_of_its_first_backward(fake):
    fake.resumes = (5, 0.5, b"")
    fake.policy_said = {"loss_scale": 256.0, "skipped_rounds": 3, "last_skipped": True}
    module = model()
    opt = bt.AdamW(module.parameters(), loss_scale="dynamic", resume="auto")
    with pytest.raises(ballast.BadArgument, match=r"resume='auto' needs opt.attach\(\)"):
        opt.scale(module(batch(0)).square().mean())  # made with the old weights
    assert opt.loss_scale == 256.0 and opt.resumed
    assert (opt.skipped_steps, opt.step_was_skipped) == (3, True)
    step(module, opt)
    assert opt.round == 6


def test_a_static_scale_works_as_before(fake):
    module = model()
    opt = bt.AdamW(module.parameters(), loss_scale=128)
    assert opt.loss_scale == 128.0 and not fake.attached
    step(module, opt)
    norm = opt.grad_norm
    plain = bt.AdamW(model().parameters(), job="plain")
    assert plain.scale(torch.ones(())) == 1.0
    other = model()
    unscaled = bt.AdamW(other.parameters(), job="unscaled")
    step(other, unscaled)
    assert unscaled.grad_norm == pytest.approx(norm)
    module[0].bias.grad[0] = float("nan")
    opt.step()
    assert opt.skipped_steps == 1


def test_losses_of_16_bits_are_scaled_in_fp32():
    opt = bt.AdamW(model().parameters(), loss_scale=65536.0, endpoints="x:1", job="j")
    loss = torch.tensor(3.0, dtype=torch.float16, requires_grad=True)
    scaled = opt.scale(loss)
    assert (scaled.dtype, scaled.item()) == (torch.float32, 3.0 * 65536)
    scaled.backward()
    assert opt.scale(torch.ones((), dtype=torch.float64)).dtype == torch.float64
    with pytest.raises(ballast.BadArgument, match="takes the loss as a tensor, not a float"):
        opt.scale(1.0)


def test_micro_batches_have_one_scale(fake):
    module, opt = model(), None
    opt = bt.AdamW(module.parameters(), loss_scale=bt.DynamicLossScale(4), accumulation_steps=2)
    step(module, opt)
    step(module, opt)
    assert (opt.round, opt.micro_steps) == (1, 0)
    step(module, opt, scaled=False)  # read before, so it passes for scaled
    assert opt.micro_steps == 1


def test_an_additional_grad_scaler_is_refused_by_name(fake):
    module = model()
    opt = bt.AdamW(module.parameters(), loss_scale="dynamic")
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(module(batch(0)).square().mean()).backward()
    with pytest.raises(ballast.Unsupported, match="GradScaler.*dynamic.*opt.scale"):
        scaler.step(opt)


def test_halting_at_the_first_overflow_contradicts_a_dynamic_scale(fake):
    with pytest.raises(ballast.BadArgument, match="nonfinite='halt' with a dynamic loss_scale"):
        bt.AdamW(model().parameters(), loss_scale="dynamic", nonfinite="halt")
    with pytest.raises(ballast.BadArgument, match="loss_scale='dynamik': must be a positive, fin"):
        bt.AdamW(model().parameters(), loss_scale="dynamik")


def micro(module, opt, scaled=True):
    step(module, opt, scaled)
    return opt.micro_steps


@pytest.mark.parametrize("first, second", [(False, True), (True, False)])
def test_micro_batches_of_two_scales_are_refused_and_the_round_begins_again(fake, first, second):
    ours, twin = model(), model()
    scale = bt.DynamicLossScale(4)
    opt = bt.AdamW(ours.parameters(), lr=1e-2, loss_scale=scale, accumulation_steps=2)
    if first:
        opt.attach()
        micro(ours, opt)
        opt._rounds.scale._read = 8.0  # the scale of a script that reads another optimizer's
    else:
        micro(ours, opt, scaled=False)
    with pytest.raises(ballast.LossScaleMismatch, match=r"micro-batch 2 .*sum of 1 micro-batches"):
        micro(ours, opt, scaled=second)
    assert (opt.micro_steps, opt.round) == (0, 0)
    for _ in range(2):
        micro(ours, opt)
    theirs = torch.optim.AdamW(twin.parameters(), lr=1e-2, foreach=False)
    for _ in range(2):
        twin(batch(0)).square().mean().backward()
    theirs.step()
    assert opt.round == 1
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), twin.parameters()))


def test_a_sum_that_the_service_refuses_is_dropped(fake):
    module = model()
    opt = bt.AdamW(module.parameters(), loss_scale=bt.DynamicLossScale(4), accumulation_steps=2)
    kept = opt.loss_scale

    def stale():
        opt.zero_grad()
        (kept * module(batch(0)).square().mean()).backward()
        opt.step()

    stale()
    module[0].bias.grad = torch.full_like(module[0].bias, float("nan"))
    opt.step()
    assert opt.step_was_skipped
    stale()
    with pytest.raises(ballast.LossScaleMismatch, match=r"sent 16.*sum of 1 micro-batches is drop"):
        stale()
    assert opt.micro_steps == 0
    for _ in range(2):
        micro(module, opt)
    assert (opt.round, opt.opt_step) == (2, 1)
