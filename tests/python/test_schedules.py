"""ballast.schedules as data, and optimizers whose rates the service decides; over the fake core."""

import copy
import dataclasses

import pytest
import torch

import ballast
import ballast.torch as bt
from ballast import schedules
from training import batch, model


def step(module, opt, count=1):
    for i in range(count):
        opt.zero_grad()
        module(batch(i)).square().mean().backward()
        opt.step()


def test_names_and_defaults_are_deepspeeds():
    assert list(schedules.ALL) == [
        "WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "LRRangeTest", "OneCycle",
    ]  # fmt: skip
    assert dataclasses.asdict(schedules.WarmupLR()) == {
        "warmup_min_lr": 0.0, "warmup_max_lr": None, "warmup_num_steps": 1000, "warmup_type": "log",
    }  # fmt: skip
    assert bt.schedules.OneCycle(1e-4, 1e-3).arguments() == {
        "cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "decay_lr_rate": 0.0,
        "cycle_first_step_size": 2000.0, "cycle_first_stair_count": 0.0, "decay_step_size": 0.0,
        "cycle_momentum": 1.0, "cycle_min_mom": 0.8, "cycle_max_mom": 0.9, "decay_mom_rate": 0.0,
    }  # fmt: skip
    assert schedules.WarmupDecayLR(10, warmup_max_lr=[1, 2.5]).arguments()["warmup_max_lr"] == [
        1.0, 2.5,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("WarmupLR", {"warmup_num_steps": 0}, "warmup_num_steps must be a positive integer, got"),
        ("WarmupLR", {"warmup_num_steps": 1.5}, "warmup_num_steps is 1.5; it must be a whole"),
        ("WarmupLR", {"warmup_min_lr": float("nan")}, "warmup_min_lr must be a finite number"),
        ("WarmupLR", {"warmup_max_lr": -1}, "warmup_max_lr must be from 0 to 1e.18, got -1"),
        ("WarmupLR", {"warmup_max_lr": [0.1, "x"]}, "warmup_max_lr is 'x'; it must be a number"),
        ("WarmupLR", {"warmup_type": "cos"}, "warmup_type is 'cos'; it must be log or linear"),
        ("WarmupDecayLR", {"total_num_steps": -1}, "total_num_steps must be from 0 to"),
        ("WarmupDecayLR", {"total_num_steps": None}, "total_num_steps is None"),
        ("WarmupCosineLR", {"total_num_steps": 9, "warmup_num_steps": -3}, "positive integer"),
        ("LRRangeTest", {"lr_range_test_step_size": 0}, "lr_range_test_step_size must be a posit"),
        ("LRRangeTest", {"lr_range_test_staircase": 1}, "staircase is 1; it must be True or False"),
        ("LRRangeTest", {"lr_range_test_step_rate": True}, "step_rate is True; it must be a num"),
        ("OneCycle", {"cycle_first_step_size": 0}, "cycle_first_step_size must be positive, got"),
        ("OneCycle", {"cycle_second_step_size": -1}, "must be non-negative, got -1; leave it out"),
        ("OneCycle", {"decay_step_size": -3}, "decay_step_size must be from 0 to 1e.18, got -3"),
        ("OneCycle", {"cycle_min_lr": []}, "cycle_min_lr is an empty list; give one number"),
        ("OneCycle", {"cycle_max_mom": 1.0}, r"cycle_max_mom must be in \[0, 1\), got 1;"),
        ("OneCycle", {"cycle_min_lr": [1, 2], "cycle_max_lr": [1, 2, 3]}, "expected 2 val"),
        ("OneCycle", {"cycle_first_stair_count": float("inf")}, "it must be a whole number of at"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_are_refused_where_they_stand(name, arguments, text):
    needed = {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2} if name == "OneCycle" else {}
    with pytest.raises(ballast.BadHyperparam, match=text):
        schedules.ALL[name](**{**needed, **arguments})


def test_momenta_that_do_not_count_are_not_checked():
    given = schedules.OneCycle(0.1, 0.2, cycle_momentum=False, cycle_max_mom=1.5)
    assert not given.sets_betas
    assert schedules.OneCycle(0.1, 0.2, decay_mom_rate=-0.5).sets_betas


def test_the_schedule_reaches_the_core(fake):
    module = model()
    groups = [{"params": module[0].parameters()}, {"params": module[2].parameters(), "lr": 0.5}]
    schedule = schedules.WarmupLR(warmup_max_lr=[0.1, 0.2], warmup_num_steps=7)
    opt = bt.AdamW(groups, lr=0.25, lr_schedule=schedule, profile="deepspeed")
    opt.attach()
    sent = fake.last.options
    assert sent["schedule"] == ("WarmupLR", schedule.arguments(), [0, 1], 2)
    assert sent["profile"] == "deepspeed"


def test_groups_send_their_own_rates_and_show_those_of_the_last_round(fake):
    module = model()
    groups = [{"params": module[0].parameters()}, {"params": module[2].parameters(), "lr": 0.5}]
    opt = bt.AdamW(groups, lr=0.25, lr_schedule=schedules.WarmupLR())
    assert opt.get_last_lr() == [0.25, 0.5]
    for r in range(1, 4):
        step(module, opt)
        assert opt.get_last_lr() == [g["lr"] for g in opt.param_groups] == [0.25 * r, 0.5 * r]
        assert [g["betas"] for g in opt.param_groups] == [(0.9, 0.999)] * 2
    assert [[h[0] for h in hyper] for _, hyper, _ in fake.last.calls] == [[0.25, 0.5]] * 3


def test_one_cycle_shows_betas_too(fake):
    module = model()
    opt = bt.AdamW(module.parameters(), lr=0.25, lr_schedule=schedules.OneCycle(0.1, 0.2))
    step(module, opt, 2)
    assert (opt.param_groups[0]["lr"], opt.param_groups[0]["betas"]) == (0.5, (0.45, 0.999))
    assert fake.last.calls[1][1] == [(0.25, 0.9, 0.999, 1e-8, 1e-2)]


def test_a_skipped_round_shows_the_same_rate_again(fake):
    module = model()
    opt = bt.AdamW(module.parameters(), lr=0.25, lr_schedule=schedules.WarmupLR())
    step(module, opt, 2)
    module[0].bias.grad[0] = float("nan")
    opt.step()
    assert (opt.step_was_skipped, opt.skipped_steps, opt.get_last_lr()) == (True, 1, [0.75])
    step(module, opt)
    assert (opt.step_was_skipped, opt.skipped_steps, opt.get_last_lr()) == (False, 1, [0.75])


def test_what_still_belongs_to_the_script_stays_its_own(fake):
    module = model()
    opt = bt.AdamW(module.parameters(), lr=0.25, lr_schedule=schedules.WarmupLR())
    step(module, opt)
    opt.param_groups[0]["weight_decay"] = 0.5
    opt.param_groups[0]["betas"] = (0.5, 0.75)
    step(module, opt)
    assert fake.last.calls[1][1] == [(0.25, 0.5, 0.75, 1e-8, 0.5)]


def test_a_rate_that_the_script_changes_is_refused_by_name(fake):
    module = model()
    opt = bt.AdamW(module.parameters(), lr=0.25, lr_schedule=schedules.OneCycle(0.1, 0.2))
    step(module, opt)
    shown = opt.param_groups[0]["betas"]
    opt.param_groups[0]["betas"] = (0.5, 0.999)
    with pytest.raises(ballast.Unsupported, match=r"param_groups\[0\]: betas .*OneCycle"):
        opt.step()
    opt.param_groups[0].update(betas=shown, lr=0.1)
    with pytest.raises(ballast.Unsupported, match=r"lr was changed from 0.25 to 0.1, .*OneCycle"):
        opt.step()
    opt.param_groups[0]["lr"] = 0.25
    step(module, opt)
    assert opt.round == 2


def test_an_additional_scheduler_of_torch_is_refused_by_name(fake):
    module = model()
    opt = bt.AdamW(module.parameters(), lr=0.25, lr_schedule=schedules.WarmupLR())
    torch.optim.lr_scheduler.ConstantLR(opt, factor=1.0)
    with pytest.raises(ballast.Unsupported, match="scheduler of torch, but lr_schedule=WarmupLR"):
        step(module, opt)
    assert not fake.attached


def test_thawed_parameters_belong_to_the_schedule_group_of_their_torch_group(fake):
    module = model()
    module[0].bias.requires_grad_(False)
    groups = [{"params": module[0].parameters()}, {"params": module[2].parameters(), "lr": 0.5}]
    opt = bt.AdamW(groups, lr=0.25, lr_schedule=schedules.WarmupLR())
    step(module, opt)
    module[0].bias.requires_grad_(True)
    step(module, opt)
    assert fake.last.schedule_groups == [0, 1, 0]
    assert [h[0] for h in fake.last.calls[-1][1]] == [0.25, 0.5, 0.25]
    assert opt.get_last_lr() == [0.5, 1.0]


def test_lists_have_a_value_for_each_group(fake):
    module = model()
    schedule = schedules.WarmupLR(warmup_max_lr=[0.1, 0.2])
    opt = bt.AdamW(module[0].parameters(), lr=0.25, lr_schedule=schedule)
    with pytest.raises(ballast.BadHyperparam, match="expected 1 values for warmup_max_lr, got 2"):
        opt.attach()
    opt.add_param_group({"params": module[2].parameters()})
    step(module, opt)
    late = {"params": torch.nn.Linear(2, 2).parameters()}
    with pytest.raises(ballast.BadHyperparam, match="expected 3 values for warmup_max_lr, got 2"):
        opt.add_param_group(late)
    step(module, opt)


def test_a_late_group_joins_a_schedule_of_single_numbers(fake):
    module = model()
    opt = bt.AdamW(module[0].parameters(), lr=0.25, lr_schedule=schedules.WarmupLR())
    step(module, opt)
    opt.add_param_group({"params": module[2].parameters(), "lr": 0.5})
    step(module, opt)
    assert fake.last.schedule_groups == [0, 1]
    assert opt.get_last_lr() == [0.5, 1.0]


def test_a_resumed_job_shows_its_last_round(fake):
    fake.resumes = (5, 0.5, b"")
    module = model()
    opt = bt.AdamW(module.parameters(), lr=0.25, lr_schedule=schedules.WarmupLR(), resume="auto")
    fake.policy_said = {"rates": [(0.125, 0.9, 0.999)], "schedule_index": 4, "last_skipped": True}
    assert opt.attach()
    assert opt.get_last_lr() == [0.125]
    assert opt.step_was_skipped
    step(module, opt)
    assert fake.last.calls[0][1][0][0] == 0.25


def test_loading_leaves_the_rates_to_the_schedule(fake):
    module = model()
    opt = bt.AdamW(module.parameters(), lr=0.25, lr_schedule=schedules.WarmupLR())
    step(module, opt, 2)
    saved, exported = opt.state_dict(), opt.export_state()
    opt.load_state_dict(saved)
    assert opt.get_last_lr() == [0.5]
    exported["param_groups"][0]["lr"] = 0.125
    opt.load_export(exported)
    assert opt.get_last_lr() == [0.5]
    step(module, opt)
    assert {c[1][0][0] for c in fake.last.calls if c[0] == "step"} == {0.25}
    other = bt.AdamW(module.parameters(), lr=0.25, lr_schedule=schedules.WarmupLR(), job="other")
    other.load_state_dict({"state": {}, "param_groups": saved["param_groups"]})
    step(module, other)
    assert fake.last.calls[0][1][0][0] == 0.25


def test_the_mark_of_a_torch_scheduler_is_not_loaded(fake):
    module = model()
    theirs = torch.optim.AdamW(module.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(theirs, lambda i: 0.5**i)
    step(module, theirs, 2)
    scheduler.step()
    opt = bt.AdamW(module.parameters(), lr=0.25, lr_schedule=schedules.WarmupLR())
    opt.load_export(theirs.state_dict())
    step(module, opt, 2)
    assert opt.get_last_lr() == [0.5]
    marked = copy.deepcopy(opt.state_dict())
    marked["param_groups"][0]["initial_lr"] = 0.5
    opt.load_state_dict(marked)
    step(module, opt)
    assert opt.get_last_lr() == [0.75]
    plain = bt.AdamW(module.parameters(), lr=0.25, job="plain")
    plain.load_export(theirs.state_dict())
    assert plain.param_groups[0]["initial_lr"] == 0.5  # There a torch scheduler needs it.


def test_what_is_no_schedule_is_refused(fake):
    for given in ("WarmupLR", schedules.WarmupLR, 3, schedules.Schedule()):
        with pytest.raises(ballast.BadArgument, match="lr_schedule=.*WarmupLR, WarmupDecayLR"):
            bt.AdamW(model().parameters(), lr_schedule=given)
    with pytest.raises(ballast.BadArgument, match="profile='deep': must be one of 'exact', 'deep"):
        bt.AdamW(model().parameters(), profile="deep")


def test_cycling_betas_needs_betas(fake):
    schedule = schedules.OneCycle(0.1, 0.2)
    with pytest.raises(ballast.BadHyperparam, match="SGD has no beta1 to cycle; give cycle_mome"):
        bt.SGD(model().parameters(), lr=0.1, lr_schedule=schedule)
    bt.Lion(model().parameters(), lr_schedule=schedule)
    bt.SGD(model().parameters(), lr_schedule=dataclasses.replace(schedule, cycle_momentum=False))
