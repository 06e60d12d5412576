"""state_dict is a handle that survives frameworks; export_state holds real tensors."""

import copy
import io

import pytest
import torch
from torch import nn

import ballast
import ballast.torch as bt
from ballast import control
from ballast.torch import job_calls
from fake_core import FakeOperation


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def run(module, optimizer, steps):
    for i in range(steps):
        optimizer.zero_grad()
        module(torch.full((2, 5), 0.1 * (i + 1))).square().mean().backward()
        optimizer.step()


def move_to_device(state, device):
    """What Accelerate does to every optimizer's state_dict in prepare()."""
    if isinstance(state, (list, tuple)):
        return type(state)(move_to_device(t, device) for t in state)
    if isinstance(state, dict):
        return type(state)({k: move_to_device(v, device) for k, v in state.items()})
    if isinstance(state, torch.Tensor):
        return state.to(device)
    return state


def saved_and_loaded(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True), buffer.getbuffer().nbytes


@pytest.mark.parametrize("steps_before", [0, 3])
def test_accelerates_prepare_changes_nothing(fake, steps_before):
    module = model()
    twin = copy.deepcopy(module)
    opt = bt.AdamW(module.named_parameters(), lr=1e-2)
    theirs = torch.optim.AdamW(twin.parameters(), lr=1e-2, foreach=False)
    run(module, opt, steps_before)
    for _ in range(2):
        opt.load_state_dict(move_to_device(opt.state_dict(), torch.device("cpu")))
    run(module, opt, 3)
    run(twin, theirs, steps_before)
    run(twin, theirs, 3)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), twin.parameters()))
    assert len(fake.attached) == 1
    assert {call[0] for call in fake.last.calls} == {"step"}


def test_a_scheduler_survives_loading(fake):
    module = model()
    opt = bt.AdamW(module.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
    opt.load_state_dict(opt.state_dict())
    run(module, opt, 1)
    scheduler.step()
    run(module, opt, 1)
    assert [call[1][0][0] for call in fake.last.calls] == [1.0, 0.5]


def test_the_handle_is_small_and_passes_torch_load_with_weights_only(fake):
    module = nn.Linear(1000, 100)
    opt = bt.AdamW(module.parameters())
    run_once = module(torch.ones(1, 1000)).sum()
    run_once.backward()
    opt.step()
    handle, size = saved_and_loaded(opt.state_dict())
    assert size < 4096
    assert handle["state"] == {}
    assert handle["ballast"] == {
        "format": 1, "job": "job", "job_id": 2**64 - 1, "round": 1, "opt_step": 1, "world_size": 1,
    }  # fmt: skip
    opt.load_state_dict(handle)


def test_loading_restores_hyperparameters(fake):
    module = model()
    opt = bt.AdamW(module.parameters(), lr=0.5)
    saved = copy.deepcopy(opt.state_dict())
    opt.param_groups[0]["lr"] = 0.1
    opt.load_state_dict(saved)
    run(module, opt, 1)
    assert fake.last.calls[0][1][0][0] == 0.5


def test_hyperparameters_of_a_torch_state_dict_without_state_are_taken(fake):
    opt = bt.AdamW(model().parameters())
    opt.load_state_dict(torch.optim.AdamW(model().parameters(), lr=0.125).state_dict())
    opt.step()
    assert fake.last.calls[0][1][0][0] == 0.125


def test_torch_moments_are_refused_by_name(fake):
    module = model()
    theirs = torch.optim.AdamW(module.parameters())
    run(module, theirs, 1)
    opt = bt.AdamW(model().parameters())
    with pytest.raises(ballast.Unsupported, match="moments of a torch optimizer"):
        opt.load_state_dict(theirs.state_dict())


def test_handles_to_other_state_are_refused(fake):
    module = model()
    opt = bt.AdamW(module.parameters())
    run(module, opt, 2)
    early = opt.state_dict()
    run(module, opt, 1)
    with pytest.raises(ballast.Unsupported, match="at round 2, but the job is at round 3"):
        opt.load_state_dict(early)
    fresh = bt.AdamW(model().parameters())
    with pytest.raises(ballast.Unsupported, match="To continue that one, give its name"):
        fresh.load_state_dict(early)
    assert fresh.param_groups[0]["lr"] == 1e-3
    with pytest.raises(ballast.BadArgument, match="format 99"):
        opt.load_state_dict({**early, "ballast": {"format": 99}})


@pytest.mark.parametrize(
    "state, match",
    [
        (5, "this int is no state dict"),
        ({}, 'a dict with "param_groups"'),
        ({"param_groups": [], "ballast": {"format": 1}}, "handle lacks job, job_id, round"),
    ],
)
def test_what_is_no_state_dict_is_refused(fake, state, match):
    with pytest.raises(ballast.BadArgument, match=match):
        bt.AdamW(model().parameters()).load_state_dict(state)


def test_options_of_a_loaded_state_dict_are_checked(fake):
    opt = bt.AdamW(model().parameters())
    theirs = torch.optim.AdamW(model().parameters(), amsgrad=True)
    with pytest.raises(ballast.Unsupported, match="amsgrad"):
        opt.load_state_dict(theirs.state_dict())


def test_groups_that_do_not_fit_are_torchs_error(fake):
    opt = bt.AdamW(model().parameters())
    with pytest.raises(ValueError, match="parameter group"):
        opt.load_state_dict(torch.optim.AdamW([nn.Parameter(torch.zeros(1))]).state_dict())


def test_exported_state_is_torchs(fake):
    module = model()
    twin = copy.deepcopy(module)
    opt = bt.AdamW(module.named_parameters(), lr=1e-2)
    theirs = torch.optim.AdamW(twin.named_parameters(), lr=1e-2, foreach=False)
    for m, o in ((module, opt), (twin, theirs)):
        m[0].bias.requires_grad_(False)
        run(m, o, 4)
    exported, expected = opt.export_state(), theirs.state_dict()
    assert exported["state"].keys() == expected["state"].keys() == {0, 2, 3}
    assert exported["names"] == {0: "0.weight", 2: "2.weight", 3: "2.bias"}
    for i, state in expected["state"].items():
        for key in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(exported["state"][i][key], state[key]), (i, key)
        assert exported["state"][i]["master"].dtype == torch.float32
    assert [g["params"] for g in exported["param_groups"]] == [[0, 1, 2, 3]]

    # And torch continues from it.
    theirs.load_state_dict(saved_and_loaded(exported)[0])
    run(module, opt, 3)
    run(twin, theirs, 3)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), twin.parameters()))


def test_export_without_names_warns_that_order_matters(fake, recwarn):
    module = model()
    opt = bt.AdamW(module.parameters())
    run(module, opt, 1)
    with pytest.warns(UserWarning, match="order of parameters") as warned:
        opt.export_state()
    assert [w.filename for w in warned] == [__file__]
    named = bt.AdamW(module.parameters(), model=module)
    named.step()
    recwarn.clear()
    named.export_state()
    assert not recwarn.list


class Home:
    """Answers of the servers to snapshot(), one after the other, and the snapshots that it has."""

    def __init__(self, fake, monkeypatch, answers, there=()):
        self.answers, self.there = list(answers), there
        monkeypatch.setattr(fake.last, "start_snapshot", self.start_snapshot)
        monkeypatch.setattr(control, "of", lambda config: self)

    def start_snapshot(self, name, keep):
        return FakeOperation(error=self.answers.pop(0)) if self.answers else FakeOperation(4)

    def snapshots(self, job):
        assert job == "job"
        return [{"name": name, "round": round} for name, round in self.there]


BUSY = ballast.BallastError("another snapshot is being taken; wait for it", reason="JOB_BUSY")
TAKEN = ballast.NameInUse('has a snapshot "all" already')


def test_the_snapshot_that_another_rank_has_taken_of_this_round_is_this_ranks_too(
    fake, monkeypatch
):
    module = model()
    opt = bt.AdamW(module.named_parameters())
    run(module, opt, 3)
    Home(fake, monkeypatch, [BUSY, TAKEN], [("all", 4), ("other", 3)])
    assert opt.snapshot("all") == 3
    Home(fake, monkeypatch, [BUSY])
    assert opt.snapshot("all") == 3
    Home(fake, monkeypatch, [TAKEN], [("all", 3)])
    with pytest.raises(ballast.NameInUse):
        opt.snapshot("all")
    monkeypatch.setattr(job_calls, "_BUSY_WAIT_S", 0.0)
    Home(fake, monkeypatch, [BUSY])
    with pytest.raises(ballast.BallastError, match="wait for it"):
        opt.snapshot("all")
