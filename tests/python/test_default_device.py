"""torch.set_default_device() in a script moves no tensor of the package, and no bit."""

import contextlib
import subprocess
import sys

import pytest
import torch
from torch import nn

import ballast.torch as bt
from ballast import backend
from ballast.torch import files, load
from ballast.torch.manifest import Manifest
from ballast.torch.naming import Naming
from serving import REPO

CPU = {"device": "cpu"}
ARRAYS = ("master", "exp_avg", "exp_avg_sq")


@contextlib.contextmanager
def default_device(name):
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator("cpu").manual_seed(0), **CPU)


def stepped_with_a_strided_gradient():
    p = nn.Parameter(torch.ones(4, 6, **CPU))
    opt = bt.AdamW([("p", p)], lr=0.1)
    p.grad = randn(6, 4).t()
    opt.step()
    assert not torch.equal(p, torch.ones(4, 6, **CPU))
    return opt


def joined_with_interleaved_parameters():
    both = randn(4, 6)
    named = [("left", nn.Parameter(both[:, :3])), ("right", nn.Parameter(both[:, 3:]))]
    opt = bt.AdamW(named, lr=0.1)
    for _, p in named:
        p.grad = torch.ones(4, 3, **CPU)
    opt.step()
    return opt


def loaded(dtype):
    """From a source without masters, and without anything of one parameter."""
    named = [(name, nn.Parameter(randn(5).to(dtype))) for name in ("known", "new")]
    opt = bt.AdamW(named)
    state = {"step": torch.tensor(2.0, **CPU), "exp_avg": randn(5), "exp_avg_sq": randn(5).abs()}
    opt.load_export({"state": {0: state}, "param_groups": [{"params": [0, 1]}]})
    return opt


SCENES = {
    "strided": stepped_with_a_strided_gradient,
    "interleaved": joined_with_interleaved_parameters,
    "loaded fp32": lambda: loaded(torch.float32),
    "loaded bf16": lambda: loaded(torch.bfloat16),
}


@pytest.mark.parametrize("scene", SCENES)
def test_a_default_device_changes_no_bit_and_exports_are_on_the_cpu(fake, scene):
    expected = SCENES[scene]().export_state()["state"]
    with default_device("meta"):
        opt = SCENES[scene]()
        state = opt.export_state()["state"]
    assert state.keys() == expected.keys()
    for i, tensors in expected.items():
        for key in (*ARRAYS, "step"):
            assert state[i][key].device.type == "cpu", key
            assert torch.equal(state[i][key], tensors[key]), (i, key)
    for p in opt.param_groups[0]["params"]:
        assert p.device.type == "cpu"
    assert opt.param_groups[0]["params"][0].detach().equal(
        expected[0]["master"].to(opt.param_groups[0]["params"][0].dtype)
    )


def test_a_default_device_set_after_attach_changes_no_step(fake):
    weights = []
    for device in (None, "meta"):
        p = nn.Parameter(torch.ones(4, 6))
        opt = bt.AdamW([("p", p)], lr=0.1)
        opt.attach()
        p.grad = randn(6, 4).t()
        with default_device(device):
            opt.step()
        weights.append(p.detach().clone())
    assert torch.equal(*weights) and not torch.equal(weights[0], torch.ones(4, 6))


def test_files_are_read_to_the_cpu(tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    try:
        backend.core()
    except ImportError as error:
        pytest.skip(f"the extension is not built: {error}")
    (tmp_path / "optimizer").mkdir()
    save_file({"p": randn(5).bfloat16()}, tmp_path / "model.safetensors")
    kept = {f"{key}.p": randn(5) * i for i, key in enumerate(ARRAYS, 1)}
    kept["step.p"] = torch.tensor(7)
    save_file(kept, tmp_path / "optimizer" / "state.safetensors")
    groups = [{"params": [nn.Parameter(torch.zeros(5))], "param_names": ["p"]}]
    entries = Manifest().pending(groups, Naming())
    with default_device("meta"):
        options = {"amsgrad": 0.0, "maximize": 0.0}
        into = load.Receiver(groups, entries, Naming(), bt.AdamW._kind, options)
        read = files.state_of_files(str(tmp_path), into)
    mine = read.of(entries[0])
    assert mine.step == 7
    for key in ARRAYS:
        assert torch.equal(mine.arrays[key], kept[f"{key}.p"])


def test_the_package_may_be_imported_under_a_default_device():
    script = """
import torch
torch.set_default_device("meta")
from ballast.torch import buffers
assert buffers._EMPTY.device.type == "cpu" and buffers._EMPTY.data_ptr()
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=REPO / "client" / "python",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
