"""ballastctl: its answers to command lines that it does not understand."""

import subprocess

import pytest


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tune"], "tune takes nvme --path DIR...;"),
        (["tune", "hdd"], 'tune takes nvme --path DIR..., not "hdd"'),
        (["tunes"], "unknown command tunes (did you mean tune?)"),
        (["jobs", "shw"], 'jobs takes list, show NAME, delete NAME, retry NAME, not "shw"'),
        (["jobs", "show"], "jobs show takes NAME; see ballastctl jobs show --help"),
        (["jobs", "list", "one"], 'jobs list takes no "one"'),
        (["jobs", "list", "--force"], "jobs list takes no --force"),
        (["jobs", "delete", "one", "--force=yes"], "--force takes no value"),
        (["snapshot", "create", "job", "one", "--keep", "0"], "--keep takes a number from 1 on"),
        (["snapshot", "fork", "job", "one"], "snapshot fork needs --as NEW"),
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
