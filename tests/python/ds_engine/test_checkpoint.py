"""engine.save_checkpoint() and load_checkpoint() over a pure-Python service: files and refusals.

The bits that real servers give back are in test_real_checkpoint.py.
"""

from __future__ import annotations

import argparse
import io
import os
import zipfile
from collections import Counter

import ballast.deepspeed as deepspeed
import numpy
import pytest
import torch
from ballast import _rejoin, control
from ballast.deepspeed import folder
from ballast.errors import BadArgument, NameInUse, StorageFailed, Unreachable, Unsupported
from ballast._plain_values import Packer, unpack
from fake_core import FakeOperation
from safetensors.torch import load_file

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_clipping": 0.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}},
}


class Net(torch.nn.Module):
    """With a buffer and a frozen parameter, which the servers do not have."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 2)
        self.frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x):
        self.seen += len(x)
        return self.linear(x)


class FakeControl:
    """Stands for ballast.control. made: forks; listed: jobs; gone: deleted jobs."""

    def __init__(self, fake):
        self._fake = fake
        self.deleted, self.made, self.listed, self.gone = [], [], [], []

    def snapshots(self, job):
        calls = [c for one in self._fake.attached for c in one.calls if c[0] == "snapshot"]
        return [{"name": call[1], "round": 0} for call in calls]

    def fork(self, job, snapshot, new, world):
        self.made.append((job, snapshot, new, world))
        self._fake.resumes = (2, 0.25, b"")

    def delete_snapshot(self, job, snapshot):
        self.deleted.append((job, snapshot))

    def jobs(self):
        return self.listed

    def job(self, name):
        return next((one for one in self.listed if one["name"] == name), None)

    def delete_job(self, name):
        self.gone.append(name)

    def lists(self, name, state="resting", streams=0, **more):
        self.listed.append({"name": name, "state": state, "open_streams": streams, **more})


@pytest.fixture
def servers(fake, monkeypatch):
    found = FakeControl(fake)
    monkeypatch.setattr(control, "of", lambda config: found)
    return found


def engine():
    def schedule(optimizer):
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3], gamma=0.5)

    return deepspeed.initialize(model=Net(), lr_scheduler=schedule, config=CONFIG)[0]


def train(engine, rounds):
    for _ in range(rounds):
        engine.backward(engine(torch.ones(4, 4)).square().mean())
        engine.step()


def test_a_load_brings_back_all_that_the_engine_has(servers, tmp_path):
    first = engine()
    train(first, 2)
    first.module.frozen.data.fill_(7.0)
    state = {"epoch": 3, "random": torch.get_rng_state(), "order": (1, [2.5, None]),
             "seen": Counter({4: 1}), 5: "five"}  # fmt: skip
    assert first.save_checkpoint(tmp_path, client_state=state) is True
    assert (tmp_path / "latest").read_text() == "global_step2"
    saved_job = first.optimizer.job

    second = engine()
    path, got = second.load_checkpoint(str(tmp_path))
    assert path == str(tmp_path / "global_step2")
    assert torch.equal(got.pop("random"), state.pop("random")) and got == state
    assert type(got["order"]) is tuple and type(got["seen"]) is Counter
    assert (second.global_steps, second.micro_steps, second.global_samples) == (2, 2, 8)
    assert second.skipped_steps == 0 and second.get_lr() == [0.005]
    assert int(second.module.seen) == 8 and torch.equal(second.module.frozen, torch.full((3,), 7.0))
    assert torch.equal(second.module.linear.bias, torch.full((2,), 0.25))  # the fork's weights
    ((job, snapshot, new, world),) = servers.made
    assert (job, snapshot, world) == (saved_job, "global_step2", 1)
    assert second.optimizer.job == new and second.optimizer.opt_step == 2
    train(second, 1)
    assert second.get_lr() == [0.0025]


def test_a_running_engine_goes_back_and_leaves_its_job(servers, fake, tmp_path):
    run = engine()
    train(run, 2)
    run.save_checkpoint(tmp_path, "here")
    train(run, 1)
    run.load_checkpoint(tmp_path, "here")
    assert run.global_steps == 2
    assert fake.attached[0].calls[-1] == ("leave",)
    first = run.optimizer.job
    run.load_checkpoint(tmp_path, "here")
    assert run.optimizer.job != first and run.optimizer.job.count(".load-") == 1


def test_a_load_discards_accumulated_gradients_and_begins_a_window(servers, tmp_path):
    config = {**CONFIG, "gradient_accumulation_steps": 3}
    run = deepspeed.initialize(model=Net(), config=config)[0]
    train(run, 4)  # a round, and one micro-batch of the next
    assert run.module.linear.weight.grad is not None
    run.save_checkpoint(tmp_path, "inside")
    run.load_checkpoint(tmp_path, "inside")
    assert run.module.linear.weight.grad is None
    train(run, 2)
    assert run.global_steps == 1 and not run.was_step_applied()
    train(run, 1)
    assert run.global_steps == 2 and run.was_step_applied()


def test_an_epoch_of_training_data_continues_after_the_checkpoint(servers, tmp_path):
    def start():
        data = torch.utils.data.TensorDataset(torch.arange(80.0).reshape(20, 4))
        run, _, loader, _ = deepspeed.initialize(model=Net(), config=CONFIG, training_data=data)
        return run, loader

    run, loader = start()
    batches = iter(loader)
    for _ in range(2):
        run.backward(run(next(batches)[0]).square().mean())
        run.step()
    run.save_checkpoint(tmp_path)
    rest = [batch for (batch,) in batches]
    again, loader = start()
    again.load_checkpoint(tmp_path)
    continued = [batch for (batch,) in loader]
    assert len(continued) == 3 and all(map(torch.equal, continued, rest))


def test_a_checkpoint_of_the_other_kind_is_named(servers, tmp_path):
    (tmp_path / "latest_universal").write_text("global_step2_universal")
    with pytest.warns(UserWarning, match="but that of a universal checkpoint .*load_universal"):
        assert engine().load_checkpoint(tmp_path) == (None, None)


def test_a_load_deletes_jobs_of_earlier_loads_that_no_trainer_is_in(servers, tmp_path):
    run = engine()
    train(run, 1)
    run.save_checkpoint(tmp_path, "a")
    servers.lists("job.load-0000000a")  # of a killed process
    for kept in ("job", "other", "jobs.load-0000000b", "job.load-0000000b.load-0000000c",
                 "job.load-0000000d.x", "job.load-best"):  # fmt: skip
        servers.lists(kept)
    servers.lists("job.load-0000000e", "running", 0)  # waits for its trainers
    servers.lists("job.load-0000000f", "running", 1)
    run.load_checkpoint(tmp_path, "a")
    assert servers.gone == ["job.load-0000000a"]
    first = run.optimizer.job
    servers.listed = []
    servers.lists("job")
    servers.lists(first, "running", 0)  # left, and not at rest yet
    run.load_checkpoint(tmp_path, "a")
    assert servers.gone == ["job.load-0000000a", first] and run.optimizer.job != first


def test_a_job_that_cannot_be_deleted_is_a_warning(servers, tmp_path):
    run = engine()
    train(run, 1)
    run.save_checkpoint(tmp_path, "a")

    def away():
        raise Unreachable("no server answers")

    servers.jobs = away
    with pytest.warns(UserWarning, match="stays on the servers: no server answers"):
        run.load_checkpoint(tmp_path, "a")
    assert run.global_steps == 1


def test_a_value_that_no_checkpoint_can_hold_is_named(servers, fake, tmp_path):
    run = engine()
    train(run, 1)
    for state, named in (
        ({"args": {"path": tmp_path}}, r"client_state\['args'\]\['path'\] is a PosixPath"),
        ({"f": [0, len]}, r"client_state\['f'\]\[1\] is a builtin_function"),
        ({(1, 2): 0}, r"client_state has the key \(1, 2\)"),
        (5, "client_state is a int, not a dict"),
    ):
        with pytest.raises(BadArgument, match=named):
            run.save_checkpoint(tmp_path, client_state=state)
    itself = {}
    itself["again"] = itself
    with pytest.raises(BadArgument, match="holds itself"):
        run.save_checkpoint(tmp_path, client_state=itself)
    assert not list(tmp_path.iterdir())
    assert all(call[0] != "snapshot" for call in fake.last.calls)


def test_values_that_scripts_keep_come_back_of_their_kinds(servers, tmp_path):
    run = engine()
    random = numpy.random.RandomState(3)
    state = {
        "args": argparse.Namespace(lr=0.1, more=argparse.Namespace(names=["a"])),
        "random": random.get_state(), "best": numpy.float32(0.1), "seen": numpy.int64(7),
        "on": numpy.bool_(True), "rows": numpy.arange(6.0).reshape(2, 3),
    }  # fmt: skip
    run.save_checkpoint(tmp_path, client_state=state)  # before the first round, too
    assert [call[0] for call in run.optimizer._membership.session._client.calls] == [
        "upload", "snapshot"]
    got = run.load_checkpoint(tmp_path)[1]
    assert got["args"] == state["args"] and type(got["args"].more) is argparse.Namespace
    other = numpy.random.RandomState(4)
    other.set_state(got["random"])
    assert other.randint(1 << 30) == random.randint(1 << 30)
    for name in ("best", "seen", "on"):
        assert type(got[name]) is type(state[name]) and got[name] == state[name]
    assert got["rows"].dtype == numpy.float64 and (got["rows"] == state["rows"]).all()
    for wrong in (numpy.array(["a"]), numpy.array([None]), numpy.datetime64("2026-01-01")):
        with pytest.raises(BadArgument, match=r"client_state\['it'\] has numpy's dtype"):
            run.save_checkpoint(tmp_path, client_state={"it": wrong})
    with pytest.raises(ValueError, match="no dtype of a number"):
        unpack({"__number__": ["object", 1]}, {})
    for nowhere in (None, "", 3):
        for call in (run.save_checkpoint, run.load_checkpoint):
            with pytest.raises(ValueError, match="no directory of checkpoints"):
                call(nowhere)


def test_a_missing_tag_lists_those_that_are_there(servers, tmp_path):
    run = engine()
    train(run, 1)
    with pytest.raises(BadArgument, match="no checkpoint 'a'; the tags there are: none"):
        run.load_checkpoint(tmp_path, "a")
    run.save_checkpoint(tmp_path, "b")
    run.save_checkpoint(tmp_path, "c", save_latest=False)
    assert (tmp_path / "latest").read_text() == "b"
    with pytest.raises(BadArgument, match="no checkpoint 'a'; the tags there are: b, c"):
        run.load_checkpoint(tmp_path, "a")
    (tmp_path / "latest").write_text("../b")
    with pytest.raises(BadArgument, match="latest does not hold a tag"):
        run.load_checkpoint(tmp_path)
    with pytest.raises(BadArgument, match="tag='../b': a tag is"):
        run.save_checkpoint(tmp_path, "../b")
    assert servers.made == []


def test_without_a_latest_nothing_is_loaded(servers, tmp_path):
    run = engine()
    with pytest.warns(UserWarning, match="no file 'latest': nothing is loaded"):
        assert run.load_checkpoint(tmp_path) == (None, None)


def test_a_tag_is_replaced_as_a_whole(servers, fake, tmp_path, monkeypatch):
    run = engine()
    train(run, 1)
    run.save_checkpoint(tmp_path, "best", {"n": 1})
    train(run, 1)

    def refused(path, flags):
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(folder, "_flush", refused)
        with pytest.raises(StorageFailed, match="cannot be written: no space"):
            run.save_checkpoint(tmp_path, "best", {"n": 2})
    assert folder.read(tmp_path, "best")[0]["client_state"] == {"n": 1}

    taken = fake.last.start_snapshot
    in_use = FakeOperation(error=NameInUse("taken", reason="NAME_IN_USE"))
    fake.last.start_snapshot = lambda name, keep: (
        in_use if name == "best" else taken(name, keep))  # fmt: skip
    run.save_checkpoint(tmp_path, "best", {"n": 3})
    values, _ = folder.read(tmp_path, "best")
    assert values["client_state"] == {"n": 3} and values["snapshot"] == f"best.{2**64 - 1:x}.2"
    assert servers.deleted == [(run.optimizer.job, "best")]
    assert len(list((tmp_path / "best").iterdir())) == 3  # no file of the old one


def test_a_lost_snapshot_is_named_before_anything_changes(servers, tmp_path):
    run = engine()
    train(run, 1)
    run.save_checkpoint(tmp_path, "a")
    servers.snapshots = lambda job: [{"name": "other"}]
    with pytest.raises(BadArgument, match="'a' of job .* the job's snapshots are: other"):
        run.load_checkpoint(tmp_path)
    train(run, 1)
    assert run.global_steps == 2


def test_another_module_or_optimizer_is_refused(servers, tmp_path):
    run = engine()
    train(run, 1)
    run.save_checkpoint(tmp_path, "a")
    run.module.seen = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(BadArgument, match=r"'seen' has the shape \[\], and the module's is \[2\]"):
        run.load_checkpoint(tmp_path)
    del run.module.seen
    with pytest.raises(BadArgument, match="has 'seen', which the module lacks"):
        run.load_checkpoint(tmp_path)
    run.load_checkpoint(tmp_path, load_module_strict=False)
    run.optimizer.add_param_group({"params": [("more", torch.nn.Parameter(torch.ones(2)))]})
    with pytest.raises(BadArgument, match="has 1 param_groups, and the optimizer has 2"):
        run.load_checkpoint(tmp_path, load_module_strict=False)
    with pytest.raises(Unsupported, match="custom_load_fn needs load_module_only=True or"):
        run.load_checkpoint(tmp_path, custom_load_fn=print)


def test_a_checkpoint_without_the_frozen_weights_leaves_nothing_as_initialised(servers, tmp_path):
    run = engine()
    train(run, 1)
    run.module.frozen.data.fill_(7.0)
    run.save_checkpoint(tmp_path, exclude_frozen_parameters=True)
    fresh = engine()
    with pytest.raises(
        BadArgument,
        match="global_step1 lacks 'frozen', which the module has; save it without "
        "exclude_frozen_parameters, or pass load_module_strict=False",
    ):
        fresh.load_checkpoint(tmp_path)
    assert servers.made == [] and fresh.global_steps == 0 and int(fresh.module.seen) == 0
    fresh.load_checkpoint(tmp_path, load_module_strict=False)
    assert fresh.global_steps == 1 and fresh.module.frozen.eq(1.0).all()
    fresh.module.title = "no tensor"  # which a state dict may have, and no checkpoint has
    fresh.module._register_state_dict_hook(lambda module, state, *_: {**state, "t": module.title})
    run.save_checkpoint(tmp_path)
    for how in ({}, {"load_module_only": True}):
        fresh.module.frozen.data.fill_(1.0)
        fresh.load_checkpoint(tmp_path, **how)
        assert fresh.module.frozen.eq(7.0).all()


def rounds_of(engine):
    return [call[0] for call in engine.optimizer._membership.session._client.calls]


def test_the_module_alone_goes_into_the_present_job(servers, tmp_path):
    first = engine()
    train(first, 2)
    saved = {name: value.clone() for name, value in first.module.state_dict().items()}
    first.save_checkpoint(tmp_path, "a", {"n": 1})
    second = engine()
    train(second, 1)
    job, rounds = second.optimizer.job, rounds_of(second)
    path, state = second.load_checkpoint(tmp_path, "a", load_module_only=True)
    assert (path, state) == (str(tmp_path / "a"), {"n": 1})
    assert all(torch.equal(saved[n], value) for n, value in second.module.state_dict().items())
    assert second.optimizer.job == job and rounds_of(second) == [*rounds, "upload"]
    assert (second.global_steps, second.global_samples, second.get_lr()) == (1, 4, [0.005])
    second.load_checkpoint(tmp_path, load_optimizer_states=False)
    assert (second.global_steps, second.global_samples) == (2, 8) and servers.made == []
    # The schedule is the script's: torch's has its position, and leaves the rate alone.
    assert second.lr_scheduler.last_epoch == 2 and second.get_lr() == [0.005]
    third = engine()
    third.load_checkpoint(tmp_path, load_optimizer_states=False, load_lr_scheduler_states=False)
    assert third.lr_scheduler.last_epoch == 0 and third.optimizer.round == 0
    assert all(torch.equal(saved[n], value) for n, value in third.module.state_dict().items())


def test_a_module_that_does_not_fit_is_refused_whole_or_loaded_by_the_script(servers, tmp_path):
    run = engine()
    train(run, 1)
    run.save_checkpoint(tmp_path, "a", exclude_frozen_parameters=True)
    before = {name: value.clone() for name, value in run.module.state_dict().items()}
    run.module.linear.weight.data.fill_(3.0)
    with pytest.raises(BadArgument, match="lacks 'frozen', which the module has;"):
        run.load_checkpoint(tmp_path, load_module_only=True)
    assert run.module.linear.weight.eq(3.0).all()
    run.load_checkpoint(tmp_path, load_module_only=True, load_module_strict=False)
    assert torch.equal(run.module.linear.weight, before["linear.weight"])

    def only_bias(src, dst):
        assert dst is run.module and sorted(src) == ["linear.bias", "linear.weight", "seen"]
        dst.linear.bias.data.copy_(src["linear.bias"] + 1)

    run.load_checkpoint(tmp_path, load_optimizer_states=False, custom_load_fn=only_bias)
    assert torch.equal(run.module.linear.bias, before["linear.bias"] + 1)


def test_an_engine_without_an_optimizer_saves_and_loads_the_module(servers, tmp_path):
    without = {key: value for key, value in CONFIG.items() if key != "optimizer"}

    def teacher():
        return deepspeed.initialize(model=Net(), config=without)[0]

    def same(one, other):
        mine, theirs = one.module.state_dict(), other.module.state_dict()
        return all(torch.equal(mine[name], theirs[name]) for name in mine)

    trained, judge = engine(), teacher()
    train(trained, 2)
    trained.save_checkpoint(tmp_path / "trained")
    judge.load_checkpoint(tmp_path / "trained")
    assert same(judge, trained) and judge.global_steps == 2
    judge.module.linear.weight.data.fill_(5.0)
    assert judge.save_checkpoint(tmp_path / "judge", "b", {"n": 2}) is True
    again = teacher()
    assert again.load_checkpoint(tmp_path / "judge")[1] == {"n": 2} and same(again, judge)
    with pytest.raises(BadArgument, match="an engine without an optimizer; load its weights alone"):
        trained.load_checkpoint(tmp_path / "judge")
    trained.load_checkpoint(tmp_path / "judge", load_module_only=True)
    assert same(trained, judge) and trained.global_steps == 2
    trained.save_checkpoint(tmp_path / "judge", "b")  # replaces one without a snapshot
    assert servers.deleted == []


def test_the_module_is_not_read_while_rank_0_may_write_it(servers, tmp_path, monkeypatch):
    trained = engine()
    judge = deepspeed.initialize(model=Net(), config={"train_micro_batch_size_per_gpu": 4})[0]
    train(trained, 1)
    monkeypatch.setattr(type(trained), "world_size", 2)
    trained.save_checkpoint(tmp_path / "a")
    both = (trained, judge)
    for run in both:
        with pytest.raises(Unsupported, match=r"rank 0 may .* deepspeed.init_distributed\(\)"):
            run.load_checkpoint(f"{tmp_path}/./a", load_module_only=True)
    with pytest.warns(UserWarning, match="has no file 'latest'"):
        assert trained.load_checkpoint(tmp_path, load_module_only=True) == (None, None)
    train(trained, 1)  # in which rank 0 takes part
    assert all(run.load_checkpoint(tmp_path / "a", load_module_only=True)[0] for run in both)
    judge.save_checkpoint(tmp_path / "judge")
    with pytest.raises(Unsupported, match=r"rank 0 may .* at the beginning \["):  # no step()
        judge.load_checkpoint(tmp_path / "judge")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    waits = []
    monkeypatch.setattr(torch.distributed, "barrier", lambda: waits.append(1))
    assert judge.load_checkpoint(tmp_path / "judge")[0] and waits == [1]


class Scaled(torch.nn.Linear):
    """With state of its own, as fp8 layers have: a new tensor of any size, or a dict."""

    extra = torch.zeros(0)

    def get_extra_state(self):
        return self.extra.clone() if isinstance(self.extra, torch.Tensor) else self.extra

    def set_extra_state(self, state):
        self.extra = state


@pytest.mark.parametrize("how", [{}, {"load_module_only": True}])
@pytest.mark.parametrize("extra", [torch.arange(3.0), {"scale": 2.0, "seen": [1, 2]}])
def test_what_a_module_keeps_by_get_extra_state_is_saved_and_loaded(servers, tmp_path, how, extra):
    model = torch.nn.Sequential(Scaled(4, 2))
    run = deepspeed.initialize(model=model, config=CONFIG)[0]
    train(run, 1)
    model[0].extra = extra
    run.save_checkpoint(tmp_path)
    model[0].extra = torch.zeros(0)
    run.load_checkpoint(tmp_path, **how)
    assert type(model[0].extra) is type(extra) and str(model[0].extra) == str(extra)
    model[0].extra = io.BytesIO()
    with pytest.raises(BadArgument, match=r"module\['0._extra_state'\]"):
        run.save_checkpoint(tmp_path)


@pytest.mark.parametrize("how", [{}, {"load_module_only": True}])
def test_an_extra_state_that_the_checkpoint_lacks_is_named(servers, tmp_path, how):
    run = deepspeed.initialize(model=torch.nn.Sequential(torch.nn.Linear(4, 2)), config=CONFIG)[0]
    train(run, 1)
    run.save_checkpoint(tmp_path)
    scaled = deepspeed.initialize(model=torch.nn.Sequential(Scaled(4, 2)), config=CONFIG)[0]
    with pytest.raises(BadArgument, match="lacks '0._extra_state', which the module has"):
        scaled.load_checkpoint(tmp_path, **how)
    assert servers.made == []
    scaled.load_checkpoint(tmp_path, load_module_strict=False, **how)
    assert scaled.module[0].extra is Scaled.extra


class Attack:
    def __reduce__(self):
        return os.mkdir, ("attacked",)


@pytest.mark.parametrize("cut", ["json", "keys", "tensors", "pickle", "other"])
def test_a_damaged_checkpoint_is_refused_and_runs_no_code(servers, tmp_path, monkeypatch, cut):
    monkeypatch.chdir(tmp_path)
    run = engine()
    train(run, 1)
    run.save_checkpoint(tmp_path, "a", {"t": torch.ones(2)})
    page = tmp_path / "a" / "checkpoint.json"
    (tensors,) = (tmp_path / "a").glob("tensors-*.pt")
    if cut == "json":
        page.write_text(page.read_text()[:-5])
    elif cut == "keys":
        page.write_text('{"format": 1, "tensors": "tensors-00000000.pt"}')
    elif cut == "tensors":
        tensors.write_bytes(tensors.read_bytes()[:100])
    elif cut == "pickle":
        torch.save({"0": Attack()}, tensors)
    else:
        torch.save({}, tensors)
    with pytest.raises(BadArgument, match="cannot be read|lacks job|is damaged"):
        run.load_checkpoint(tmp_path)
    assert not (tmp_path / "attacked").exists() and servers.made == []


def test_weights_are_plain_files_that_appear_as_a_whole(fake, tmp_path):
    run = engine()
    run.save_16bit_model(str(tmp_path / "new"))
    run.save_16bit_model(str(tmp_path / "new"), "model.safetensors", True)
    plain = torch.load(tmp_path / "new" / "pytorch_model.bin", weights_only=True)
    assert plain.keys() == run.module.state_dict().keys()
    few = load_file(tmp_path / "new" / "model.safetensors")
    assert few.keys() == plain.keys() - {"frozen"}
    assert all(torch.equal(value, plain[name]) for name, value in few.items())
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [
        "model.safetensors", "pytorch_model.bin"]  # fmt: skip
    assert zipfile.is_zipfile(io.BytesIO((tmp_path / "new" / "pytorch_model.bin").read_bytes()))


def test_only_a_fork_at_its_beginning_is_taken_again(servers, fake, tmp_path):
    optimizer = engine().optimizer
    path = tmp_path / "loading.json"
    path.write_text('{"tag": "a", "job": "j", "round": 4, "world": 1}')
    usable = lambda tag="a": _rejoin._usable(optimizer, str(path), tag)  # noqa: E731
    assert usable() is None
    servers.listed = [{"name": "j", "round": 5}]
    assert usable() == usable("") == _rejoin.Fork("a", "j", 4, 1)
    assert usable("b") is None
    servers.listed = [{"name": "j", "round": 6}]
    assert usable() is None
    servers.listed = [{"name": "j", "round": 5}]
    for text in ('{"tag": "a", "job": "j", "round": 4, "world": 2}', "{}", "[1]", "{"):
        path.write_text(text)
        assert usable() is None


def test_pack_and_unpack_are_inverse_for_names_like_the_marks():
    packer = Packer()
    value = {"__tuple__": [1], "x": {"__pairs__": 2}, "none": {}, "t": [torch.ones(1)]}
    assert unpack(packer.pack(value, "v"), packer.tensors) == value
    with pytest.raises(ValueError, match="its tensor '9' is missing"):
        unpack({"__tensor__": "9"}, packer.tensors)
