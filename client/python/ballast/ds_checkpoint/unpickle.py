"""A pickle machine that runs nothing: numbers, strings, lists, tuples, dicts and listed names.

Comes from: ballast.ds_checkpoint.torch_file, the bytes of a pickle that torch.save wrote. Goes to:
the same. Thread safety: pure functions.

Input is hostile. The opcodes are those that Python writes in protocol 2, parsed by the standard
library's pickletools, which only parses. A name (an opcode GLOBAL) is compared with a table and
never imported. The pickle can call only our functions in that table; an object of a listed class
becomes a Record, which has no behaviour. Memory is at most some 70 bytes per byte of the
pickle. Values that contain themselves are refused, so readers may walk the result.
"""

from __future__ import annotations

import dataclasses
import pickletools
from collections.abc import Callable, Mapping
from typing import Any

PICKLE_BYTES_MAX = 32 << 20
_INTEGER_MIN, _INTEGER_MAX = -(1 << 63), (1 << 64) - 1
_READ = "tensors, numbers, strings, lists, tuples and dicts are read, and no code of a file runs"


class Refused(ValueError):
    """The pickle is damaged or holds a refused value. The text says what."""


@dataclasses.dataclass(frozen=True)
class Name:
    """A name of the table as a value: a class or function of the writer, never the thing itself."""

    name: str


@dataclasses.dataclass
class Record:
    """The constructor arguments of an object of a listed class. It has no behaviour.

    arguments: those of its construction. state: the fields set afterwards, None without any.
    """

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


# The function for a name called with arguments; None: the name is only a value.
Build = Callable[[tuple[Any, ...]], Any]
Names = Mapping[str, Build | None]


def record(name: str) -> Build:
    """A row's function for a class whose objects become Records."""
    return lambda arguments: Record(name, arguments)


def unpickle(data: bytes, names: Names, persistent: Callable[[Any], Any]) -> Any:
    """The value of a pickle of protocol 2.

    names: the table, by "module.name". persistent: makes the value of a persistent id (torch's
    storages). Raises Refused; `names` and `persistent` may raise it, too.
    """
    if len(data) > PICKLE_BYTES_MAX:
        raise Refused(f"a pickle of {len(data)} bytes is above the limit of {PICKLE_BYTES_MAX}")
    machine = _Machine(names, persistent)
    try:
        for opcode, argument, _ in pickletools.genops(data):
            machine.run(opcode.name, argument)
    except (IndexError, KeyError):
        raise Refused("the pickle is damaged: it takes a value that is not there") from None
    except (ValueError, UnicodeError) as error:
        raise error if isinstance(error, Refused) else Refused(
            f"the pickle is damaged or cut off: {error}"
        ) from None
    _refuse_loops(machine.result)
    return machine.result


class _Machine:
    """The stack, the marks on it, and what PUT kept. A step is the method of an opcode's name."""

    def __init__(self, names: Names, persistent: Callable[[Any], Any]) -> None:
        self._names = names
        self._persistent = persistent
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._kept: dict[int, Any] = {}
        self.result: Any = None

    def run(self, opcode: str, argument: Any) -> None:
        step = _STEPS.get(opcode)
        if step is None:
            raise Refused(f"the pickle uses {opcode}, which torch.save does not write; {_READ}")
        step(self, argument)

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def integer(self, value: int) -> None:
        if not _INTEGER_MIN <= value <= _INTEGER_MAX:
            raise Refused("the pickle holds an integer of more than 64 bits")
        self.push(value)

    def protocol(self, version: int) -> None:
        if version != 2:
            raise Refused(f"the pickle has protocol {version}; torch.save writes 2")

    def mark(self, _: None) -> None:
        self._marks.append(self._stack)
        self._stack = []

    def _since_mark(self) -> list[Any]:
        values, self._stack = self._stack, self._marks.pop()
        return values

    def put(self, index: int) -> None:
        self._kept[index] = self._stack[-1]

    def get(self, index: int) -> None:
        self.push(self._kept[index])

    def tuple_of(self, count: int | None) -> None:
        if count is None:
            self.push(tuple(self._since_mark()))
            return
        values = [self._stack.pop() for _ in range(count)]
        self.push(tuple(reversed(values)))

    def extend(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise Refused(f"the pickle appends to a {type(target).__name__}")
        target.extend(values)

    def append(self, _: None) -> None:
        value = self._stack.pop()
        self.extend([value])

    def appends(self, _: None) -> None:
        self.extend(self._since_mark())

    def set_items(self, pairs: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict) or len(pairs) % 2:
            raise Refused(f"the pickle sets items of a {type(target).__name__}")
        for key, value in zip(pairs[::2], pairs[1::2]):
            target[_key(key)] = value

    def setitem(self, _: None) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self.set_items([key, value])

    def setitems(self, _: None) -> None:
        self.set_items(self._since_mark())

    def name(self, text: str) -> None:
        found = ".".join(text.split(" "))
        if found not in self._names:
            raise Refused(f"the pickle names {ascii(found)[1:-1][:200]}; {_READ}")
        self.push(Name(found))

    def call(self, _: None) -> None:
        arguments, called = self._stack.pop(), self._stack.pop()
        build = self._names[called.name] if isinstance(called, Name) else None
        if build is None or not isinstance(arguments, tuple):
            what = called.name if isinstance(called, Name) else f"a {type(called).__name__}"
            raise Refused(f"the pickle calls {what}; {_READ}")
        self.push(build(arguments))

    def build(self, _: None) -> None:
        """An object's fields. An OrderedDict's are dropped: torch puts its `_metadata` there."""
        state, target = self._stack.pop(), self._stack[-1]
        if isinstance(target, Record):
            target.state = state
        elif not isinstance(target, dict):
            raise Refused(f"the pickle sets fields of a {type(target).__name__}")

    def persistent_id(self, _: None) -> None:
        self.push(self._persistent(self._stack.pop()))

    def stop(self, _: None) -> None:
        self.result = self._stack.pop()
        if self._stack or self._marks:
            raise Refused("the pickle is damaged: values are left after its end")


_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _Machine.protocol,
    "NONE": lambda m, _: m.push(None),
    "NEWTRUE": lambda m, _: m.push(True),
    "NEWFALSE": lambda m, _: m.push(False),
    "BININT": _Machine.integer,
    "BININT1": _Machine.integer,
    "BININT2": _Machine.integer,
    "LONG1": _Machine.integer,
    "BINFLOAT": _Machine.push,
    "BINUNICODE": _Machine.push,
    "EMPTY_LIST": lambda m, _: m.push([]),
    "EMPTY_DICT": lambda m, _: m.push({}),
    "EMPTY_TUPLE": lambda m, _: m.push(()),
    "MARK": _Machine.mark,
    "TUPLE": _Machine.tuple_of,
    "TUPLE1": lambda m, _: m.tuple_of(1),
    "TUPLE2": lambda m, _: m.tuple_of(2),
    "TUPLE3": lambda m, _: m.tuple_of(3),
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "SETITEM": _Machine.setitem,
    "SETITEMS": _Machine.setitems,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "GLOBAL": _Machine.name,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.call,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.persistent_id,
    "STOP": _Machine.stop,
}


def _key(key: Any) -> Any:
    """Keys are scalars: hashing a tuple that shares its parts may take exponential time."""
    if isinstance(key, (str, int, float, bool, type(None))):
        return key
    raise Refused(f"the pickle has a {type(key).__name__} as a key; strings and numbers are read")


def _children(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, Record):
        return [value.arguments, value.state]
    return []


def _refuse_loops(root: Any) -> None:
    """Refused if a value contains itself. Looks at each value once, however often it is used."""
    under_way: set[int] = set()
    done: set[int] = set()
    todo: list[tuple[Any, bool]] = [(root, False)]
    while todo:
        value, leaving = todo.pop()
        if leaving:
            under_way.discard(id(value))
            done.add(id(value))
        elif id(value) in under_way:
            raise Refused("the pickle holds a value that contains itself")
        elif id(value) not in done:
            children = _children(value)
            if children:
                under_way.add(id(value))
                todo.append((value, True))
                todo.extend((child, False) for child in children)
