"""ballast-run --hostfile over a stand-in for ssh: seats, environment, dead hosts, how it ends."""

import errno
import fcntl
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from ballast.launcher import far_child, hostfile, placement
from ballast.launcher.command_line import parser
from ballast.launcher.servers import UsageError
from launching import await_end, forever, wait_for

LOOPBACK = ("--master-addr", "127.0.0.1")


@pytest.fixture
def hosts(launcher):
    """Writes a hostfile; the launch finds the stand-in as `ssh`."""
    programs = launcher.folder / "programs"
    programs.mkdir()
    (programs / "ssh").write_text(
        f'#!/bin/sh\nexec {sys.executable} {Path(__file__).parent / "fake_ssh.py"} "$@"\n'
    )
    (programs / "ssh").chmod(0o755)
    launcher.env["PATH"] = f"{programs}:{launcher.env['PATH']}"
    launcher.env["FAKE_SSH_TRACE"] = str(launcher.folder / "ssh.trace")

    def write(text):
        path = launcher.folder / "hosts"
        path.write_text(text)
        return path

    return write


def test_trainers_sit_on_their_hosts(launcher, hosts):
    script = launcher.script(
        """
        import json, os, sys
        keys = ("RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT "
                "BALLAST_ENDPOINTS BALLAST_JOB BALLAST_DS_CONFIG").split()
        found = {k: os.environ.get(k) for k in keys}
        found["host"] = os.environ.get("FAKE_SSH_HOST")
        found["secret"] = os.environ.get("SECRET")
        found["cores"] = os.environ["OMP_NUM_THREADS"]
        print(json.dumps({**found, "cwd": os.getcwd(), "argv": sys.argv[1:]}))
        """
    )
    launcher.env |= {"SECRET": "x", "BALLAST_DS_CONFIG": "/c"}
    file = hosts("# the head\nlocalhost slots=1\n\n  user@node-b   slots=2  # two sockets\n")
    done = launcher.run("--hostfile", file, *LOOPBACK, "--servers", 2, script, "--lr", "a b'c")
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert [line[:4] for line in lines] == ["[0] ", "[1] ", "[2] "]
    found = [json.loads(line[4:]) for line in lines]
    for rank, one in enumerate(found):
        assert (one["RANK"], one["WORLD_SIZE"]) == (str(rank), "3")
        assert (one["MASTER_ADDR"], one["argv"]) == ("127.0.0.1", ["--lr", "a b'c"])
        assert (one["cwd"], one["BALLAST_DS_CONFIG"]) == (os.getcwd(), "/c")
    assert [one["host"] for one in found] == [None, "user@node-b", "user@node-b"]
    assert [one["LOCAL_RANK"] for one in found] == ["0", "0", "1"]
    assert [one["LOCAL_WORLD_SIZE"] for one in found] == ["1", "2", "2"]
    assert [one["secret"] for one in found] == ["x", None, None]
    cores = len(os.sched_getaffinity(0))
    assert found[1]["cores"] == str(max(1, cores // 2))
    for key in ("BALLAST_ENDPOINTS", "BALLAST_JOB", "MASTER_PORT"):
        assert len({one[key] for one in found}) == 1
    calls = Path(launcher.env["FAKE_SSH_TRACE"]).read_text().splitlines()
    assert len(calls) == 2 and all("BatchMode=yes" in call for call in calls)
    assert sum(event.startswith("start") for event in launcher.events()) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node-a slots=1\nnode-b slots=2\nnode-a slots=3\n",
         "hosts:3: node-a stands in line 1 already"),
        ("node-a slots=1\nnode-b\n", "hosts:2: 'node-b' is no host; write \"name slots=N\""),
        ("node-a slots=many\n", "hosts:1: 'node-a slots=many' is no host"),
        ("node-a slots=0\n", "hosts:1: slots=0 must be in 1..1024"),
        ("-oProxyCommand=touch slots=1\n", "hosts:1: '-oProxyCommand=touch slots=1' is no host"),
        ("node-a slots=1; reboot\n", "hosts:1: "),
        ("# nothing\n\n", "hosts: has no host"),
        ("localhost slots=1024\nnode-b slots=1\n", "the hostfile has 1025 slots"),
        ("node-b.invalid slots=1\n", "node-b.invalid, is not this machine"),
    ],
)  # fmt: skip
def test_a_hostfile_that_cannot_be_used_is_named_with_its_line(launcher, hosts, text, said):
    done = launcher.run("--hostfile", hosts(text), launcher.script("print('ran')"))
    assert (done.returncode, done.stdout, launcher.events()) == (2, "", [])
    assert said in done.stderr
    assert not Path(launcher.env["FAKE_SSH_TRACE"]).exists()


def test_options_that_do_not_fit_are_refused(launcher, hosts):
    script = launcher.script("print('ran')")
    file = hosts("localhost slots=2\n")
    for arguments, said in (
        (["--hostfile", launcher.folder / "none"], "none: cannot be read"),
        (["--hostfile", file, "--nproc", 3], "--nproc 3: the hostfile has 2 slots"),
        (["--master-port", 7], "--master-port is for --hostfile"),
        (["--master-addr", "a"], "--master-addr is for --hostfile"),
        (["--hostfile", file, "--ssh", "'"], "No closing quotation"),
        (["--hostfile", file, "--ssh", ""], "must name a program"),
    ):
        done = launcher.run(*arguments, script)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert said in done.stderr
    launcher.env["BALLAST_ENDPOINTS"] = "10.0.0.1:7000"
    done = launcher.run("--hostfile", file, "--servers", 2, script)
    assert done.returncode == 2 and "BALLAST_ENDPOINTS names running servers" in done.stderr
    launcher.env["BALLAST_ENDPOINTS"] = "10.0.0.1"
    done = launcher.run("--hostfile", file, script)
    assert done.returncode == 2 and "'10.0.0.1' is not host:port" in done.stderr


def test_running_servers_are_taken_without_a_hostfile_too(launcher):
    launcher.env["BALLAST_ENDPOINTS"] = "10.0.0.1:7000,10.0.0.2:7000"
    launcher.env["BALLAST_BALLASTD"] = "/nowhere"
    script = launcher.script("import os; print(os.environ['BALLAST_ENDPOINTS'])")
    done = launcher.run("--quiet", script)
    assert (done.returncode, done.stdout) == (0, "10.0.0.1:7000,10.0.0.2:7000\n"), done.stderr
    done = launcher.run("--servers", 2, script)
    assert done.returncode == 2 and "BALLAST_ENDPOINTS names running servers" in done.stderr


def test_running_servers_are_taken_and_any_host_may_be_the_first(launcher, hosts):
    launcher.env["BALLAST_ENDPOINTS"] = "10.0.0.1:7000,10.0.0.2:7000"
    launcher.env["BALLAST_BALLASTD"] = "/nowhere"
    show = "MASTER_ADDR MASTER_PORT BALLAST_ENDPOINTS FAKE_SSH_HOST".split()
    script = launcher.script(f"import os; print(*map(os.environ.get, {show}))")
    file = hosts("node-a.invalid slots=1\nnode-b.invalid slots=4\n")
    done = launcher.run("--hostfile", file, "--nproc", 2, "--quiet", script)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] node-a.invalid 29500 10.0.0.1:7000,10.0.0.2:7000 node-{name}.invalid"
        for rank, name in enumerate("ab")
    ]
    assert launcher.events() == []


def pids(launcher, child, ranks):
    for rank in ranks:
        wait_for(launcher.folder / f"pid-{rank}", child)
    return [int((launcher.folder / f"pid-{rank}").read_text()) for rank in ranks]


def test_a_trainer_that_fails_on_a_host_ends_the_others(launcher, hosts):
    wait = f"while not all(os.path.exists(os.path.join({str(launcher.folder)!r}, f'pid-{{r}}')) " \
           "for r in (0, 2)): time.sleep(0.02)"  # fmt: skip
    more = f"if rank == '1':\n            {wait}\n            sys.exit(7)"
    script = forever(launcher, more)
    file = hosts("localhost slots=1\nnode-b slots=1\nnode-c slots=1\n")
    done = launcher.run("--hostfile", file, *LOOPBACK, script)
    assert done.returncode == 7
    assert "trainer 1 on node-b failed; it ended with exit code 7" in done.stderr
    for rank in (0, 2):
        assert (launcher.folder / f"end-{rank}").read_text() == str(int(signal.SIGTERM))


@pytest.mark.parametrize("code", ["255", "256 - 1"])
def test_exit_code_255_of_a_script_is_not_taken_for_a_lost_host(launcher, hosts, code):
    file = hosts("localhost slots=1\nnode-b slots=1\n")
    script = launcher.script(f"import os; os._exit({code} if os.environ['RANK'] == '1' else 0)")
    done = launcher.run("--hostfile", file, *LOOPBACK, script)
    assert done.returncode == 1
    assert "trainer 1 on node-b failed; it ended with exit code 1" in done.stderr


def test_a_dead_host_is_named(launcher, hosts):
    script = forever(launcher)
    file = hosts("localhost slots=1\ndead-b slots=1\n")
    done = launcher.run("--hostfile", file, *LOOPBACK, script)
    assert done.returncode == 255
    assert "[1] ssh: connect to host dead-b port 22: No route to host" in done.stderr
    said = "trainer 1 on dead-b failed; it is lost: ssh cannot reach dead-b (exit code 255)"
    assert said in done.stderr


def test_a_host_without_the_directory_or_python_says_so(launcher, hosts):
    file = hosts("localhost slots=1\nnode-b slots=1\n")
    script = launcher.script("")
    python = launcher.folder / "python"  # there it runs the far end, and no trainer
    python.write_text(f'#!/bin/sh\ncase "$*" in *far_end*) rm "$0"; exec {sys.executable} "$@";; '
                      "esac\n")  # fmt: skip
    python.chmod(0o755)
    launcher.env["BALLAST_PYTHON"] = str(python)
    done = launcher.run("--hostfile", file, *LOOPBACK, script)
    assert done.returncode == 1
    assert f"{python}: No such file or directory; every host needs the same" in done.stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_reaches_trainers_on_hosts(launcher, hosts, signum):
    file = hosts("localhost slots=1\nnode-b slots=2\n")
    child = launcher.start("--hostfile", file, *LOOPBACK, forever(launcher))
    running = pids(launcher, child, range(3))
    child.send_signal(signum)
    child.communicate(timeout=60)
    assert child.returncode == 128 + signum
    await_end(running)
    for rank in range(3):
        assert (launcher.folder / f"end-{rank}").read_text() == str(int(signum))


def test_trainers_on_hosts_end_with_a_killed_launcher(launcher, hosts):
    file = hosts("localhost slots=1\nnode-b slots=1\n")
    data = launcher.folder / "data"
    child = launcher.start(
        "--hostfile", file, *LOOPBACK, "--data-dir", data, forever(launcher)
    )
    running = pids(launcher, child, range(2))
    told = json.loads((data / "run" / "trainer-1.json").read_text())
    assert (told["rank"], told["host"]) == (1, "node-b")
    child.kill()
    child.communicate(timeout=60)
    await_end(running + launcher.server_pids())


def test_a_trainer_that_ignores_signals_is_killed_on_its_host(launcher, hosts):
    deaf = "for s in (2, 15): signal.signal(s, signal.SIG_IGN)"
    script = forever(launcher, f"{deaf}\n        signal.signal = lambda *_: None")
    file = hosts("localhost slots=1\nnode-b slots=1\n")
    child = launcher.start("--hostfile", file, *LOOPBACK, script)
    running = pids(launcher, child, range(2))
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGTERM)  # the second one: now
    child.communicate(timeout=60)
    assert child.returncode in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    await_end(running)


def test_a_trainer_on_a_host_is_started_again(launcher, hosts):
    script = launcher.script(
        f"""
        import os, sys
        seen = os.path.join({str(launcher.folder)!r}, "seen")
        if os.environ["RANK"] == "1" and not os.path.exists(seen):
            open(seen, "w").close()
            sys.exit(7)
        print(os.environ["BALLAST_RESUME"])
        """
    )
    file = hosts("localhost slots=1\nnode-b slots=1\n")
    done = launcher.run("--hostfile", file, *LOOPBACK, "--max-restarts", 1, script)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] auto", "[1] auto"]
    said = "trainer 1 on node-b ended with exit code 7; starting it again in its seat"
    assert said in done.stderr


@pytest.mark.parametrize("allowed", [True, False])
def test_a_pipe_to_ssh_grows_for_long_orders_only_and_only_where_it_may(
    tmp_path, monkeypatch, allowed
):
    """The kernel refuses a user's pipes more room at about 57 far trainers."""
    real, asked = fcntl.fcntl, []

    def limited(file, command, *more):
        if command == fcntl.F_SETPIPE_SZ:
            asked.append(*more)
            if not allowed:
                raise PermissionError(errno.EPERM, "Operation not permitted")
        return real(file, command, *more)

    monkeypatch.setattr(far_child.fcntl, "fcntl", limited)
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\nexec cat > {tmp_path}/order\n")
    ssh.chmod(0o755)
    for words, grows in (("x", 0), ("x" * 200_000, 1)):
        asked.clear()
        child = far_child.FarChild([str(ssh)], "node-b", ["python", words], {"RANK": "1"})
        child.stdin.close()
        child.wait()
        assert len(asked) == grows
        order = json.loads((tmp_path / "order").read_text())
        assert (order["command"], order["env"]) == (["python", words], {"RANK": "1"})


def options(file, *more):
    return parser().parse_args(["--hostfile", str(file), *more, "train.py"])


def test_servers_leave_the_loopback_only_when_the_user_says_so(tmp_path, monkeypatch):
    file = tmp_path / "hosts"
    file.write_text("head slots=1\nnode-b slots=1\n")
    monkeypatch.setattr(hostfile, "is_here", lambda name: name == "head")
    monkeypatch.setattr(hostfile, "_addresses", lambda name: [(2, "127.0.1.1"), (2, "10.0.0.7")])
    with pytest.raises(UsageError, match="listen on 10.0.0.7.*LISTEN_INSECURE_NETWORK=true"):
        placement.placed(options(file), {})
    allowed = {"BALLAST_LISTEN_INSECURE_NETWORK": "true"}
    found = placement.placed(options(file), allowed)
    assert (found.address, found.hosts) == ("10.0.0.7", {1: "node-b"})
    other = options(file, "--master-addr", "10.9.0.1")
    assert placement.placed(other, allowed).address == "10.9.0.1"
    with pytest.raises(UsageError, match="listen on 10.9.0.1"):
        placement.placed(other, {})
    monkeypatch.setattr(hostfile, "_addresses", lambda name: [(2, "127.0.1.1")])
    with pytest.raises(UsageError, match="head, the first host, has no address.*--master-addr"):
        placement.placed(options(file), allowed)
    file.write_text("head slots=2\n")  # all of them here: the loopback does
    assert placement.placed(options(file), {}).address == "127.0.0.1"


def test_this_machine_is_known_by_its_names():
    assert hostfile.is_here("localhost") and hostfile.is_here("127.0.0.1")
    assert not hostfile.is_here("192.0.2.1")  # of documentation: no machine has it
    assert not hostfile.is_here("node-b.invalid")
