"""ballast.torch.wrap: a torch optimizer's groups, names and hyper-parameters, or a refusal."""

import copy

import pytest
import torch
from torch import nn

import ballast
import ballast.torch as bt


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))


class Stepping(torch.optim.AdamW):
    def step(self, closure=None):
        return super().step(closure)


class Mixin:
    def zero_grad(self, set_to_none=False):
        pass


class Mixed(Mixin, torch.optim.SGD):
    pass


class Restored(torch.optim.Adam):
    def __setstate__(self, state):
        super().__setstate__(state)


class Configured(torch.optim.AdamW):
    """A subclass that computes as AdamW does, with names and methods of its own."""

    level = 3

    def __init__(self, params, rate):
        super().__init__(params, lr=rate)

    def __repr__(self):
        return "mine"

    def rates(self):
        return [group["lr"] for group in self.param_groups]


def replaced(optimizer):
    optimizer.step = lambda closure=None: None
    return optimizer


def test_groups_names_and_hyperparameters_are_copied(fake):
    module = model()
    twin = copy.deepcopy(module)

    def build(m):
        groups = [
            {"params": list(m[0].named_parameters("a")), "lr": 0.1, "tag": "first"},
            {"params": list(m[1].named_parameters("b")), "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=0.2, betas=(0.8, 0.9), foreach=False)

    ours, theirs = bt.wrap(build(module), max_grad_norm=None), build(twin)
    assert ours.param_groups[0]["tag"] == "first"
    assert ours.defaults["lr"] == 0.2
    for m, optimizer in ((module, ours), (twin, theirs)):
        for _ in range(3):
            optimizer.zero_grad()
            m(torch.ones(1, 4)).square().sum().backward()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), twin.parameters()))
    assert [t[0] for t in fake.last.tensors] == ["a.weight", "a.bias", "b.weight", "b.bias"]


def test_the_wrapped_optimizers_groups_stay_as_they_were(fake):
    original = torch.optim.AdamW(model().parameters())
    ours = bt.wrap(original)
    ours.param_groups[0]["lr"] = 7.0
    ours.param_groups[0]["params"].clear()
    assert original.param_groups[0]["lr"] == 1e-3
    assert len(original.param_groups[0]["params"]) == 4


def test_the_result_is_of_the_wrapped_optimizers_kind(fake):
    for theirs, ours in (
        (torch.optim.Adam(model().parameters(), weight_decay=0.1, amsgrad=True), bt.Adam),
        (torch.optim.Adam(model().parameters(), decoupled_weight_decay=True), bt.AdamW),
        (torch.optim.SGD(model().parameters(), momentum=0.5, nesterov=True), bt.SGD),
        (torch.optim.Adagrad(model().parameters(), initial_accumulator_value=0.1), bt.Adagrad),
    ):
        wrapped = bt.wrap(theirs)
        assert type(wrapped) is ours
        wrapped.attach()


def test_a_subclass_that_computes_as_its_base_does_is_wrapped(fake):
    module, twin = model(), model()
    ours = bt.wrap(stepped(module, 2, Configured(module.parameters(), 0.1)))
    assert type(ours) is bt.AdamW
    theirs = torch.optim.AdamW(twin.parameters(), lr=0.1, foreach=False)
    stepped(twin, 4, theirs)
    stepped(module, 2, ours)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), twin.parameters()))


def test_hooks_of_step_belong_on_the_result(fake):
    optimizer = torch.optim.AdamW(model().parameters())
    hook = optimizer.register_step_pre_hook(lambda *_: None)
    with pytest.raises(ballast.BadArgument, match="hooks of step.*register them on the result"):
        bt.wrap(optimizer)
    hook.remove()
    bt.wrap(optimizer)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_the_other_adams_decay_is_refused_by_name(fake, kind):
    ours = bt.wrap(kind(model().parameters(), weight_decay=0.0))
    decoupled = kind is torch.optim.Adam
    more = {"params": [torch.nn.Parameter(torch.ones(3))], "weight_decay": 0.1}
    with pytest.raises(ballast.Unsupported, match=r"param_groups\[1\]: weight_decay=0.1 .* decay"):
        ours.add_param_group({**more, "decoupled_weight_decay": decoupled})
    assert len(ours.param_groups) == 1
    ours.add_param_group(more)
    ours.step()
    ours.param_groups[1]["decoupled_weight_decay"] = decoupled
    with pytest.raises(ballast.Unsupported, match="decay"):
        ours.step()


def test_a_wrapped_adamws_decay_may_be_that_of_added_groups(fake):
    ours = bt.wrap(torch.optim.AdamW(model().parameters()))
    more = {"params": [torch.nn.Parameter(torch.ones(3))], "weight_decay": 0.1}
    ours.add_param_group(more)
    ours.step()


@pytest.mark.parametrize(
    "build, match",
    [
        (lambda p: torch.optim.RMSprop(p), r"torch.optim.rmsprop.RMSprop"),
        (lambda p: torch.optim.AdamW(p, capturable=True), "capturable"),
        (lambda p: torch.optim.SGD(p, differentiable=True), "differentiable"),
        (lambda p: Stepping(p), r"test_wrap.Stepping .* its step\(\) is not that of AdamW"),
        (lambda p: Mixed(p), r"test_wrap.Mixin .* its zero_grad\(\) is not that of SGD"),
        (lambda p: Restored(p), r"test_wrap.Restored .* its __setstate__\(\) is not that of Adam"),
        (lambda p: replaced(torch.optim.SGD(p)), r"step\(\) of this SGD was replaced"),
    ],
)
def test_other_optimizers_and_options_are_refused_by_name(fake, build, match):
    with pytest.raises(ballast.Unsupported, match=match):
        bt.wrap(build(model().parameters()))


def test_options_that_the_wrapped_optimizer_has_already_are_refused(fake):
    for option in ("lr", "params", "fused"):
        with pytest.raises(ballast.BadArgument, match=f"takes {option} from the wrapped optimizer"):
            bt.wrap(torch.optim.AdamW(model().parameters()), **{option: 1})


def stepped(module, steps, optimizer):
    for _ in range(steps):
        optimizer.zero_grad()
        module(torch.ones(1, 4)).square().sum().backward()
        optimizer.step()
    return optimizer


def test_an_optimizer_that_has_stepped_goes_on_with_its_moments_and_steps(fake):
    module, twin = model(), model()
    theirs = stepped(twin, 5, torch.optim.AdamW(twin.parameters(), lr=0.1, foreach=False))
    ours = bt.wrap(
        stepped(module, 3, torch.optim.AdamW(module.parameters(), lr=0.1, foreach=False)),
        max_grad_norm=None,
    )
    assert ours.opt_step == 0
    stepped(module, 2, ours)
    assert (ours.opt_step, ours.round) == (5, 5)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), twin.parameters()))
    state, expected = ours.export_state()["state"], theirs.state_dict()["state"]
    for i in range(4):
        for key in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(state[i][key], expected[i][key])


def test_hyperparameters_that_were_changed_after_wrapping_stay(fake):
    module = model()
    ours = bt.wrap(stepped(module, 3, torch.optim.AdamW(module.parameters(), lr=0.1)))
    scheduler = torch.optim.lr_scheduler.LambdaLR(ours, lambda step: 0.5)
    stepped(module, 1, ours)
    scheduler.step()
    assert [call[1][0][0] for call in fake.last.calls if call[0] == "step"] == [0.05]
    assert ours.param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize("rounds_before, planes", [(4, 0), (0, 3)])
def test_the_state_of_a_job_that_has_taken_steps_counts(fake, rounds_before, planes):
    fake.resumes = (rounds_before, 0.25, b"")
    module = model()
    theirs = stepped(module, 3, torch.optim.AdamW(module.parameters()))
    before = module[0].weight.detach().clone()
    ours = bt.wrap(theirs, durability="power", resume="must")
    assert ours.attach()
    assert len([call for call in fake.last.calls if call[0] == "plane"]) == planes
    expected = torch.full_like(before, 0.25) if rounds_before else before
    assert torch.equal(module[0].weight, expected)
    assert ours.opt_step == rounds_before or 3


def test_state_that_does_not_fit_is_refused_when_wrapped(fake):
    module = model()
    theirs = stepped(module, 1, torch.optim.AdamW(module.parameters()))
    theirs.state[module[0].weight]["exp_avg"] = torch.zeros(3)
    with pytest.raises(ballast.BadArgument, match=r"exp_avg has shape \(3,\)"):
        bt.wrap(theirs)


def test_a_scheduler_on_the_wrapped_optimizer_is_warned_of(fake):
    optimizer = torch.optim.AdamW(model().parameters())
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with pytest.warns(UserWarning, match="scheduler") as warned:
        bt.wrap(optimizer)
    assert [w.filename for w in warned] == [__file__]


def test_a_wrapped_optimizer_may_have_a_schedule_in_the_service(fake):
    module = model()
    theirs = torch.optim.AdamW(module.parameters(), lr=0.25)
    opt = bt.wrap(theirs, lr_schedule=bt.schedules.WarmupLR(), loss_scale="dynamic")
    for r in (1, 2):
        opt.scale(module(torch.ones(3, 4)).square().mean()).backward()
        opt.step()
        assert opt.get_last_lr() == [0.25 * r]
    scheduled = torch.optim.AdamW(module.parameters(), lr=0.25)
    torch.optim.lr_scheduler.ConstantLR(scheduled)
    with pytest.warns(UserWarning, match="scheduler"):
        other = bt.wrap(scheduled, lr_schedule=bt.schedules.WarmupLR(), job="other")
    assert "initial_lr" in scheduled.param_groups[0]
    rate = scheduled.param_groups[0]["lr"]
    for r in (1, 2):
        other.step()
        assert other.get_last_lr() == [rate * r]
