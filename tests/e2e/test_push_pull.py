"""examples/push_pull.cc as its users run it: two trainers and a server, and wrong flags."""

from __future__ import annotations

import subprocess

import pytest

from e2e.cluster import HANG_S, fresh_job


@pytest.fixture
def push_pull(ballastd):
    program = ballastd.parent / "push_pull"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    return program


def run(program, *flags: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [program, *map(str, flags)], capture_output=True, text=True, timeout=HANG_S
    )


def test_two_trainers_fit_the_target(push_pull, start_cluster):
    cluster = start_cluster(2)
    flags = ["--endpoint", cluster.endpoints[0], "--job", fresh_job(), "--world", "2"]
    command = [push_pull, *flags, "--steps", "100", "--slot", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        first = run(push_pull, *flags, "--steps", "100", "--slot", "0")
        out, _ = other.communicate(timeout=HANG_S)
    assert (first.returncode, first.stderr, other.returncode) == (0, "", 0)
    lines = first.stdout.splitlines()
    assert len(lines) == 10 and out == first.stdout  # equal weights on both
    losses = [float(line.split()[3]) for line in lines]
    assert losses[0] > 100 * losses[-1]


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--slot", "abc"], '--slot takes a whole number, not "abc"'),
        (["--world", ""], '--world takes a whole number, not ""'),
        (["--world", "99999999999"], "--world takes a whole number"),
        (["--steps", "-1"], '--steps takes a whole number, not "-1"'),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--steps"], '--steps takes a whole number, not ""'),
        (["--stepz", "1"], "unknown argument --stepz"),
    ],
)
def test_wrong_flags_are_named(push_pull, flags, message):
    done = run(push_pull, "--endpoint", "127.0.0.1:1", *flags)
    assert done.returncode == 2 and done.stderr.startswith(message) and "usage: " in done.stderr


@pytest.mark.parametrize("endpoint", ["foo", "host:", "host:99999"])
def test_an_endpoint_without_a_good_port_is_refused_at_once(push_pull, endpoint):
    done = run(push_pull, "--endpoint", endpoint)
    assert done.returncode == 1
    assert done.stderr.startswith("attach: INVALID_ARGUMENT: endpoints: expected host:port")
    assert f'got "{endpoint}"' in done.stderr
    assert done.stderr.endswith(" [BAD_ARGUMENT]\n")
    assert done.stderr.strip().isprintable()  # one line, and no bytes of the typed detail
