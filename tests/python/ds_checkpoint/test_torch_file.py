"""Files of torch.save without torch.load: the same values, and no damage goes unnoticed."""

from __future__ import annotations

import collections
import os
import struct
import zipfile

import pytest
import torch
import torch_zip
from ballast.ds_checkpoint import CheckpointError, torch_file
from torch_zip import tensor, whole

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
          torch.int16, torch.int8, torch.uint8, torch.bool)


def refused(path):
    with pytest.raises(CheckpointError) as caught:
        read_all(torch_file.load(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert caught.value.path == str(path)
    return caught.value.text


def read_all(value):
    """The value with every tensor read."""
    if isinstance(value, torch_file.FileTensor):
        return value.read()
    if isinstance(value, dict):
        return {key: read_all(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(read_all(child) for child in value)
    return value


def same(got, want):
    assert (got.dtype, got.shape, got.is_contiguous()) == (want.dtype, want.shape, True)
    a, b = (t.contiguous().reshape(-1).view(torch.uint8) for t in (got, want))
    assert torch.equal(a, b)


def test_tensors_of_every_dtype_and_layout_have_the_bits_that_were_saved(tmp_path):
    base = torch.arange(60.0).reshape(3, 4, 5)
    values = {str(dtype): torch.tensor([0, 1, 1, 0]).to(dtype) for dtype in DTYPES}
    values.update({
        "transposed": base.transpose(0, 2), "slice": base[1:, ::2, 1:4],
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3), "parameter": torch.nn.Parameter(base.clone()),
        "expanded": torch.ones(3), "nan": torch.tensor([float("nan"), -0.0]),
    })
    path = tmp_path / "a.pt"
    torch.save(values, path)
    for name, got in read_all(torch_file.load(path)).items():
        same(got, values[name].detach())


def test_a_module_and_plain_values_are_read(tmp_path):
    value = {"module": torch.nn.Linear(2, 3).state_dict(), "shape": torch.Size([2, 3]), "step": 5,
             "list": [1.5, None, "x"], "ordered": collections.OrderedDict(a=(1, 2))}
    torch.save(value, tmp_path / "a.pt")
    got = read_all(torch_file.load(tmp_path / "a.pt"))
    assert got["shape"] == (2, 3) and got["ordered"] == {"a": (1, 2)}
    assert got["list"] == value["list"]
    same(got["module"]["weight"], value["module"]["weight"].detach())


def test_a_range_of_a_vector_is_read_alone(tmp_path):
    torch.save(torch.arange(100.0)[10:], tmp_path / "a.pt")
    got = torch_file.load(tmp_path / "a.pt")
    assert got.read_flat(5, 3).tolist() == [15.0, 16.0, 17.0]


def test_code_in_a_file_is_refused_and_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    torch.save({"weight": torch.ones(3), "x": Evil()}, tmp_path / "a.pt")
    assert "names posix.mkdir" in refused(tmp_path / "a.pt")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("pushed", "says"),
    [
        (tensor(shape=(5,)), "larger than its storage"),
        (tensor(shape=(2**40, 2**40), stride=(0, 0)), "larger than its storage"),
        (tensor(shape=(2, 2), stride=(3, 1)), "past the end"),
        (tensor(offset=1), "past the end"),
        (tensor(offset=2**62), "past the end"),
        (tensor(offset=-1), "no list of sizes"),
        (tensor(stride=(-1,)), "no list of sizes"),
        (tensor(shape=(-4,)), "no list of sizes"),
        (tensor(shape=(2, 2)), "no list of sizes"),
        (tensor(shape=(1,) * 65, stride=(1,) * 65), "larger than its storage"),
        (tensor(elements=5), "has 16 bytes"),
        (tensor(elements=2**61), "has 16 bytes"),
        (tensor(elements=-4), "none of torch's"),
        (tensor(kind="DoubleStorage"), "has 16 bytes"),
        (tensor(kind="CudaStorage"), "names torch.CudaStorage"),
        (tensor(key="../data.pkl"), "no member data/../data.pkl"),
        (tensor(key="1"), "no member data/1"),
        (b"K\x01Q", "no storage of torch"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n)R", "without a storage"),
        (b"ctorch._utils\n_rebuild_parameter\n)R", "without a tensor"),
        (b"ctorch\nSize\n)R", "no tuple of sizes"),
        (b"ccollections\nOrderedDict\n]\x85R", "OrderedDict of something"),
    ],
)
def test_tensors_that_do_not_fit_their_bytes_are_refused(tmp_path, pushed, says):
    path = torch_zip.write(tmp_path / "a.pt", whole(pushed), {"0": bytes(16)})
    assert says in refused(path)


def test_a_fitting_tensor_of_the_same_making_is_read(tmp_path):
    data = struct.pack("<4f", 1, 2, 3, 4)
    path = torch_zip.write(tmp_path / "a.pt", whole(tensor()), {"0": data})
    assert torch_file.load(path).read().tolist() == [1, 2, 3, 4]


def test_compressed_members_are_refused(tmp_path):
    path = torch_zip.write(tmp_path / "a.pt", whole(tensor(elements=1 << 24, shape=(1 << 24,))),
                           {"0": bytes(4 << 24)}, compression=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 20
    assert "compressed" in refused(path)


def test_two_members_of_one_name_are_refused(tmp_path):
    path = torch_zip.write(tmp_path / "a.pt", whole(b"N"))
    with pytest.warns(UserWarning), zipfile.ZipFile(path, "a") as file:
        file.writestr("archive/data.pkl", whole(b"N"))
    assert "two members data.pkl" in refused(path)


def rewritten(path, change):
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    return path


def directory_entry(data, name):
    """Where the list of members has the entry of `name`."""
    return data.rindex(name) - 46


def test_members_that_overlap_are_refused(tmp_path):
    """The second storage is said to begin where the first one does."""
    path = torch_zip.write(
        tmp_path / "a.pt", whole(b"(", tensor(), tensor(key="1"), b"t"),
        {"0": bytes(16), "1": bytes(16)})

    def overlap(data):
        first, second = (directory_entry(data, b"archive/data/" + key) for key in (b"0", b"1"))
        data[second + 42 : second + 46] = data[first + 42 : first + 46]

    assert "overlaps another" in refused(rewritten(path, overlap))


def test_members_that_are_larger_than_the_file_are_refused(tmp_path):
    path = torch_zip.write(tmp_path / "a.pt", whole(tensor()), {"0": bytes(16)})

    def grow(data):
        at = directory_entry(data, b"archive/data/0")
        data[at + 20 : at + 28] = struct.pack("<II", 1 << 30, 1 << 30)

    assert "larger than the file" in refused(rewritten(path, grow))


def test_encrypted_members_are_refused(tmp_path):
    path = torch_zip.write(tmp_path / "a.pt", whole(tensor()), {"0": bytes(16)})

    def encrypt(data):
        data[directory_entry(data, b"archive/data/0") + 8] |= 1

    assert "encrypted" in refused(rewritten(path, encrypt))


def test_a_changed_byte_of_a_tensor_or_of_the_pickle_is_noticed(tmp_path):
    for needle in (b"\x11" * 16, b"_rebuild_tensor_v2"):
        path = torch_zip.write(tmp_path / "a.pt", whole(tensor()), {"0": b"\x11" * 16})

        def flip(data, needle=needle):
            data[data.index(needle) + 3] ^= 1

        assert "CRC-32" in refused(rewritten(path, flip))


def test_a_file_that_is_cut_off_anywhere_is_refused(tmp_path):
    path = torch_zip.write(tmp_path / "a.pt", whole(tensor()), {"0": bytes(16)})
    data = path.read_bytes()
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        assert refused(path)


def test_any_byte_may_be_damaged(tmp_path):
    path = torch_zip.write(tmp_path / "a.pt", whole(tensor()), {"0": bytes(16)})
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        try:
            read_all(torch_file.load(path))
        except CheckpointError:
            pass


def test_a_file_that_changes_after_it_was_opened_is_noticed(tmp_path):
    path = tmp_path / "a.pt"
    torch.save(torch.ones(4), path)
    opened = torch_file.load(path)
    torch.save(torch.ones(400), path)
    with pytest.raises(CheckpointError, match="has changed"):
        opened.read()


def test_a_large_list_of_members_takes_no_memory(tmp_path):
    """The list is said to have 4 GB, in a file with a hole of that size."""
    path = tmp_path / "a.pt"
    size = 0xF0000000
    with open(path, "wb") as file:
        file.truncate(size)
        file.seek(size)
        file.write(struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, size, 0, 0))
    assert "lists its members" in refused(path)


def test_what_is_no_file_of_torch_is_named(tmp_path):
    torch.save(torch.ones(2), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert "is no zip file" in refused(tmp_path / "old.pt")
    assert "is no file" in refused(tmp_path / "none.pt")
    assert "is no file" in refused(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    assert "is no file" in refused(tmp_path / "fifo")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        file.writestr("hello.txt", "hello")
    assert "no member data.pkl" in refused(tmp_path / "other.zip")


def test_big_endian_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_zip, "BYTE_ORDER", b"big")
    assert "big-endian" in refused(torch_zip.write(tmp_path / "a.pt", whole(b"N")))
