"""checkpoint.load_universal: load_checkpoint() of what DeepSpeed, or `ballastctl export`, wrote."""

from __future__ import annotations

import ballast.deepspeed as deepspeed
import ballast.torch as bt
import pytest
import torch
from ballast.ds_checkpoint import Group, NamedState, Progress, to_universal
from ballast.errors import BadArgument, Unsupported

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "checkpoint": {"load_universal": True},
}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 2)
        self.frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x):
        return self.linear(x)


def states(seed=3):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: NamedState(
            {a: torch.rand(shape, generator=generator) for a in ("fp32", "exp_avg", "exp_avg_sq")},
            7)
        for name, shape in {"linear.weight": (2, 4), "linear.bias": (2,)}.items()
    }  # fmt: skip


def written(folder, **more):
    of = states()
    module = {"seen": torch.tensor(5), "frozen": torch.full((3,), 2.0),
              "linear.bias": torch.zeros(2)}  # fmt: skip
    to_universal(folder, "t", of, [Group(list(of), {"lr": 5.0})], progress=Progress(9, 72, 2),
                 **{"module": module, "client_state": {"epoch": 4}, **more})  # fmt: skip
    return of


def engine(**more):
    return deepspeed.initialize(model=Net(), config={**CONFIG, **more.pop("config", {})}, **more)[0]


def test_everything_of_the_file_arrives(fake, tmp_path):
    want = written(tmp_path)
    run = engine()
    assert run.load_universal_checkpoint() is True
    path, client = run.load_checkpoint(str(tmp_path))
    assert path == str(tmp_path / "t") and client == {"epoch": 4}
    assert (run.global_steps, run.skipped_steps, run.global_samples) == (9, 2, 72)
    assert run.micro_steps == 18 and run.optimizer.opt_step == 7
    exported = run.optimizer.export_state()
    for index, name in exported["names"].items():
        got, theirs = exported["state"][index], want[name].arrays
        assert torch.equal(got["master"], theirs["fp32"])
        assert torch.equal(got["exp_avg"], theirs["exp_avg"]) and int(got["step"]) == 7
    assert torch.equal(run.module.linear.bias, want["linear.bias"].arrays["fp32"])
    assert int(run.module.seen) == 5 and torch.equal(run.module.frozen, torch.full((3,), 2.0))
    assert run.get_lr() == [0.01]  # hyper-parameters stay the engine's
    assert engine().load_checkpoint(tmp_path, "t")[0] == str(tmp_path / "t")


def test_a_schedule_of_torch_continues(fake, tmp_path):
    written(tmp_path)
    for path in (tmp_path / "t").glob("*_model_states.pt"):
        values = torch.load(path, weights_only=True)
        torch.save({**values, "lr_scheduler": {"last_batch_iteration": 6}}, path)

    def schedule(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)

    run = engine(lr_scheduler=schedule)
    run.load_checkpoint(tmp_path)
    for _ in range(2):
        run.backward(run(torch.ones(4, 4)).sum())
        run.step()
    assert run.get_lr() == [0.01 * 0.5**8]
    run = engine(lr_scheduler=schedule)
    run.load_checkpoint(tmp_path, load_lr_scheduler_states=False)
    assert run.lr_scheduler.last_epoch == 0


SCHEDULER = {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 3}}}


def scheduled(folder, **state):
    """Writes a checkpoint with a schedule's state dict."""
    written(folder)
    for path in (folder / "t").glob("*_model_states.pt"):
        values = torch.load(path, weights_only=True)
        torch.save({**values, "lr_scheduler": state}, path)


@pytest.mark.parametrize(
    ("state", "position"),
    [({"last_batch_iteration": 6}, 6), ({"last_batch_iteration": -1}, -1), ({"last_epoch": 7}, 6)],
)
def test_the_services_schedule_continues_where_the_checkpoint_stands(
    fake, tmp_path, state, position
):
    scheduled(tmp_path, **state)
    run = engine(config=SCHEDULER)
    run.load_checkpoint(tmp_path)
    assert (run.lr_scheduler.last_batch_iteration, run.global_steps) == (position, 9)
    for _ in range(2):
        run.backward(run(torch.ones(4, 4)).sum())
        run.step()
    assert run.lr_scheduler.last_batch_iteration == position + 1
    assert run.get_lr() == [0.01 if position == 6 else 0.0]
    run = engine(config=SCHEDULER)
    run.load_checkpoint(tmp_path, load_lr_scheduler_states=False)
    assert run.lr_scheduler.last_batch_iteration == -1


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({}, "is of round 9 and does not say where its schedule stands; pass load_lr_scheduler_"),
        ({"last_batch_iteration": -2}, "last_batch_iteration of its lr_scheduler is no position"),
        ({"last_batch_iteration": "6"}, "last_batch_iteration of its lr_scheduler is no position"),
        ({"last_epoch": 2**53 + 1}, "last_epoch of its lr_scheduler is no position"),
    ],
)
def test_a_schedule_without_a_position_is_refused_before_anything_changes(
    fake, tmp_path, state, said
):
    scheduled(tmp_path, **state)
    run = engine(config=SCHEDULER)
    with pytest.raises((BadArgument, Unsupported), match=said):
        run.load_checkpoint(tmp_path)
    assert run.global_steps == 0 and int(run.module.seen) == 0
    assert run.optimizer.opt_step == 0


@pytest.mark.parametrize("index", [-2, 2**53 + 1, True, 1.0, "3"])
def test_load_export_takes_a_position_of_a_schedule_only(fake, tmp_path, index):
    written(tmp_path)
    run = engine(config=SCHEDULER)
    with pytest.raises(BadArgument, match="schedule_index=.* from -1, the beginning, to 9007199"):
        run.optimizer.load_export(tmp_path, index)
    with pytest.raises(BadArgument, match="schedule_index=3: the optimizer has no lr_schedule"):
        engine().optimizer.load_export(tmp_path, 3)
    assert run.optimizer.opt_step == 0


def test_what_is_not_there_or_does_not_fit_is_named(fake, tmp_path):
    run = engine()
    with pytest.warns(UserWarning, match="no file 'latest_universal': nothing is loaded"):
        assert run.load_checkpoint(tmp_path) == (None, None)
    written(tmp_path, module={"other": torch.ones(1)})
    with pytest.raises(BadArgument, match="'other', which the module lacks"):
        run.load_checkpoint(tmp_path)
    run.load_checkpoint(tmp_path, load_module_strict=False)
    with pytest.raises(BadArgument, match="is no directory"):
        run.load_checkpoint(tmp_path, "none")
    written(tmp_path / "more", module={"seen": torch.ones(2)})
    with pytest.raises(BadArgument, match="'seen' has the shape"):
        run.load_checkpoint(tmp_path / "more")
    for path in (tmp_path / "more" / "t").glob("*_model_states.pt"):
        torch.save({"global_steps": "nine"}, path)
    with pytest.raises(BadArgument, match="global_steps is no count"):
        run.load_checkpoint(tmp_path / "more")
    assert run.global_steps == 9


def loaded(kind, folder, **more):
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = getattr(bt, kind)([(more.pop("name", "a"), parameter)], lr=0.1, **more)
    optimizer.load_export(folder)
    return parameter, optimizer.export_state()["state"][0]


def one(folder, tag, **arrays):
    to_universal(folder, tag, {"a": NamedState(arrays, 4)}, [Group(["a"], {})])
    return folder / tag


def test_an_optimizer_takes_the_arrays_of_its_kind(fake, tmp_path):
    ones, twos = torch.ones(3), torch.full((3,), 2.0)
    deepspeeds = one(tmp_path, "ds", fp32=ones, exp_avg_sq=twos)
    torchs = one(tmp_path, "torch", fp32=ones, sum=twos)
    for folder in (deepspeeds, torchs):
        parameter, state = loaded("Adagrad", folder)
        assert torch.equal(parameter, ones) and torch.equal(state["sum"], twos)
        assert int(state["step"]) == 4
    with pytest.raises(BadArgument, match="has exp_avg_sq and no exp_avg: it is of another"):
        loaded("AdamW", deepspeeds)
    with pytest.raises(BadArgument, match="has no parameter 'b'"):
        loaded("Adagrad", deepspeeds, name="b")
    with pytest.raises(BadArgument, match=r"master has shape \(4,\); the parameter's is \(3,\)"):
        loaded("Adagrad", one(tmp_path, "long", fp32=torch.ones(4), exp_avg_sq=torch.ones(4)))


def test_weights_alone_begin_anew(fake, tmp_path):
    parameter, state = loaded("AdamW", one(tmp_path, "t", fp32=torch.ones(3)))
    assert torch.equal(parameter, torch.ones(3)) and not state["exp_avg"].any()
    assert int(state["step"]) == 0
