"""ballastctl ds check: it becomes the Python that has the reader, and says where there is none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

REFUSED = '{"optimizer": {"type": "AdamW"}, "elasticity": {"enabled": true}}'
FINE = '{"optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "train_batch_size": 8}'


@pytest.fixture
def check(ballastd, tmp_path):
    """Runs `ballastctl ds check` in an empty folder, without a variable but those given."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
        command = [ballastd.parent / "ballastctl", "ds", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path,
                              env={"PATH": "/nowhere", **variables}, timeout=60)  # fmt: skip

    return run


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


def test_python3_of_the_path_is_taken_without_the_variable(check, tmp_path):
    (tmp_path / "ds.json").write_text(FINE)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (programs / "python3").chmod(0o755)
    assert check("check", "ds.json", PATH=str(programs)).returncode == 0


def test_a_python_that_cannot_judge_is_named(check, tmp_path):
    none = check("check", "ds.json")
    assert (none.returncode, none.stdout) == (4, "")
    assert "python3 cannot be started" in none.stderr
    absent = check("check", "ds.json", BALLAST_PYTHON="/nowhere/python")
    assert absent.returncode == 4
    assert "/nowhere/python cannot be started" in absent.stderr
    bare = tmp_path / "python"
    # -I -S: without the folder of packages, as an interpreter that nothing was installed for.
    bare.write_text(f'#!/bin/sh\nexec {Path(sys.executable).resolve()} -I -S "$@"\n')
    bare.chmod(0o755)
    alone = check("check", "ds.json", BALLAST_PYTHON=str(bare))
    assert (alone.returncode, alone.stdout) == (4, "")
    assert "cannot import ballast.ds_config" in alone.stderr
    assert "set BALLAST_PYTHON" in alone.stderr


def test_a_module_of_the_present_folder_is_not_taken_for_the_package(check, tmp_path):
    (tmp_path / "ds.json").write_text(FINE)
    (tmp_path / "ballast.py").write_text("raise SystemExit(77)")
    assert check("check", "ds.json", BALLAST_PYTHON=sys.executable).returncode == 0


@pytest.mark.parametrize("words", [[], ["chek", "ds.json"]])
def test_a_wrong_word_is_answered_with_the_right_one(check, words):
    done = check(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "ds takes check FILE" in done.stderr


def test_its_help_needs_no_python(check):
    for words in (["check", "--help"], ["check", "-h"]):
        done = check(*words)
        assert (done.returncode, done.stderr) == (0, "")
        assert "usage: ballastctl ds check FILE" in done.stdout
