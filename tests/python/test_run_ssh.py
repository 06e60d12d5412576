"""ballast-run --hostfile over a real sshd: it trains, its ends have their codes and names."""

import hashlib
import os
import signal

import pytest

from launching import await_end, forever, wait_for
from real_sshd import Sshd
from serving import built_ballastd

pytestmark = pytest.mark.slow

LOOPBACK = ("--master-addr", "127.0.0.1")
TRAIN = """
import hashlib, os
import torch
import ballast.torch as bt
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
opt = bt.AdamW(model.named_parameters(), lr=1e-2, durability="none")
for step in range(5):
    opt.zero_grad()
    x = torch.full((2, 8), float(step + 1 + int(os.environ["RANK"])))
    model(x).square().mean().backward()
    opt.step()
opt.close()
bits = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
far = "SSH_CONNECTION" in os.environ
print(hashlib.sha256(bits).hexdigest(), "far" if far else "here", os.environ["LOCAL_RANK"])
"""


@pytest.fixture
def sshd(tmp_path):
    folder = tmp_path / "sshd"
    folder.mkdir(mode=0o700)
    with Sshd(folder) as running:
        yield running


@pytest.fixture
def hosts(launcher):
    path = launcher.folder / "hosts"
    path.write_text("localhost slots=1\nnode-b slots=1\n")
    return path


def pids(launcher, child):
    for rank in range(2):
        wait_for(launcher.folder / f"pid-{rank}", child)
    return [int((launcher.folder / f"pid-{rank}").read_text()) for rank in range(2)]


def test_two_hosts_train_to_the_bits_of_one(launcher, hosts, sshd):
    launcher.env["BALLAST_BALLASTD"] = str(built_ballastd())
    script = launcher.script(TRAIN)
    far = launcher.run("--hostfile", hosts, *LOOPBACK, "--ssh", sshd.command, script)
    assert far.returncode == 0, far.stderr
    near = launcher.run("--nproc", 2, script)
    assert near.returncode == 0, near.stderr
    words = [sorted(line.split() for line in done.stdout.splitlines()) for done in (far, near)]
    assert [[w[0], *w[2:]] for w in words[0]] == [["[0]", "here", "0"], ["[1]", "far", "0"]]
    assert [[w[0], *w[2:]] for w in words[1]] == [["[0]", "here", "0"], ["[1]", "here", "1"]]
    bits = {w[1] for word in words for w in word}
    assert len(bits) == 1 and len(bits.pop()) == hashlib.sha256().digest_size * 2


@pytest.mark.parametrize(("code", "counts"), [(7, 7), (255, 1)])
def test_the_exit_code_of_a_trainer_comes_back_through_ssh(launcher, hosts, sshd, code, counts):
    script = launcher.script(
        f"import os, sys; sys.exit({code} if os.environ['RANK'] == '1' else 0)"
    )
    done = launcher.run("--hostfile", hosts, *LOOPBACK, "--ssh", sshd.command, script)
    assert done.returncode == counts, done.stderr
    assert f"trainer 1 on node-b failed; it ended with exit code {counts}" in done.stderr


def test_a_host_that_refuses_connections_is_named(launcher, hosts, sshd):
    ssh = sshd.dead()
    done = launcher.run("--hostfile", hosts, *LOOPBACK, "--ssh", ssh, forever(launcher))
    assert done.returncode == 255
    assert "connect to host 127.0.0.1 port 1: Connection refused" in done.stderr
    said = "trainer 1 on node-b failed; it is lost: ssh cannot reach node-b (exit code 255)"
    assert said in done.stderr


def test_a_host_that_is_lost_while_it_trains_is_named_and_ends_all(launcher, hosts, sshd):
    script = forever(launcher)
    child = launcher.start("--hostfile", hosts, *LOOPBACK, "--ssh", sshd.command, script)
    running = pids(launcher, child)
    (session,) = sshd.sessions()
    os.kill(session, signal.SIGKILL)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 255
    said = "trainer 1 on node-b failed; it is lost: ssh cannot reach node-b (exit code 255)"
    assert said in err
    await_end(running)
    assert (launcher.folder / "end-0").read_text() == str(int(signal.SIGTERM))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_reaches_the_trainer_over_ssh(launcher, hosts, sshd, signum):
    script = forever(launcher)
    child = launcher.start("--hostfile", hosts, *LOOPBACK, "--ssh", sshd.command, script)
    running = pids(launcher, child)
    child.send_signal(signum)
    child.communicate(timeout=60)
    assert child.returncode == 128 + signum
    await_end(running)
    assert (launcher.folder / "end-1").read_text() == str(int(signum))


def test_the_trainer_over_ssh_ends_with_a_killed_launcher(launcher, hosts, sshd):
    script, ssh = forever(launcher), ("--ssh", sshd.command)
    data = launcher.folder / "data"
    child = launcher.start("--hostfile", hosts, *LOOPBACK, *ssh, "--data-dir", data, script)
    running = pids(launcher, child)
    child.kill()
    child.communicate(timeout=60)
    await_end(running + launcher.server_pids())
