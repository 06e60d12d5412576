"""A trainer with grpcio and protobuf in its process, as in programs with tools for logging.

    beside_grpc.py before|after

Comes from: test_packages_wheel.py, in a root without a compiler and without Debian's gRPC. Goes to:
a server that BALLAST_ENDPOINTS names; standard output says which shared libraries were loaded.
The optimizer is the three lines of README.md. torch's own steps alongside it, with the same
gradients.
"""

import sys
from pathlib import Path


def use_others() -> None:
    """Imports gRPC and protobuf for Python and runs code of both. Nothing listens on port 1."""
    import grpc
    from google.protobuf import struct_pb2

    value = struct_pb2.Value(number_value=1)
    assert struct_pb2.Value.FromString(value.SerializeToString()).number_value == 1
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        call = channel.unary_unary("/none/none")
        try:
            call(b"", timeout=10)
        except grpc.RpcError as error:
            assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        else:
            raise AssertionError("an answer from port 1")


def gradients(model, batch) -> None:
    model.zero_grad()
    model(batch).square().mean().backward()


def main() -> None:
    if sys.argv[1] == "before":
        use_others()
    import torch

    import ballast
    import ballast.torch as bt

    torch.manual_seed(1)
    model, other = torch.nn.Linear(64, 8), torch.nn.Linear(64, 8)
    other.load_state_dict(model.state_dict())
    opt = bt.AdamW(model.parameters(), lr=3e-4)
    torchs = torch.optim.AdamW(other.parameters(), lr=3e-4, fused=True)
    for step in range(3):
        if step == 1:
            use_others()
        batch = torch.randn(4, 64)
        gradients(model, batch)
        gradients(other, batch)
        opt.step()
        torchs.step()
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    print("version", ballast.__version__)
    mapped = Path("/proc/self/maps").read_text().splitlines()
    for path in sorted({line.split()[-1] for line in mapped if ".so" in line}):
        print("loaded", path)


if __name__ == "__main__":
    main()
