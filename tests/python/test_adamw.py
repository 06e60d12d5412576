"""ballast.torch.AdamW against torch.optim.AdamW: same loop, same bits, over the fake core."""

import copy

import pytest
import torch
from torch import nn

import ballast
import ballast.torch as bt
from training import assert_equal, batch, model, run, twins


def test_the_three_line_use_gives_torchs_bits(fake):
    ours, theirs = twins(
        lambda m: bt.AdamW(m.parameters(), lr=3e-2),
        lambda m: torch.optim.AdamW(m.parameters(), lr=3e-2, foreach=False),
    )
    run(*ours, 10)
    run(*theirs, 10)
    assert_equal(ours[0], theirs[0])
    assert ours[1].round == ours[1].opt_step == 10
    assert ours[1].last_report["round"] == 10
    assert ours[1].job_id == 2**64 - 1


def test_nothing_is_attached_before_the_first_step(fake):
    opt = bt.AdamW(model().parameters())
    opt.zero_grad()
    opt.state_dict()
    assert not fake.attached
    assert opt.last_report is None and opt.grad_norm is None and opt.counters == {}
    assert not opt.step_was_skipped


SCHEDULES = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.5),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: 1 / (t + 1)),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=12),
    "cyclic": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 1e-3, 1e-1, 3, cycle_momentum=True),
    "sequential": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=3),
            torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        ],
        [3],
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_any_torch_scheduler_works(fake, name):
    ours, theirs = twins(
        lambda m: bt.AdamW(m.parameters(), lr=1e-2),
        lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, foreach=False),
    )
    run(*ours, 10, SCHEDULES[name](ours[1]))
    run(*theirs, 10, SCHEDULES[name](theirs[1]))
    assert_equal(ours[0], theirs[0])
    lrs = {hyper[0][0] for kind, hyper, _ in fake.last.calls if kind == "step"}
    assert len(lrs) > 1


def test_groups_have_their_own_hyperparameters(fake):
    def groups(m):
        return [
            {"params": m[0].parameters(), "lr": 1e-1, "betas": (0.5, 0.9)},
            {"params": m[2].parameters(), "weight_decay": 0.3, "eps": 1e-4},
        ]

    ours, theirs = twins(
        lambda m: bt.AdamW(groups(m), lr=1e-2),
        lambda m: torch.optim.AdamW(groups(m), lr=1e-2, foreach=False),
    )
    run(*ours, 5)
    run(*theirs, 5)
    assert_equal(ours[0], theirs[0])
    assert fake.last.calls[0][1] == [(1e-1, 0.5, 0.9, 1e-8, 1e-2), (1e-2, 0.9, 0.999, 1e-4, 0.3)]


def test_tensor_hyperparameters_are_sent_as_numbers(fake):
    opt = bt.AdamW(model().parameters(), lr=torch.tensor(0.25), betas=(torch.tensor(0.5), 0.75))
    opt.step()
    assert fake.last.calls[0][1] == [(0.25, 0.5, 0.75, 1e-8, 1e-2)]


def test_a_closure_runs_with_gradients_and_its_loss_is_returned(fake):
    ours, theirs = twins(
        lambda m: bt.AdamW(m.parameters()),
        lambda m: torch.optim.AdamW(m.parameters(), foreach=False),
    )
    for module, optimizer in (ours, theirs):

        def closure(module=module, optimizer=optimizer):
            optimizer.zero_grad()
            loss = module(batch(0)).square().mean()
            loss.backward()
            return loss

        with torch.no_grad():
            losses = [optimizer.step(closure) for _ in range(3)]
        assert losses[0] > losses[2]
    assert_equal(ours[0], theirs[0])


def test_gradients_accumulate_over_two_backward_calls(fake):
    ours, theirs = twins(
        lambda m: bt.AdamW(m.parameters()),
        lambda m: torch.optim.AdamW(m.parameters(), foreach=False),
    )
    for module, optimizer in (ours, theirs):
        for i in (0, 2):
            optimizer.zero_grad()
            module(batch(i)).square().mean().backward()
            module(batch(i + 1)).square().mean().backward()
            optimizer.step()
    assert_equal(ours[0], theirs[0])


@pytest.mark.parametrize("set_to_none", [True, False])
def test_parameters_without_gradient_rest_and_keep_their_step(fake, set_to_none):
    ours, theirs = twins(
        lambda m: bt.AdamW(m.named_parameters(), lr=1e-1),
        lambda m: torch.optim.AdamW(m.named_parameters(), lr=1e-1, foreach=False),
    )
    for module, optimizer in (ours, theirs):
        for i in range(6):
            optimizer.zero_grad(set_to_none=set_to_none)
            layers = module if i % 2 else module[:2]
            layers(batch(i)).square().mean().backward()
            optimizer.step()
    assert_equal(ours[0], theirs[0])
    steps = [int(s["step"]) for s in ours[1].export_state()["state"].values()]
    assert steps == [6, 6, 3, 3] if set_to_none else [6, 6, 5, 5]


def test_a_group_added_before_attach_is_part_of_it(fake):
    m = model()
    opt = bt.AdamW(m[0].parameters())
    opt.add_param_group({"params": m[2].parameters(), "lr": 0.5})
    opt.step()
    assert [t[0] for t in fake.last.tensors] == ["g0.p0", "g0.p1", "g1.p0", "g1.p1"]
    assert [t[3] for t in fake.last.tensors] == [0, 0, 1, 1]


def test_a_group_added_later_joins_at_the_next_step(fake):
    ours, theirs = twins(
        lambda m: bt.AdamW(m[0].parameters(), lr=1e-1),
        lambda m: torch.optim.AdamW(m[0].parameters(), lr=1e-1, foreach=False),
    )
    for module, optimizer in (ours, theirs):
        run(module, optimizer, 3)
        optimizer.add_param_group({"params": module[2].parameters(), "lr": 1e-2})
        module.zero_grad()
        run(module, optimizer, 3)
    assert_equal(ours[0], theirs[0])
    extends = [call for call in fake.last.calls if call[0] == "extend"]
    assert [[t[0] for t in call[1]] for call in extends] == [["g1.p0", "g1.p1"]]
    assert ours[1].state_dict()["param_groups"][1]["params"] == [2, 3]


@pytest.mark.parametrize("edit", ["emptied", "swapped", "moved", "popped"])
def test_a_group_that_loses_parameters_after_the_first_step_is_refused(fake, edit):
    module = model()
    first, last = module[0], module[2]
    groups = [{"params": list(first.parameters())}, {"params": list(last.parameters())}]
    opt = bt.AdamW(groups, world_size=2, rank=0)
    run(module, opt, 1)
    kept = [group["params"] for group in opt.param_groups]
    popped = []
    if edit == "emptied":
        opt.param_groups[0]["params"] = []
    elif edit == "swapped":
        opt.param_groups[0]["params"] = [kept[0][0], nn.Parameter(torch.zeros(8))]
    elif edit == "moved":
        opt.param_groups[0]["params"] = kept[0][:1]
        opt.param_groups[1]["params"] = kept[1] + kept[0][1:]
    else:
        popped = [opt.param_groups.pop()]
    before = copy.deepcopy(module)
    for call in (opt.step, opt.attach, opt.upload_weights):
        with pytest.raises(ballast.BadArgument, match=r"not in opt\.param_groups\[[01]\] any more"):
            call()
    assert_equal(module, before)
    assert opt.round == 1
    opt.param_groups += popped
    for group, params in zip(opt.param_groups, kept, strict=True):
        group["params"] = params
    run(module, opt, 1)
    assert opt.round == 2


def test_frozen_parameters_stay_out_until_they_are_trained(fake):
    ours, theirs = twins(
        lambda m: bt.AdamW(m.named_parameters(), lr=1e-1),
        lambda m: torch.optim.AdamW(m.named_parameters(), lr=1e-1, foreach=False),
    )
    for module, optimizer in (ours, theirs):
        module[0].requires_grad_(False)
        run(module, optimizer, 3)
        module[0].requires_grad_(True)
        optimizer.param_groups[0]["lr"] = 3e-2
        run(module, optimizer, 3)
    assert_equal(ours[0], theirs[0])
    assert [t[0] for t in fake.last.tensors] == ["2.weight", "2.bias", "0.weight", "0.bias"]
    assert [t[3] for t in fake.last.tensors] == [0, 0, 1, 1]
    # Both service groups follow the one torch group.
    assert [h[0] for h in fake.last.calls[-1][1]] == [3e-2, 3e-2]


def test_with_everything_frozen_there_is_no_job(fake):
    m = model().requires_grad_(False)
    with pytest.raises(ballast.BadSpec, match="requires a gradient"):
        bt.AdamW(m.parameters()).step()


def test_clipping_reports_the_norm_and_the_coefficient(fake):
    m = model()
    opt = bt.AdamW(m.parameters(), max_grad_norm=1e-3)
    run(m, opt, 1)
    norm = torch.cat([p.grad.flatten() for p in m.parameters()]).double().norm().item()
    assert opt.grad_norm == pytest.approx(norm)
    assert opt.clip_coef == pytest.approx(1e-3 / norm, rel=1e-3)


def test_torchs_clip_before_step_works(fake):
    ours, theirs = twins(
        lambda m: bt.AdamW(m.parameters()),
        lambda m: torch.optim.AdamW(m.parameters(), foreach=False),
    )
    for module, optimizer in (ours, theirs):
        for i in range(4):
            optimizer.zero_grad()
            module(batch(i)).square().mean().backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1e-2)
            optimizer.step()
    assert_equal(ours[0], theirs[0])


def test_a_round_with_nan_is_skipped_and_says_so(fake):
    m = model()
    opt = bt.AdamW(m.parameters())
    run(m, opt, 1)
    before = copy.deepcopy(m)
    versions = [p._version for p in m.parameters()]
    m[0].weight.grad[0, 0] = float("nan")
    opt.step()
    assert opt.step_was_skipped
    assert (opt.round, opt.opt_step) == (2, 1)
    assert_equal(m, before)
    assert versions == [p._version for p in m.parameters()]
    run(m, opt, 1)
    assert not opt.step_was_skipped


def test_a_halted_round_raises_leaves_everything_and_the_next_step_works(fake):
    m = model()
    opt = bt.AdamW(m.parameters(), nonfinite="halt")
    run(m, opt, 1)
    before = copy.deepcopy(m)
    report = opt.last_report
    versions = [p._version for p in m.parameters()]
    m[0].weight.grad[0, 0] = float("nan")
    fake.last.wait_error = ballast.NonfiniteGradient("tensor named here", round=2, slot=1)
    with pytest.raises(FloatingPointError, match="tensor named here"):
        opt.step()
    assert_equal(m, before)
    assert versions == [p._version for p in m.parameters()]
    assert opt.last_report == report
    fake.last.wait_error = None
    run(m, opt, 1)
    assert not opt.step_was_skipped
    opt.close()
    assert fake.last.calls[-1] == ("leave",)  # The job is not over.
