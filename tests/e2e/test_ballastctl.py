"""ballastctl: what it says to a command line that it does not understand."""

import subprocess

import pytest


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tune"], 'tune measures "nvme" only: ballastctl tune nvme'),
        (["tune", "hdd"], 'tune measures "nvme" only, not "hdd": ballastctl tune nvme'),
        (["tunes"], "unknown command tunes"),
        (["export", "job", "--name", ""], "--name needs a value"),
        (["import", "files", "--as="], "--as needs a value"),
        (["jobs", "list"], "no server to ask; give --endpoint"),
    ],
)
def test_a_wrong_command_line_is_answered_with_what_is_right(ballastd, arguments, said):
    done = subprocess.run([ballastd.parent / "ballastctl", *arguments], capture_output=True,
                          text=True, check=False, env={"PATH": "/nowhere"}, timeout=60)  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
