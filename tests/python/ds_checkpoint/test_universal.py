"""Universal checkpoints: those of DeepSpeed are read, and DeepSpeed can continue from ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import ballast.torch as bt
import pytest
import record_zero
import torch
from ballast.ds_checkpoint import (
    CheckpointError,
    Group,
    NamedState,
    Progress,
    load_universal,
    open_zero,
    states_of,
    to_universal,
    zero_states,
)
from real_training import fresh_job
from serving import built_ballastd
from zero_made import random_groups

RECORDED = Path(__file__).resolve().parent / "recorded"
HYPER = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}


@pytest.fixture
def recorded(tmp_path):
    """recorded(variant): a checkpoint that DeepSpeed 0.19.8 wrote, unpacked."""

    def unpack(variant):
        folder = tmp_path / variant
        shutil.unpack_archive(RECORDED / f"{variant}.tar.xz", folder)
        return folder

    return unpack


def same(got, want):
    assert set(got.arrays) == set(want.arrays) and got.step == want.step
    for name, tensor in got.arrays.items():
        assert (tensor.dtype, tensor.shape) == (torch.float32, want.arrays[name].shape)
        a, b = (t.contiguous().view(-1).view(torch.int32) for t in (tensor, want.arrays[name]))
        assert torch.equal(a, b)


def random_states(shapes, step=5):
    groups = random_groups([shapes])
    return {name: NamedState(dict(zip(("fp32", "exp_avg", "exp_avg_sq"), arrays)), step)
            for name, arrays in groups[0].items()}


SHAPES = {"a.weight": (3, 5), "b": (), "c": (0, 2), "d e.é": (7,)}


@pytest.mark.parametrize("variant", ["stage1", "stage2", "stage3"])
def test_our_conversion_of_a_zero_checkpoint_equals_deepspeeds(recorded, variant):
    folder = recorded(variant)
    want = zero_states(open_zero(folder))
    got = load_universal(folder)
    assert set(got) == set(want) and len(got) == 7
    for name, state in got.items():
        same(state, want[name])


def test_what_we_write_we_read(tmp_path):
    states = random_states(SHAPES)
    to_universal(tmp_path, "t", states, [Group(list(SHAPES), HYPER)])
    got = load_universal(tmp_path)
    assert list(got) == list(SHAPES)
    for name, state in got.items():
        same(state, states[name])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest_universal", "t"]


@pytest.mark.parametrize("torch_optimizer", [False, True])
def test_torch_reads_every_file_without_running_code(tmp_path, torch_optimizer):
    states = random_states(SHAPES)
    groups = [Group(["a.weight", "b"], HYPER), Group(["c", "d e.é"], {})]
    to_universal(tmp_path, "t", states, groups, progress=Progress(12, 96, 1),
                 module={"mask": torch.tensor([True, False])}, torch_optimizer=torch_optimizer,
                 client_state={"note": ["é", 1.5, None]})
    read = {str(path.relative_to(tmp_path / "t")): torch.load(path, weights_only=True)
            for path in tmp_path.rglob("*.pt")}
    assert len(read) == 4 * 4 + 3
    assert read["zero/a.weight/exp_avg.pt"]["cat_dim"] == 0
    step = read["zero/a.weight/step.pt"]
    assert step == 5 and isinstance(step, torch.Tensor) == torch_optimizer
    common = read["zero/optimizer_state.pt"]
    assert common["param_groups"][0]["betas"] == (0.9, 0.999)
    assert common["optimizer_state_dict"]["state"][1]["step"] == 5
    model = read["mp_rank_00_model_states.pt"]
    assert (model["global_steps"], model["global_samples"], model["skipped_steps"]) == (12, 96, 1)
    assert model["note"] == ["é", 1.5, None] and model["module"]["mask"].tolist() == [True, False]
    assert model["param_shapes"][0]["a.weight"] == torch.Size([3, 5])


def test_a_view_is_written_without_the_rest_of_its_storage(tmp_path):
    whole = torch.rand(100_000)
    to_universal(tmp_path, "t", {"a": NamedState({"fp32": whole[5:7]})}, [Group(["a"], {})])
    assert (tmp_path / "t" / "zero" / "a" / "fp32.pt").stat().st_size < 10_000
    assert torch.equal(load_universal(tmp_path)["a"].arrays["fp32"], whole[5:7])


def test_a_zero_checkpoint_becomes_a_universal_one(recorded, tmp_path):
    zero = open_zero(recorded("turns"))
    states = zero_states(zero)
    groups = [Group(list(shapes), HYPER) for shapes in zero.model.groups]
    to_universal(tmp_path / "u", "t", states, groups)
    for name, state in load_universal(tmp_path / "u").items():
        same(state, states[name])


def refused(call, *arguments, **options):
    with pytest.raises(CheckpointError) as caught:
        call(*arguments, **options)
    return caught.value.text


def names_of(path):
    return sorted(p.name for p in path.iterdir())


@pytest.mark.parametrize("tag", ["", ".", "..", "a/b", "/etc", "a\0b", "x" * 300, "\ud800"])
def test_a_tag_that_is_no_folder_is_refused(tmp_path, tag):
    assert refused(to_universal, tmp_path, tag, random_states({"a": (2,)}), [Group(["a"], {})])
    assert names_of(tmp_path) == []


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "a\0b", "x" * 300])
def test_a_parameter_that_is_no_folder_is_refused(tmp_path, name):
    assert refused(to_universal, tmp_path, "t", random_states({name: (2,)}), [Group([name], {})])
    assert names_of(tmp_path) == []


def test_groups_that_do_not_fit_are_refused(tmp_path):
    states = random_states({"a": (2,), "b": (2,)})
    for names, says in (
        ([["a"]], "b is in none of them"), ([["a", "b", "c"]], "the groups name 3 parameters"),
        ([["a", "b"], ["a"]], "the groups name 3 parameters"), ([["a", "a"]], "b is in none"),
    ):
        groups = [Group(group, {}) for group in names]
        assert says in refused(to_universal, tmp_path, "t", states, groups)
    states["b"] = NamedState(states["b"].arrays, 6)
    assert "has one count for a group" in refused(
        to_universal, tmp_path, "t", states, [Group(["a", "b"], {})])
    to_universal(tmp_path, "t", states, [Group(["a"], {}), Group(["b"], {})])
    assert load_universal(tmp_path)["b"].step == 6


def test_what_is_not_plain_is_refused_and_nothing_is_left(tmp_path):
    states = random_states({"a": (2,)})
    for hyper, client in (({"lr": object()}, {}), ({}, {"rng": object()}), ({}, {"x": {(1,): 2}})):
        assert "cannot hold" in refused(
            to_universal, tmp_path, "t", states, [Group(["a"], hyper)], client_state=client)
        assert names_of(tmp_path) == []
    no_master = {"a": NamedState({"exp_avg": torch.ones(2)})}
    assert "has no 'fp32'" in refused(to_universal, tmp_path, "t", no_master, [Group(["a"], {})])
    assert names_of(tmp_path) == []


def test_a_tag_is_never_overwritten(tmp_path):
    to_universal(tmp_path, "t", random_states({"a": (2,)}), [Group(["a"], {})])
    assert "exists already" in refused(
        to_universal, tmp_path, "t", random_states({"a": (3,)}), [Group(["a"], {})])
    assert load_universal(tmp_path)["a"].arrays["fp32"].shape == (2,)


def damage(folder, name, value):
    torch.save(value, folder / "t" / name)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


FILES = ("zero/a/fp32.pt", "zero/a/exp_avg.pt", "zero/a/step.pt", "zero/optimizer_state.pt",
         "mp_rank_00_model_states.pt")


@pytest.mark.parametrize("name", FILES)
def test_code_in_any_file_is_refused_and_not_run(tmp_path, name):
    to_universal(tmp_path, "t", random_states({"a": (2,)}), [Group(["a"], {})])
    damage(tmp_path, name, Evil(str(tmp_path / "made")))
    assert "names posix.mkdir" in refused(lambda: load_universal(tmp_path)["a"])
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("zero/a/fp32.pt", {"param": torch.ones(3)}, "has shape (3,); the model's is (2,)"),
        ("zero/a/fp32.pt", {"param": torch.ones(2, 1)}, "has shape (2, 1)"),
        ("zero/a/fp32.pt", {"param": torch.tensor([1, 2])}, "no tensor of floats"),
        ("zero/a/fp32.pt", {"other": torch.ones(2)}, "no tensor of floats"),
        ("zero/a/exp_avg.pt", 5, "no tensor of floats"),
        ("zero/a/step.pt", "five", "no number of steps"),
        ("zero/a/step.pt", -1, "no number of steps"),
        ("mp_rank_00_model_states.pt", {"param_shapes": [5]}, "no list of dicts"),
        ("mp_rank_00_model_states.pt", {"param_shapes": [{"../a": (2,)}]}, "no folder's name"),
        ("mp_rank_00_model_states.pt", {"param_shapes": [{"b": (2,)}]}, "no fp32.pt of b"),
        ("mp_rank_00_model_states.pt", [], "has no param_shapes"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, name, value, says):
    to_universal(tmp_path, "t", random_states({"a": (2,)}), [Group(["a"], {})])
    damage(tmp_path, name, value)
    assert says in refused(lambda: load_universal(tmp_path)["a"])


def test_without_model_states_the_folders_say_what_there_is(tmp_path):
    states = random_states({"a": (2,), "b": (3, 3)})
    to_universal(tmp_path, "t", states, [Group(["a", "b"], {})])
    for path in (tmp_path / "t").glob("*_model_states.pt"):
        path.unlink()
    got = load_universal(tmp_path)
    assert list(got) == ["a", "b"]
    same(got["b"], states["b"])


def test_a_directory_without_a_universal_checkpoint_is_named(tmp_path):
    assert "cannot be read" in refused(load_universal, tmp_path)
    (tmp_path / "t").mkdir()
    assert "no universal checkpoint" in refused(load_universal, tmp_path, "t")


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("variant", ["stage1", "stage2", "stage3"])
def test_deepspeed_continues_from_what_we_wrote(recorded, tmp_path, variant, world):
    """Masters and moments after loading, and the masters after the next step: 0 bits."""
    folder = recorded(variant)
    zero = open_zero(folder)
    states = zero_states(zero)
    hypers = ({**HYPER, "weight_decay": decay} for decay in (0.1, 0.0))
    names = record_zero.names_of_groups()
    groups = [Group(group, hyper) for group, hyper in zip(names, hypers)]
    to_universal(tmp_path / "u", "t", states, groups, torch_optimizer=True,
                 progress=Progress(global_steps=3))
    script = [record_zero.__file__, str(tmp_path / "out"), variant, "--as-rank", "--continue-from",
              str(tmp_path / "u")]
    record_zero.run_ranks(script, world=world)
    loaded = zero_states(open_zero(tmp_path / "out", "loaded"))
    for name, state in loaded.items():
        same(state, states[name])
    if world == 2:
        after = open_zero(tmp_path / "out", "continued")
        want = torch.load(folder / "next.pt", weights_only=True)
        # Stage 3 of 0.19.8 gives all groups the weight decay of the first.
        for name in names[0] if variant == "stage3" else after.shapes:
            assert torch.equal(after.read(name), want[name]), name


def exported(endpoints):
    """Three steps of the toy in a job, out as a universal checkpoint: (states, the result of a
    fourth, the checkpoint)."""
    torch.manual_seed(7)
    model = record_zero.Toy(1).bfloat16()
    groups = [{"params": group, "weight_decay": decay}
              for group, decay in zip(record_zero.named_groups(model), (0.1, 0.0))]  # fmt: skip
    job = fresh_job("universal")
    optimizer = bt.AdamW(groups, lr=0.01, max_grad_norm=1.0, endpoints=endpoints, job=job)

    def step(i):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(100 * i)
        model(torch.randint(0, 13, (6,), generator=generator)).backward()
        optimizer.step()
        return states_of(optimizer.export_state())[0]

    for i in range(record_zero.STEPS):
        states = step(i)
    command = [built_ballastd().with_name("ballastctl"), "export", job, "--format",
               "deepspeed-universal", "--torch-optimizer", "--endpoint", ",".join(endpoints),
               "-o", "json"]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    after = step(record_zero.STEPS)
    optimizer.close()
    return states, after, json.loads(said)["directory"]


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("variant", ["stage1", "stage2", "stage3"])
def test_deepspeed_continues_from_what_the_servers_wrote(
    shared_servers, tmp_path, variant, world
):
    """Masters and moments after loading: 0 bits. A step later, as close as 16 bits allow."""
    states, after, directory = exported(shared_servers(2))
    script = [record_zero.__file__, str(tmp_path / "out"), variant, "--as-rank", "--continue-from",
              directory]  # fmt: skip
    record_zero.run_ranks(script, world=world)
    loaded = zero_states(open_zero(tmp_path / "out", "loaded"))
    assert set(loaded) == set(states)
    for name, state in loaded.items():
        same(state, states[name])
    if world == 1:
        continued = open_zero(tmp_path / "out", "continued")
        # Stage 3 of 0.19.8 gives all groups the weight decay of the first.
        names = record_zero.names_of_groups()[0] if variant == "stage3" else continued.shapes
        for name in names:
            got, want = continued.read(name), after[name].arrays["fp32"]
            assert not torch.equal(got, states[name].arrays["fp32"]), name
            torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-4, msg=name)
