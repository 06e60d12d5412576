"""What ballast-run runs: a module, a script on standard input, a program; on which slots; and with
descriptors 0 to 2 closed."""

import os
import subprocess
import sys

import pytest

from ballast import _standard_descriptors
from ballast.launcher import hostfile, placement, program, selection
from ballast.launcher.command_line import parser
from ballast.launcher.servers import UsageError

FOUND = """
import os, sys
fds = [os.path.realpath(f"/proc/self/fd/{n}") for n in range(3)]
with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
    print(sys.argv[0], fds, os.environ.get("CUDA_VISIBLE_DEVICES"), __package__, file=file)
"""


def closed(*descriptors):
    """For preexec_fn: these descriptors are closed, as under some supervisors."""
    return lambda: [os.close(n) for n in descriptors]


def test_a_module_runs_with_all_descriptors_closed(launcher):
    package = launcher.folder / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(f"from . import __name__ as own\n{FOUND}")
    command = [sys.executable, *launcher.program, "--nproc", "2", "-m", "pkg.train"]
    done = subprocess.run(
        [*command, str(launcher.folder)], env=launcher.env, cwd=launcher.folder, timeout=60,
        preexec_fn=closed(0, 1, 2),
    )  # fmt: skip
    assert done.returncode == 0
    for rank in "01":
        found = (launcher.folder / rank).read_text()
        assert found.endswith("None pkg\n") and "pkg/train.py" in found
        assert "'/dev/null'" in found and "pipe:" in found


def test_a_script_on_standard_input_runs_in_every_chosen_slot(launcher):
    command = [sys.executable, *launcher.program, "--quiet", "--include", "localhost:1,3", "-"]
    done = subprocess.run(
        [*command, str(launcher.folder)], env=launcher.env, input=FOUND, text=True, timeout=60,
        stdout=subprocess.PIPE, preexec_fn=closed(2),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
    for rank in "01":
        assert (launcher.folder / rank).read_text().split()[0] == "-"
        assert "1,3" in (launcher.folder / rank).read_text()


def test_a_program_runs_without_python(launcher):
    done = launcher.run("--quiet", "--no_python", "sh", "-c", "echo $RANK of $WORLD_SIZE")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 of 1\n", "")


def test_what_cannot_run_is_named(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("1 +")
    assert "SyntaxError" in program.chosen(str(script), [], False, True).why_hopeless()
    assert program.chosen("pkg.train", ["-x"], True, True).command("py") == [
        "py", "-u", "-m", "pkg.train", "-x",
    ]  # fmt: skip
    for arguments, said in (
        (("none.py", [], False, True), "no script none.py; name a Python file, or a module with"),
        (("/no/program", [], False, False), "no program /no/program"),
        ((sys.executable, [], False, True), "is no Python script; --no-python runs it"),
        (("pkg", [], True, False), "leave one of the two out"),
    ):
        with pytest.raises(UsageError, match=said):
            program.chosen(*arguments)


HOSTS = [hostfile.Host("node-a", 4), hostfile.Host("me@node-b", 2)]


@pytest.mark.parametrize(
    "options, expected",
    [
        ([], [("node-a", 4, None), ("me@node-b", 2, None)]),
        (["--include", "node-b@node-a:3,1"], [("node-a", 2, (1, 3)), ("me@node-b", 2, None)]),
        (["--include", "node-a:0"], [("node-a", 1, (0,))]),
        (["--exclude", "node-a:0,2"], [("node-a", 2, (1, 3)), ("me@node-b", 2, None)]),
        (["--exclude", "node-a"], [("me@node-b", 2, None)]),
        (["--exclude", "node-b:0,1"], [("node-a", 4, None)]),
        (["--num_nodes", "1"], [("node-a", 4, None)]),
        (["--num_gpus", "2"], [("node-a", 2, None), ("me@node-b", 2, None)]),
        (["--num_nodes", "1", "--num_gpus", "3"], [("node-a", 3, None)]),
    ],
)
def test_hosts_and_slots_are_chosen_as_deepspeed_does(options, expected):
    found = selection.selected(HOSTS, parser().parse_args([*options, "x"]))
    assert [(host.name, host.slots, host.devices) for host in found] == expected


@pytest.mark.parametrize(
    "options, said",
    [
        (["--include", "node-c"], "there is no host node-c; there are node-a, me@node-b"),
        (["--include", "node-a:4"], r"node-a has slots 0\.\.3, and no 4"),
        (["--include", "node-a:x"], "'node-a:x' is no host; write NAME or NAME:SLOT"),
        (["--include", "node-a@node-a:1"], "names node-a twice"),
        (["--exclude", "node-a@node-b"], "leaves no slot"),
        (["--include", "node-a", "--exclude", "node-b"], "--include and --exclude both say"),
        (["--include", "node-a", "--num_gpus", "1"], "--include and --num-gpus both say"),
        (["--num_gpus", "1", "--nproc", "1"], "--num-gpus counts trainers of each host"),
        (["--num_nodes", "3"], "--num-nodes 3: there are 2 hosts"),
        (["--num_gpus", "3"], "--num-gpus 3: me@node-b has 2 slots"),
    ],
)
def test_a_choice_that_cannot_be_met_is_named(options, said):
    with pytest.raises(UsageError, match=said):
        selection.selected(HOSTS, parser().parse_args([*options, "x"]))


def test_without_a_hostfile_the_choice_is_among_this_machines_slots():
    for options, seats, devices in (
        (["--num_gpus", "2", "--num_nodes", "1"], 2, None),
        (["--include", "localhost:0,2"], 2, (0, 2)),
        (["--include", "localhost"], 1, None),
        (["--nproc", "3"], 3, None),
    ):
        found = placement.placed(parser().parse_args([*options, "x"]), {}).seats
        assert [(seat.local_world, seat.devices) for seat in found] == [(seats, devices)] * seats


def test_closed_descriptors_are_held(monkeypatch):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        for number in (0, 2):
            os.close(number)
        _standard_descriptors.hold()
        held = [os.path.realpath(f"/proc/self/fd/{number}") for number in range(3)]
        os.write(write, repr((held[0], held[2], os.get_inheritable(2))).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 200).decode() == repr(("/dev/null", "/dev/null", True))
