"""The extension together with other users of gRPC and protobuf, imported before or after them."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from ballast import backend

CLIENT = Path(__file__).resolve().parents[2] / "client" / "python"

# A use of each library that really runs its code. Nothing listens on port 1.
USES = {
    "torch": "import torch; assert torch.ones(3).sum() == 3",
    "google.protobuf": (
        "from google.protobuf import struct_pb2; "
        "assert struct_pb2.Value.FromString(struct_pb2.Value(number_value=1).SerializeToString())"
    ),
    "grpc": "import grpc; grpc.insecure_channel('127.0.0.1:1').close()",
}
BALLAST = """
from ballast import BallastError, config, session
c = config.resolve(endpoints='127.0.0.1:1', job='j', attach_timeout=1)
try:
    tensors = [session.TensorSpec('w', (1,), 'float32', 0, ())]
    session.Session.attach(c, ("AdamW", {}), tensors, [weight], None)
except BallastError as error:
    print(error.reason)
"""


@pytest.fixture
def extension():
    try:
        backend.core()
    except ImportError as error:
        pytest.skip(f"the extension is not built: {error}")


def reason_after(statements: list[str]) -> str:
    preamble = (
        f"import sys, ctypes; sys.path.insert(0, {str(CLIENT)!r})\n"
        "memory = ctypes.c_float(0); weight = ctypes.addressof(memory)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", preamble + "\n".join(statements)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("library", USES)
@pytest.mark.parametrize("first", [True, False])
def test_import_next_to_one_library(extension, library, first):
    if importlib.util.find_spec(library.partition(".")[0]) is None:
        pytest.skip(f"{library} is not installed")
    order = [BALLAST, USES[library], BALLAST, USES[library]]
    reasons = reason_after(order[0 if first else 1 :]).split()
    assert reasons and set(reasons) <= {"UNREACHABLE", "ATTACH_TIMEOUT"}


def test_import_next_to_all_installed_libraries(extension):
    present = [n for n in USES if importlib.util.find_spec(n.partition(".")[0]) is not None]
    uses = [USES[n] for n in present]
    for place in range(len(uses) + 1):
        order = [*uses[:place], BALLAST, *uses[place:]]
        assert reason_after(order) in ("UNREACHABLE", "ATTACH_TIMEOUT")
