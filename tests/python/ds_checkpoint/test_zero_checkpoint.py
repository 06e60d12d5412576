"""ZeRO checkpoints as safetensors: the bits of DeepSpeed's own converters, or a refusal by name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ballast.ds_checkpoint import CheckpointError, open_zero
from ballast.ds_checkpoint import torch_file, zero_to_fp32
from ballast.ds_checkpoint.zero_files import NAMES
from safetensors import safe_open
from safetensors.torch import load_file
from serving import REPO
from zero_made import Made, files_of, random_groups, save

RECORDED = Path(__file__).resolve().parent / "recorded"
STAGES = (1, 2, 3)
VARIANTS = ("stage1", "stage2", "turns", "stage3")
OPTIM = "zero_pp_rank_{}_mp_rank_00_optim_states.pt"


@pytest.fixture
def recorded(tmp_path):
    """recorded(variant): a checkpoint that DeepSpeed 0.19.8 wrote, unpacked."""

    def unpack(variant):
        folder = tmp_path / variant
        shutil.unpack_archive(RECORDED / f"{variant}.tar.xz", folder)
        return folder

    return unpack


def same(got, want):
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    a, b = (t.contiguous().reshape(-1).view(torch.uint8) for t in (got, want))
    assert torch.equal(a, b)


def converted(folder, tmp_path, *arguments):
    out = tmp_path / "out.safetensors"
    assert zero_to_fp32.main([str(folder), str(out), *arguments]) == 0
    with safe_open(out, "pt") as file:
        return load_file(out), file.metadata()


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_have_the_bits_of_deepspeeds_own_converter(recorded, tmp_path, variant):
    folder = recorded(variant)
    got, metadata = converted(folder, tmp_path)
    want = torch.load(folder / "zero_to_fp32.pt", weights_only=True)
    assert metadata == {"format": "pt", "head.weight": "embedding.weight"}
    tied = want.pop("head.weight")
    assert torch.equal(tied, got["embedding.weight"])
    if variant == "stage1":  # DeepSpeed's converter leaves out frozen parameters
        frozen = got.pop("frozen")
        assert frozen.shape == (3, 5) and frozen.count_nonzero() == 15
    assert set(got) == set(want)
    for name, tensor in got.items():
        same(tensor, want[name].float() if want[name].is_floating_point() else want[name])


@pytest.mark.parametrize("variant", ["stage1", "stage2", "stage3"])
def test_masters_and_moments_have_the_bits_of_deepspeeds_universal_checkpoint(recorded, variant):
    folder = recorded(variant)
    zero = open_zero(folder)
    assert zero.arrays == ("fp32", "exp_avg", "exp_avg_sq")
    for name, shape in zero.shapes.items():
        assert zero.step(name) == 3
        for array in zero.arrays:
            path = folder / "step3_universal" / "zero" / name / f"{array}.pt"
            want = torch.load(path, weights_only=True)
            want = want["param"] if isinstance(want, dict) else want
            same(zero.read(name, array), want.detach().reshape(shape))


@pytest.mark.parametrize("variant", ["stage1", "stage2", "turns"])
def test_masters_rounded_are_the_modules_weights(recorded, variant):
    """With round_robin_gradients ds_to_universal of 0.19.8 gives parameters each other's values."""
    folder = recorded(variant)
    zero = open_zero(folder)
    saved = torch_file.load(folder / "step3" / "mp_rank_00_model_states.pt", NAMES)
    for name in zero.shapes:
        same(zero.read(name).bfloat16(), saved["module"][name].read())


def test_frozen_parameters_are_left_out_when_asked(recorded, tmp_path):
    for variant in VARIANTS:
        folder = recorded(variant)
        assert "frozen" in converted(folder, tmp_path)[0]
        got, _ = converted(folder, tmp_path, "--exclude_frozen_parameters")
        assert "frozen" not in got and "middle.weight" in got


SHAPES = (
    [{"a": (3, 5), "b": (7,)}, {"c": (1,), "d": (2, 2, 2)}],
    [{"a": (), "b": (0, 3), "c": (1,)}],
    [{"a": (1,)}],
    [{f"layer.{i}.weight": (i, 3) for i in range(1, 9)}],
)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_every_cut_is_put_together_again(tmp_path, stage, world):
    for index, shapes in enumerate(SHAPES):
        made = Made(stage, world, random_groups(shapes, seed=index))
        zero = open_zero(save(tmp_path / str(index), files_of(made)))
        assert (zero.stage, zero.world) == (stage, world)
        for name, arrays in made.values().items():
            for array, want in zip(("fp32", "exp_avg", "exp_avg_sq"), arrays):
                same(zero.read(name, array), want)


@pytest.mark.parametrize("stage", (2, 3))
def test_frozen_tied_and_buffers_of_a_made_checkpoint(tmp_path, stage):
    made = Made(stage, 3, random_groups(SHAPES[0]))
    made.frozen = {"f": torch.randn(2, 5).bfloat16(), "g": torch.tensor(3.0)}
    made.buffers = {"n": torch.tensor([3, 4]), "h": torch.rand(3).half()}
    made.shared = {"tied": "a", "frozen.tied": "f", "strange": "none", "b": "a"}
    got, metadata = converted(save(tmp_path / "made", files_of(made)), tmp_path)
    for name, want in {**made.frozen, **made.buffers}.items():
        same(got[name], want.float() if want.is_floating_point() else want)
    assert metadata == {"format": "pt", "tied": "a", "frozen.tied": "f"}


def test_bf16_with_fp32_accumulation_is_read_as_stage_1(tmp_path):
    made = Made(1, 2, random_groups(SHAPES[0]))
    files = {f"bf16_{n}" if n.startswith("zero") else n: v for n, v in files_of(made).items()}
    for name, value in files.items():
        if "optim" in name:
            del value["optimizer_state_dict"]["zero_stage"]
    zero = open_zero(save(tmp_path, files))
    assert zero.stage == 1
    same(zero.read("d"), made.values()["d"][0])


def test_moments_that_are_shorter_than_their_masters_are_not_there(tmp_path):
    files = files_of(Made(2, 2, random_groups(SHAPES[0])))
    state = files[OPTIM.format(1)]["optimizer_state_dict"]["base_optimizer_state"]["state"]
    state[1]["exp_avg"] = state[1]["exp_avg"][:2]
    assert open_zero(save(tmp_path, files)).arrays == ("fp32", "exp_avg_sq")


def test_a_tag_is_chosen(tmp_path):
    made = Made(2, 1, random_groups(SHAPES[2]))
    save(tmp_path, files_of(made), tag="old")
    save(tmp_path, files_of(Made(2, 1, random_groups(SHAPES[2], seed=9))), tag="new")
    same(open_zero(tmp_path, "old").read("a"), made.values()["a"][0])
    assert open_zero(tmp_path).directory == str(tmp_path / "new")


def changed(stage, change, world=2):
    """Files of a checkpoint after change(files, optimizer state of rank 0, model state)."""
    files = files_of(Made(stage, world, random_groups(SHAPES[0])))
    model = files.get("mp_rank_00_model_states.pt") or files[
        "zero_pp_rank_0_mp_rank_00_model_states.pt"]
    change(files, files[OPTIM.format(0)]["optimizer_state_dict"], model)
    return files


RANK_0, RANK_1, RANK_2 = map(OPTIM.format, range(3))
MODEL = "mp_rank_00_model_states.pt"
MODEL_3 = "zero_pp_rank_{}_mp_rank_00_model_states.pt"
TENSOR_PARALLEL = "zero_pp_rank_0_mp_rank_01_optim_states.pt"
EXPERT = "layer_0_expert_1_mp_rank_00_model_states.pt"
SINGLE = "single_partition_of_fp32_groups"


def file(name, value):
    return lambda f, o, m: f.update({name: value})


def again(name, of):
    return lambda f, o, m: f.update({name: f[of]})


def without(name):
    return lambda f, o, m: f.pop(name)


def optimizer(**fields):
    return lambda f, o, m: o.update(fields)


def model(**fields):
    return lambda f, o, m: m.update(fields)


def shape(name, value, group=0):
    return lambda f, o, m: m["param_shapes"][group].update({name: value})


def master(value, key=SINGLE):
    """Another vector for group 0 of rank 0."""
    return lambda f, o, m: o.update({key: [value, *o[key][1:]]})


def shorten(file):
    vectors = file["optimizer_state_dict"][SINGLE]
    vectors[0] = vectors[0][:-1]


def buffer(value):
    return lambda f, o, m: (m["module"].update(x=value), m["buffer_names"].append("x"))


INTEGERS = torch.ones(4, dtype=torch.int64)
COMPLEX = torch.ones(2, dtype=torch.complex64)
FROZEN = {"frozen_param_shapes": {"z": (2, 2)}}

CHANGES = {
    "no file of rank 1": (2, without(RANK_1), "one of 2 ranks, but there are 1"),
    "no file of rank 0": (2, without(RANK_0), "lacks the optim states of rank 0"),
    "a file too many": (2, again(RANK_2, RANK_0), "one of 2 ranks, but there are 3"),
    "two of a rank": (2, again(f"bf16_{RANK_0}", RANK_0), "two files of optim states of rank 0"),
    "no model": (2, without(MODEL), "is no file"),
    "models of stage 3": (1, again(MODEL_3.format(0), MODEL), "of 1 ranks and optimizer states of"),
    "no models of stage 3": (3, without(MODEL_3.format(1)), "of 1 ranks and optimizer states of"),
    "another stage": (3, optimizer(zero_stage=2), "another stage than 2"),
    "tensor parallel": (2, file(TENSOR_PARALLEL, {}), "tensor parallelism"),
    "experts": (2, file(EXPERT, {}), "experts"),
    "not a dict": (2, file(RANK_0, [1]), "expected is a dict"),
    "stage 0": (2, optimizer(zero_stage=0), "ZeRO stage 0"),
    "stage of text": (2, optimizer(zero_stage="two"), "ZeRO stage None"),
    "no masters": (2, lambda f, o, m: o.pop(SINGLE), f"has no {SINGLE}"),
    "masters of text": (2, master("a"), "expected is a tensor"),
    "masters of integers": (2, master(INTEGERS), "no vector of floats"),
    "a matrix": (2, master(torch.ones(2, 2)), "no vector of floats"),
    "longer masters": (2, master(torch.ones(100)), "group 0 has"),
    "an element less": (2, lambda f, o, m: shorten(f[RANK_1]), "has 6 of the 7 elements of b"),
    "a group less": (2, lambda f, o, m: o[SINGLE].pop(), "groups, rank 0 has 1"),
    "ranks differ": (3, master(torch.ones(3), "fp32_flat_groups"), "differ in length"),
    "no shapes": (2, model(param_shapes=None), "param_shapes is None"),
    "shape of text": (2, shape("a", "big"), "no list of sizes"),
    "negative shape": (2, shape("a", (-3, -5)), "no list of sizes"),
    "huge shape": (2, shape("a", (2**40, 2**40)), "too many elements"),
    "large shape": (2, shape("a", (2**30,)), "group 0 has"),
    "other shape": (3, shape("d", (2, 2), group=1), "a rank has"),
    "name of a number": (2, shape(5, (1,)), "expected is a str"),
    "reserved name": (2, shape("__metadata__", ()), "__metadata__"),
    "half a character": (2, shape("\ud800", ()), "UTF-8"),
    "twice": (2, lambda f, o, m: m["param_shapes"].append({"a": (0,)}), "has two tensors a"),
    "paddings": (2, optimizer(param_alignment_paddings=[[-4, 4], [0, 0]]), "alignment_paddings"),
    "far paddings": (2, optimizer(param_alignment_paddings=[[2**40, 0], [0, 0]]), "group 0 has"),
    "no module": (2, model(module=None), "expected is a dict"),
    "frozen is short": (
        2, model(**FROZEN, frozen_param_fragments={"z": torch.ones(3)}), "frozen z"),
    "no frozen": (2, model(**FROZEN, frozen_param_fragments={}), "has no z"),
    "complex buffer": (2, buffer(COMPLEX), "ComplexFloatStorage"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_checkpoint_that_does_not_fit_is_refused_and_nothing_is_written(tmp_path, capsys, name):
    stage, change, says = CHANGES[name]
    folder = save(tmp_path / "c", changed(stage, change))
    out = tmp_path / "out.safetensors"
    out.write_text("before")
    assert zero_to_fp32.main([str(folder), str(out)]) == 2
    said = capsys.readouterr().err
    assert says in said and said.startswith(f"ballast-zero-to-fp32: {folder}")
    assert out.read_text() == "before" and sorted(p.name for p in tmp_path.iterdir()) == [
        "c", "out.safetensors"]


def test_code_in_any_file_is_refused_and_not_run(tmp_path, capsys):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    for stage in (2, 3):
        names = list(changed(stage, lambda f, o, m: None))
        for name in names:
            files = changed(stage, lambda f, o, m, name=name: f[name].update(client=Evil()))
            folder = save(tmp_path / f"{stage}{name}", files)
            assert zero_to_fp32.main([str(folder), str(tmp_path / "out")]) == 2
            assert f"{name}: the pickle names posix.mkdir" in capsys.readouterr().err
    assert not (tmp_path / "made").exists() and not (tmp_path / "out").exists()


def test_getattr_of_anything_but_the_stage_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return getattr, (torch.Size, "__class__")

    folder = save(tmp_path, changed(2, lambda f, o, m: o.update(x=Evil())))
    with pytest.raises(CheckpointError, match="calls getattr"):
        open_zero(folder)


@pytest.mark.parametrize("tag", ["../c", "/etc", "", "a/../b", "none", "x" * 5000, "a\0b"])
def test_a_tag_outside_the_directory_is_refused(tmp_path, tag):
    folder = save(tmp_path / "c", changed(2, lambda f, o, m: None))
    (folder / "latest").write_text(tag)
    with pytest.raises(CheckpointError, match="is no tag|is no directory|cannot be read"):
        open_zero(folder)


def test_a_directory_without_a_checkpoint_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="latest: cannot be read"):
        open_zero(tmp_path)
    (tmp_path / "t").mkdir()
    with pytest.raises(CheckpointError, match="so it is no ZeRO checkpoint"):
        open_zero(tmp_path, "t")


def test_a_small_checkpoint_cannot_ask_for_a_large_file(tmp_path, monkeypatch, capsys):
    """Frozen parameters may be the same bytes under any number of names."""
    shared = torch.ones(100_000)
    made = Made(2, 1, random_groups(SHAPES[2]))
    made.frozen = {f"f{i}": shared for i in range(50)}
    folder = save(tmp_path / "c", files_of(made))
    monkeypatch.setattr(zero_to_fp32, "_SIZE_FREE", 1 << 20)
    assert zero_to_fp32.main([str(folder), str(tmp_path / "out")]) == 2
    assert "asks for a file of" in capsys.readouterr().err


def test_damage_that_is_found_while_writing_leaves_no_file(tmp_path, capsys):
    folder = save(tmp_path / "c", changed(2, lambda f, o, m: None))
    path = folder / "step7" / OPTIM.format(1)
    data = bytearray(path.read_bytes())
    at = data.index(files_of(Made(2, 2, random_groups(SHAPES[0])))[OPTIM.format(1)][
        "optimizer_state_dict"]["single_partition_of_fp32_groups"][0].numpy().tobytes())
    data[at] ^= 1
    path.write_bytes(data)
    assert zero_to_fp32.main([str(folder), str(tmp_path / "out")]) == 2
    assert "CRC-32" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_a_place_that_cannot_be_written_is_named(tmp_path, capsys):
    folder = save(tmp_path / "c", changed(2, lambda f, o, m: None))
    assert zero_to_fp32.main([str(folder), str(tmp_path / "no" / "out")]) == 2
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


def test_neither_deepspeed_nor_torch_load_is_used(recorded, tmp_path):
    script = (
        "import sys, torch\n"
        "def load(*a, **k): raise SystemExit('torch.load was called')\n"
        "torch.load = torch.serialization.load = load\n"
        "from ballast.ds_checkpoint.zero_to_fp32 import main\n"
        "code = main(sys.argv[1:])\n"
        "assert not any(m.split('.')[0] in ('deepspeed', 'safetensors') for m in sys.modules)\n"
        "raise SystemExit(code)\n"
    )
    command = [sys.executable, "-c", script, recorded("stage3"), tmp_path / "out"]
    environ = {**os.environ, "PYTHONPATH": str(REPO / "client" / "python")}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert "stage 3, 2 ranks" in done.stdout


def test_the_file_is_what_our_own_reader_reads(recorded, tmp_path):
    converted(recorded("stage2"), tmp_path)
    data = (tmp_path / "out.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    ends = [v["data_offsets"][1] for k, v in header.items() if k != "__metadata__"]
    assert length % 8 == 0 and max(ends) == len(data) - 8 - length


def test_an_error_travels_between_processes():
    import copy

    error = CheckpointError("a.pt", "is damaged")
    again = copy.copy(error)
    assert (str(again), again.path, again.text) == (str(error), "a.pt", "is damaged")
