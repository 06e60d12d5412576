"""ballast-run --ds-config and --mixed-precision: the trainers' view, and earlier refusals."""

import json
import re

import pytest

from ballast.ds_config import launched
from ballast.errors import BadArgument

SHOW = """
    import json, os
    names = ("BALLAST_DS_CONFIG", "BALLAST_MIXED_PRECISION", "ACCELERATE_MIXED_PRECISION")
    print(json.dumps({k: os.environ[k] for k in names if k in os.environ}))
"""
ADAMW = {"type": "AdamW", "params": {"lr": "auto"}}


@pytest.fixture
def page(launcher):
    def write(**values):
        path = launcher.folder / "ds.json"
        path.write_text(json.dumps({"optimizer": ADAMW, **values}))
        return path

    return write


def seen(launcher, *arguments):
    done = launcher.run("--quiet", *arguments, launcher.script(SHOW))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_trainers_see_the_file_and_the_precision(launcher, page):
    path = page(bf16={"enabled": "auto"})
    both = seen(launcher, "--ds-config", path, "--mixed-precision", "bf16")
    assert both == {
        "BALLAST_DS_CONFIG": str(path),
        "BALLAST_MIXED_PRECISION": "bf16",
        "ACCELERATE_MIXED_PRECISION": "bf16",
    }
    assert seen(launcher, "--ds-config", path) == {"BALLAST_DS_CONFIG": str(path)}
    assert seen(launcher) == {}
    fp16 = seen(launcher, "--mixed-precision", "fp16")  # the service scales, not Accelerate
    assert fp16 == {"BALLAST_MIXED_PRECISION": "fp16", "ACCELERATE_MIXED_PRECISION": "no"}


@pytest.mark.parametrize(
    ("values", "arguments", "said"),
    [
        ({"elasticity": {"enabled": True}, "prescale_gradientz": 1}, [],
         r"2 keys of .*ds.json are refused:(.|\n)*elasticity(.|\n)*prescale_gradients"),
        ({"bf16": {"enabled": True}}, ["--mixed-precision", "fp16"],
         "bf16.enabled of the ds_config is true, and --mixed-precision says fp16"),
        ({"bf16": {"enabled": False}}, ["--mixed-precision", "bf16"], "bf16.enabled .* is false"),
        ({"fp16": {"enabled": True}}, ["--mixed-precision", "no"], "fp16.enabled .* is true"),
        ({"train_batch_size": 3}, ["--nproc", 2], "train_batch_size: .*3"),
    ],
)  # fmt: skip
def test_what_no_trainer_could_do_is_refused_before_a_server_starts(
    launcher, page, values, arguments, said
):
    path = page(**values)
    done = launcher.run("--ds-config", path, *arguments, launcher.script("print('ran')"))
    assert (done.returncode, done.stdout, launcher.events()) == (2, "", [])
    assert re.search(said, done.stderr), done.stderr


def test_a_file_that_cannot_be_read_is_named(launcher):
    script = launcher.script("print('ran')")
    done = launcher.run("--ds-config", launcher.folder / "none.json", script)
    assert (done.returncode, done.stdout) == (2, "")
    assert "none.json: cannot be read" in done.stderr
    done = launcher.run("--mixed-precision", "fp8", script)
    assert done.returncode == 2 and "fp8" in done.stderr


def test_a_launch_for_deepspeed_gets_the_command_to_use(launcher):
    launcher.env["ACCELERATE_USE_DEEPSPEED"] = "true"
    done = launcher.run(launcher.script("print('ran')"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "ACCELERATE_USE_DEEPSPEED is set" in done.stderr
    assert "ballast-run --ds-config ds_config.json --mixed-precision bf16" in done.stderr


def test_the_precision_fills_what_is_open(monkeypatch):
    assert launched.precise({"a": 1}) == {"a": 1}
    auto = {"bf16": {"enabled": "auto", "x": 1}, "fp16": {"enabled": "auto"}}
    assert launched.precise(auto, "bf16") == {
        "bf16": {"enabled": True, "x": 1},
        "fp16": {"enabled": False},
    }
    assert auto["bf16"]["enabled"] == "auto"
    assert launched.precise({}, "fp16") == {"fp16": {"enabled": True}}
    assert launched.precise({"fp16": {"loss_scale": 8}}, "fp16")["fp16"] == {
        "loss_scale": 8,
        "enabled": True,
    }
    assert launched.precise({"bfloat16": {}}, "bf16") == {"bfloat16": {"enabled": True}}
    assert launched.precise({"bf16": {"enabled": True}}, "bf16") == {"bf16": {"enabled": True}}
    monkeypatch.setenv("BALLAST_MIXED_PRECISION", "no")
    assert launched.precise({"fp16": {"enabled": "auto"}}) == {"fp16": {"enabled": False}}
    monkeypatch.setenv("BALLAST_MIXED_PRECISION", "half")
    with pytest.raises(BadArgument, match="BALLAST_MIXED_PRECISION='half'.*no, fp16, bf16"):
        launched.precise({})


def test_the_scripts_own_file_may_be_the_same_and_no_other(page, monkeypatch):
    path = page()
    assert launched.chosen("mine.json", "f()") == "mine.json"
    assert launched.chosen(None, "f()") is None
    monkeypatch.setenv("BALLAST_DS_CONFIG", str(path))
    assert launched.chosen(None, "f()") == str(path)
    same = {"optimizer": ADAMW}
    assert launched.chosen(same, "f()") is same
    with pytest.raises(BadArgument, match=r"f\(\) got a dict.*BALLAST_DS_CONFIG.*ds.json"):
        launched.chosen({"optimizer": ADAMW, "steps_per_print": 3}, "f()")
