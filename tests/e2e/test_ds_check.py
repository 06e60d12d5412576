"""ballastctl ds check: it becomes the Python with the reader, and says where there is none."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

REPO = Path(__file__).resolve().parents[2]
REFUSED = '{"optimizer": {"type": "AdamW"}, "elasticity": {"enabled": true}}'
FINE = '{"optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "train_batch_size": 8}'


@pytest.fixture
def check(ballastd, tmp_path):
    """Runs `ballastctl ds check` in an empty folder, without a variable but those given.

    program: another ballastctl than the checkout's.
    """

    def run(*arguments: str, program: Path | None = None, **variables: str):
        command = [program or ballastd.parent / "ballastctl", "ds", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path,
                              env={"PATH": "/nowhere", **variables}, timeout=60)  # fmt: skip

    return run


@pytest.fixture
def alone(ballastd, tmp_path):
    """A ballastctl outside any checkout or installation."""
    (tmp_path / "far" / "away").mkdir(parents=True)
    return Path(shutil.copy(ballastd.parent / "ballastctl", tmp_path / "far" / "away"))


@pytest.fixture
def bare(tmp_path):
    """A PATH whose python3 has no packages, as where nothing was installed for it."""
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "python3").write_text(
        f'#!/bin/sh\nexec {Path(sys.executable).resolve()} -I -S "$@"\n'
    )
    (folder / "python3").chmod(0o755)
    return folder


@pytest.mark.parametrize(("text", "code"), [(FINE, 0), (REFUSED, 1), ("{", 2)])
def test_its_exit_code_is_the_verdict(check, tmp_path, text, code):
    (tmp_path / "ds.json").write_text(text)
    done = check("check", "ds.json", BALLAST_PYTHON=sys.executable)
    assert done.returncode == code, done.stderr
    assert ("ds.json" in done.stdout) == (code < 2)
    assert ("ds.json" in done.stderr) == (code == 2)


def test_its_options_reach_the_reader(check, tmp_path):
    (tmp_path / "ds.json").write_text(FINE)
    done = check("check", "ds.json", "-o", "json", "--world", "4", BALLAST_PYTHON=sys.executable)
    assert json.loads(done.stdout)["batch"]["micro"] == 2
    same = check("check", "ds.json", "-o", "yaml", "--world", "4", BALLAST_PYTHON=sys.executable)
    assert yaml.safe_load(same.stdout) == json.loads(done.stdout)
    plain = check("check", "ds.json", "-o", "table", BALLAST_PYTHON=sys.executable)
    assert "honoured by service" in plain.stdout
    wrong = check("check", "ds.json", "--wrold", "4", BALLAST_PYTHON=sys.executable)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "usage: ballastctl ds check" in wrong.stderr


def test_python3_of_the_path_is_taken_without_the_variable(check, alone, tmp_path):
    (tmp_path / "ds.json").write_text(FINE)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (programs / "python3").chmod(0o755)
    assert check("check", "ds.json", program=alone, PATH=str(programs)).returncode == 0


def test_it_needs_no_package_in_python_in_a_checkout_and_where_it_is_installed(
    check, bare, ballastd, tmp_path
):
    (tmp_path / "ds.json").write_text(FINE)
    for place in (tmp_path / "usr", tmp_path / "tree" / "build" / "any"):
        (place / "bin").mkdir(parents=True)
        shutil.copy(ballastd.parent / "ballastctl", place / "bin")
    source = tmp_path / "tree" / "client"
    source.mkdir()
    (source / "python").symlink_to(REPO / "client" / "python")
    installed = tmp_path / "usr" / "share" / "ballast" / "python" / "ballast"
    installed.mkdir(parents=True)
    rules = (REPO / "tools" / "CMakeLists.txt").read_text()
    for name in re.findall(r"\$\{package\}/(\w+(?:\.py)?)", rules):
        (installed / name).symlink_to(REPO / "client" / "python" / "ballast" / name)
    for place in (tmp_path / "usr", tmp_path / "tree" / "build" / "any"):
        done = check("check", "ds.json", program=place / "bin" / "ballastctl", PATH=str(bare))
        assert (done.returncode, done.stderr) == (0, ""), place
    # One with the package may be named all the same.
    named = check("check", "ds.json", BALLAST_PYTHON=sys.executable)
    assert named.returncode == 0


def test_a_python_that_cannot_judge_is_named(check, alone, bare):
    none = check("check", "ds.json", program=alone)
    assert (none.returncode, none.stdout) == (4, "")
    assert "python3 cannot be started" in none.stderr
    absent = check("check", "ds.json", BALLAST_PYTHON="/nowhere/python")
    assert absent.returncode == 4
    assert "/nowhere/python cannot be started" in absent.stderr
    without = check("check", "ds.json", program=alone, BALLAST_PYTHON=str(bare / "python3"))
    assert (without.returncode, without.stdout) == (4, "")
    assert "cannot import ballast.ds_config" in without.stderr
    assert "set BALLAST_PYTHON" in without.stderr


def test_a_module_of_the_present_folder_is_not_taken_for_the_package(check, tmp_path):
    (tmp_path / "ds.json").write_text(FINE)
    (tmp_path / "ballast.py").write_text("raise SystemExit(77)")
    assert check("check", "ds.json", BALLAST_PYTHON=sys.executable).returncode == 0


@pytest.mark.parametrize("words", [[], ["chek", "ds.json"]])
def test_a_wrong_word_is_answered_with_the_right_one(check, words):
    done = check(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "ds takes check FILE" in done.stderr


def test_closed_descriptors_are_no_files_of_its_own(check, ballastd, tmp_path):
    (tmp_path / "ds.json").write_text(FINE)
    # Its successor has its descriptors.
    lists = tmp_path / "lists"
    loop = "for n in 0 1 2; do readlink /proc/$$/fd/$n; done"
    lists.write_text(f'#!/bin/sh\nfound=$({loop})\necho "$found" >fds\n')
    lists.chmod(0o755)
    subprocess.run(
        [ballastd.parent / "ballastctl", "ds", "check", "ds.json"], cwd=tmp_path, timeout=60,
        env={"PATH": os.environ["PATH"], "BALLAST_PYTHON": str(lists)},
        preexec_fn=lambda: os.closerange(0, 3),
    )  # fmt: skip
    assert (tmp_path / "fds").read_text() == "/dev/null\n" * 3


def test_its_help_needs_no_python(check):
    for words in (["check", "--help"], ["check", "-h"]):
        done = check(*words)
        assert (done.returncode, done.stderr) == (0, "")
        assert "usage: ballastctl ds check FILE" in done.stdout
