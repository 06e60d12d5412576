"""collective="nccl" where NCCL is missing or too old, and a dropped communicator.

In processes of their own: a loaded library stays.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ballast.torch import nccl

from serving import built_ballastd

TESTS = Path(__file__).resolve().parents[1]
ENDS_S = 120  # only a hang takes so long

REFUSED = """
import ctypes, json, sys
import ballast, torch
import ballast.torch as bt
from ballast import backend
from fake_core import FakeCore
from training import model

core = FakeCore()
backend.use(core)
said = []
for library in (None, sys.argv[1]):
    if library is not None:
        ctypes.CDLL(library)  # as torch does
    ours = model()
    before = [p.detach().clone() for p in ours.parameters()]
    opt = bt.AdamW(ours.named_parameters(), endpoints="a:1", job="job", rank=0, world_size=2,
                   collective="nccl")
    try:
        opt.attach()
    except ballast.BallastError as error:
        said.append([type(error).__name__, error.code, str(error)])
    assert not core.attached and all(map(torch.equal, before, ours.parameters()))
print(json.dumps(said))
"""

DROPPED = """
import importlib, sys, threading

native = importlib.import_module("ballast._nccl")
comms = native.open()
link = native.Communicator(comms, native.host(), comms.new_id(), (0, 1), 1, 60.0, lambda: None)

def let_it_end():
    with open(sys.argv[1], "wb", buffering=0) as pipe:  # returns when the drop below reads
        pipe.write(b"x")

other = threading.Thread(target=let_it_end)
other.start()
del link
other.join()
print("both have ended")
"""


@pytest.fixture(scope="module")
def fake_nccl() -> Path:
    library = built_ballastd().parent.parent / "tests" / "nccl" / "libnccl.so.2"
    assert library.exists(), "build the target fake_nccl"
    return library


def run(script: str, *arguments: object, **environment: str) -> str:
    paths = [str(TESTS / "python"), str(TESTS), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], text=True, capture_output=True,
        timeout=ENDS_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_missing_and_a_too_old_nccl_are_refused_before_anything_is_sent(fake_nccl):
    said = json.loads(
        run(REFUSED, fake_nccl, BALLAST_NCCL_ON_HOST="1", FAKE_NCCL="version=22105")
    )
    missing, old = said
    if "no NCCL: " not in missing[2]:
        pytest.skip("this host has an NCCL")
    assert [missing[:2], old[:2]] == [["Unsupported", "UNIMPLEMENTED"]] * 2
    assert "libnccl.so.2" in missing[2]
    assert f"NCCL is 2.21.5 ({fake_nccl})" in old[2]
    for _, _, text in said:
        assert "2.22.0 or newer" in text and "install a" in text, text
        assert "or give collective= a process group of torch" in text


def test_a_communicator_that_is_dropped_lets_other_threads_run(fake_nccl, tmp_path):
    # NCCL frees for as long as it likes; here until another thread of Python has run.
    pipe = tmp_path / "free"
    os.mkfifo(pipe)
    said = run(DROPPED, pipe, LD_LIBRARY_PATH=str(fake_nccl.parent), FAKE_NCCL_FREE=str(pipe))
    assert said == "both have ended\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "ABORTED: the init (NCCL 2.28.9 says: invalid usage\n(run with NCCL_DEBUG=WARN); give "
            "each rank a GPU of its own)",
            ["NCCL 2.28.9 says: invalid usage (run with NCCL_DEBUG=WARN); give each rank a GPU of "
             "its own"],
        ),
        (
            "ABORTED: another communicator of this process failed (bucket 0: timeout), and all "
            "were aborted together; take the step again",
            ["another communicator of this process failed (bucket 0: timeout), and all were "
             "aborted together"],
        ),
        ("UNAVAILABLE: a rank of epoch 1 did not arrive within 3 s", []),
    ],
)  # fmt: skip
def test_a_lost_trainer_is_told_with_what_nccl_or_another_job_said(text, said):
    assert nccl._said(RuntimeError(text)) == said
