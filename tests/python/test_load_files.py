"""opt.load_export() of files: whose state it is, by job.ballast or by its arrays.

Exports that real servers have written are in tests/e2e/test_exchange_kinds.py.
"""

import struct

import pytest
import safetensors.torch
import torch

import ballast
import ballast.torch as bt
from ballast.torch.job_file import service_kind_of

NUMBERS = {"AdamW": 1, "Adam": 2, "SGD": 3, "Adagrad": 4, "Lion": 5, "LAMB": 6, "ApplyDelta": 7}
ARRAYS = {
    "AdamW": ("exp_avg", "exp_avg_sq"),
    "Adam": ("exp_avg", "exp_avg_sq"),
    "SGD": ("momentum_buffer",),
    "Adagrad": ("sum",),
    "Lion": ("exp_avg",),
    "LAMB": ("exp_avg", "exp_avg_sq"),
    "ApplyDelta": (),
}


def text(content: bytes) -> bytes:
    return struct.pack("<I", len(content)) + content


def job_file(kind: int) -> bytes:
    """The beginning of a MANIFEST, the only part read of it, with fields of every wire type."""
    spec = b"\x0a\x03job\x10\x01" + b"\x18" + bytes([kind]) + b"\x31" + bytes(8)
    plan = b"\x09" + bytes(8) + b"\x12" + bytes([len(spec)]) + spec + b"\x38\xac\x02"
    body = text(b"name") + text(b"job") + bytes(24) + text(plan) + bytes(4)
    return struct.pack("<8sIIQQ", b"BALLSNP\n", 1, 0, 32 + len(body), 7) + body


def write(path, arrays, kind=None, state=True):
    """An export of a weight "p" that is 7 everywhere."""
    (path / "optimizer").mkdir(parents=True)
    tensors = {f"{array}.p": torch.full((4,), 0.5) for array in arrays}
    tensors["step.p"] = torch.tensor(3)
    safetensors.torch.save_file({"p": torch.full((4,), 7.0)}, path / "model.safetensors")
    if state:
        safetensors.torch.save_file(tensors, path / "optimizer" / "state.safetensors")
    else:
        (path / "optimizer").rmdir()
    if kind is not None:
        (path / "job.ballast").write_bytes(job_file(NUMBERS[kind]))
    return path


def built(kind, **options):
    if kind == "SGD":
        options = {"momentum": 0.5, **options}
    parameter = torch.nn.Parameter(torch.ones(4))
    return parameter, getattr(bt, kind)([("p", parameter)], lr=0.125, job="job", **options)


def taken(kind, path, **options):
    parameter, opt = built(kind, **options)
    state, _ = opt._state_of(path)
    got = state.tensors[id(parameter)]
    assert torch.equal(got.arrays["master"], torch.full((4,), 7.0))
    return got


def refusal(kind, path, **options):
    parameter, opt = built(kind, **options)
    with pytest.raises(ballast.BadArgument, match="load_export") as error:
        opt.load_export(path)
    assert opt.round == 0 and opt.job_id == 0 and torch.equal(parameter, torch.ones(4))
    return str(error.value)


@pytest.mark.parametrize("source", NUMBERS)
def test_an_export_of_another_kind_is_refused(fake, tmp_path, source):
    path = write(tmp_path / "export", ARRAYS[source], source)
    for target in NUMBERS:
        if target == source:
            got = taken(target, path)
            assert got.step == 3 and set(got.arrays) == {"master", *ARRAYS[source]}
            continue
        name = "apply_delta" if source == "ApplyDelta" else source
        message = refusal(target, path)
        assert f"is an export of {name}, not of {target}" in message
        assert f"to load the weights alone, move {path}/optimizer away" in message


@pytest.mark.parametrize("source", NUMBERS)
def test_state_without_job_file_is_judged_by_its_arrays(fake, tmp_path, source):
    path = write(tmp_path / "export", ARRAYS[source])
    for target in NUMBERS:
        fits = ARRAYS[source] == ARRAYS[target] or (source, target) == ("ApplyDelta", "SGD")
        if fits:
            taken(target, path)
        else:
            refusal(target, path)


@pytest.mark.parametrize("kind", NUMBERS)
def test_weights_alone_fit_every_kind(fake, tmp_path, kind):
    path = write(tmp_path / "export", (), "LAMB", state=False)
    assert taken(kind, path).step == 0


def test_arrays_that_the_job_lacks_are_refused_with_the_option_that_brings_them(fake, tmp_path):
    path = write(tmp_path / "a", (*ARRAYS["AdamW"], "max_exp_avg_sq"), "AdamW")
    message = refusal("AdamW", path)
    assert "optimizer state of 'p'" in message and "has max_exp_avg_sq, which" in message
    assert "build this optimizer with amsgrad" in message
    assert "max_exp_avg_sq" in taken("AdamW", path, amsgrad=True).arrays
    path = write(tmp_path / "b", ARRAYS["SGD"], "SGD")
    assert "has momentum_buffer" in refusal("SGD", path, momentum=0.0)


def test_files_of_sgd_without_buffers_begin_them(fake, tmp_path):
    path = write(tmp_path / "export", (), "SGD")
    got = taken("SGD", path)
    assert got.step == 0 and got.arrays.keys() == {"master"}
    assert taken("SGD", path, momentum=0.0).step == 3


@pytest.mark.parametrize("cut", range(0, len(job_file(1)), 3))
def test_a_job_file_that_is_cut_is_damaged(tmp_path, cut):
    whole = job_file(6)
    bad = struct.pack("<8sIIQQ", b"BALLSNP\n", 1, 0, cut, 7) + whole[32:]
    for content in (whole[:cut], bad[:cut]):
        (tmp_path / "job.ballast").write_bytes(content)
        if cut >= len(whole) - 4:  # Only the checksum is missing, which `import` looks at.
            continue
        with pytest.raises(ballast.BadArgument, match=r"job.ballast is damaged.*export again"):
            service_kind_of(str(tmp_path))


def test_a_job_file_that_is_none_is_named(tmp_path):
    assert service_kind_of(str(tmp_path)) is None
    (tmp_path / "job.ballast").symlink_to(tmp_path / "gone")
    with pytest.raises(ballast.BadArgument, match="job.ballast is no file, or links to none"):
        service_kind_of(str(tmp_path))
    (tmp_path / "job.ballast").unlink()
    (tmp_path / "job.ballast").write_bytes(job_file(99))
    with pytest.raises(ballast.BadArgument, match="is of optimizer kind 99; this version has 1"):
        service_kind_of(str(tmp_path))
