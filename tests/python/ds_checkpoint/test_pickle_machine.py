"""The pickle machine: what torch writes is read, everything else is refused, and nothing is run."""

from __future__ import annotations

import collections
import pickle
import random

import pytest
from ballast.ds_checkpoint.unpickle import (
    PICKLE_BYTES_MAX,
    Name,
    Record,
    Refused,
    record,
    unpickle,
)
from torch_zip import number, text, whole

NAMES = {
    "collections.OrderedDict": lambda arguments: collections.OrderedDict(),
    "lib.Thing": record("lib.Thing"),
    "lib.VALUE": None,
}


def read(data):
    return unpickle(data, NAMES, lambda identity: ("stored", identity))


def refused(data):
    with pytest.raises(Refused) as caught:
        read(data)
    return str(caught.value)


VALUE = {
    "numbers": [0, 1, 255, 256, 65535, 65536, -1, 2**31, -(2**31), 2**40, -(2**63), 2**64 - 1, 1.5],
    "constants": (None, True, False),
    "text": "é😀\n",
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    "nested": {"a": [{"b": ({},)}], 3: "three", None: 0, True: 1, 2.5: 2},
    "ordered": collections.OrderedDict(z=1, a=2),
}
PICKLED = pickle.dumps(VALUE, protocol=2)


def test_what_python_writes_is_read():
    got = read(PICKLED)
    assert got == VALUE
    assert list(got["ordered"]) == ["z", "a"]


def test_shared_values_stay_shared():
    inner = [1]
    got = read(pickle.dumps([inner, inner], protocol=2))
    assert got[0] is got[1]


def test_a_listed_class_becomes_a_record_and_a_listed_name_a_name():
    data = whole(b"clib\nThing\n", number(1), b"\x85\x81}", text("size"), number(3), b"sb")
    assert read(data) == Record("lib.Thing", (1,), {"size": 3})
    assert read(whole(b"clib\nVALUE\n")) == Name("lib.VALUE")


def test_fields_of_an_ordered_dict_are_dropped():
    value = collections.OrderedDict(a=1)
    value._metadata = {"version": 1}
    got = read(pickle.dumps(value, protocol=2))
    assert got == {"a": 1}
    assert not hasattr(got, "_metadata")


class Evil:
    """Unpickled by Python, it makes a file."""

    def __init__(self, call, *arguments):
        self.how = (call, arguments)

    def __reduce__(self):
        return self.how


def test_a_name_that_is_not_listed_is_refused_by_name_and_not_run(tmp_path):
    import os

    target = tmp_path / "made"
    for call, arguments, name in (
        (os.mkdir, (str(target),), "posix.mkdir"),
        (eval, (f"__import__('os').mkdir({str(target)!r})",), "__builtin__.eval"),
        (exec, (f"__import__('os').mkdir({str(target)!r})",), "__builtin__.exec"),
        (getattr, (target, "mkdir"), "__builtin__.getattr"),
    ):
        assert f"names {name}" in refused(pickle.dumps(Evil(call, *arguments), protocol=2))
    assert not target.exists()


@pytest.mark.parametrize(
    ("opcodes", "says"),
    [
        (b"clib\nVALUE\n)R", "calls lib.VALUE"),
        (b"clib\nVALUE\n)\x81", "calls lib.VALUE"),
        (b"]K\x01\x85R", "calls a list"),
        (b"clib\nThing\n]R", "calls lib.Thing"),
        (b"(clib\nThing\nK\x01o", "uses OBJ"),
        (b"(iposix\nsystem\n", "uses INST"),
        (b"\x82\x01", "uses EXT1"),
        (text("posix") + text("system") + b"\x93", "uses STACK_GLOBAL"),
        (b"P0\n", "uses PERSID"),
        (b"S'a'\n", "uses STRING"),
        (b"I5\n", "uses INT"),
        (b"C\x01a", "uses SHORT_BINBYTES"),
        (b"\x8f", "uses EMPTY_SET"),
        (b"K\x01}b", "sets fields of a int"),
        (b"]}b", "sets fields of a list"),
        (b"clib\nVALUE\n}b", "sets fields of a Name"),
        (b"K\x01K\x02a", "appends to a int"),
        (b"}K\x02a", "appends to a dict"),
        (b"]K\x01K\x02s", "sets items of a list"),
        (b"}(K\x01u", "sets items of a dict"),
        (b"}]K\x01s", "a list as a key"),
        (b"})K\x01s", "a tuple as a key"),
        (b"\x8a\x09" + b"\x7f" * 9, "more than 64 bits"),
        (b"cos\\\n\xc3\xa9\n", "damaged"),
        (b"c" + b"a" * 9999 + b"\nb\n", "names aaa"),
    ],
)
def test_refusals_name_what_is_wrong(opcodes, says):
    assert says in refused(whole(opcodes))
    assert len(refused(whole(opcodes))) < 400


def test_other_protocols_are_refused():
    for protocol in (3, 4, 5):
        assert f"protocol {protocol}" in refused(pickle.dumps(VALUE, protocol=protocol))
    assert "torch.save does not write" in refused(pickle.dumps([5], protocol=0))


@pytest.mark.parametrize(
    "opcodes",
    [b"a", b"0", b"]a", b"t", b"u", b"h\x07", b"j\x07\x00\x00\x00", b"q\x00", b"R", b"b", b"Q",
     b"\x87", b"K\x01K\x02", b"(", b""],
)
def test_a_value_that_is_not_there_is_damage(opcodes):
    with pytest.raises(Refused):
        read(whole(opcodes))


def test_sizes_without_end_take_no_memory():
    huge = b"\xff\xff\xff\x7f"
    for opcodes in (b"X" + huge, b"\x8b" + huge, b"\x8d" + huge + huge, b"\x8e" + huge + huge,
                    b"\x95" + huge + huge, b"T" + huge, b"I" + b"9" * 100_000 + b"\n",
                    b"L" + b"9" * 100_000 + b"L\n"):
        assert refused(whole(opcodes))
    assert "limit" in refused(bytes(PICKLE_BYTES_MAX + 1))
    assert read(whole(b"]r\xff\xff\xff\xff")) == []


@pytest.mark.parametrize(
    "opcodes",
    [
        b"]q\x00h\x00a",
        b"}q\x00" + text("me") + b"h\x00s",
        b"]q\x00h\x00\x85a",
        b"]q\x00]h\x00aa",
        b"clib\nThing\n)\x81q\x00h\x00b",
    ],
)
def test_a_value_that_contains_itself_is_refused(opcodes):
    assert "contains itself" in refused(whole(opcodes))


def test_values_that_are_shared_many_times_are_looked_at_once():
    opcodes = b"(]q\x00"
    for index in range(200):
        opcodes += b"](h%ch%ceq%c" % (index, index, index + 1)
    assert len(read(whole(opcodes, b"t"))) == 201  # 2**200 steps otherwise


def test_deep_nesting_is_read():
    depth = 100_000
    assert len(read(whole(b"]" * depth, b"a" * (depth - 1)))) == 1


def test_a_pickle_that_is_cut_off_anywhere_is_refused():
    for length in range(len(PICKLED)):
        assert refused(PICKLED[:length])


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_any_bytes_are_read_or_refused():
    chance = random.Random(4)
    outcomes = collections.Counter()
    for _ in range(4000):
        data = bytearray(PICKLED)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            read(bytes(data))
            outcomes["read"] += 1
        except Refused:
            outcomes["refused"] += 1
    assert outcomes["refused"] > 1000
