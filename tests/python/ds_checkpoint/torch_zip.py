"""Makes files as torch.save does, of any pickle and storages, for the tests of readers to
damage."""

from __future__ import annotations

import zipfile

BYTE_ORDER = b"little"


def write(path, pickled, storages=None, prefix="archive", compression=zipfile.ZIP_STORED):
    """A torch file at `path`; storages: bytes by key. Returns the path."""
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr(f"{prefix}/data.pkl", pickled)
        file.writestr(f"{prefix}/byteorder", BYTE_ORDER)
        for key, data in (storages or {}).items():
            file.writestr(f"{prefix}/data/{key}", data)
        file.writestr(f"{prefix}/version", b"3\n")
    return path


def text(value):
    """The opcodes that push a string."""
    data = value.encode()
    return b"X" + len(data).to_bytes(4, "little") + data


def tensor(elements=4, key="0", offset=0, shape=(4,), stride=(1,), kind="FloatStorage"):
    """The opcodes that push a tensor of one storage."""
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage")
        + b"ctorch\n" + kind.encode() + b"\n" + text(key) + text("cpu") + number(elements)
        + b"tQ" + number(offset) + sizes(shape) + sizes(stride)
        + b"\x89ccollections\nOrderedDict\n)RtR"
    )


def number(value):
    """The opcodes that push an integer."""
    length = (value.bit_length() + 8) // 8
    return b"\x8a" + bytes([length]) + value.to_bytes(length, "little", signed=True)


def sizes(values):
    return b"(" + b"".join(map(number, values)) + b"t"


def whole(*opcodes):
    """A pickle of protocol 2."""
    return b"\x80\x02" + b"".join(opcodes) + b"."
