#!/usr/bin/env python3
"""Holds the room table: which folder may include or import which; other edges are errors.

Comes from: the working tree. Goes to: `ctest -L tidy` (test tidy_rooms), as file:line: error: ...
Thread safety: one process, nothing shared.

To allow a new edge, change ROOMS below and say why in the commit message.
"""

import argparse
import dataclasses
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import python_rooms  # noqa: E402  (found only after the line above)
import source_text  # noqa: E402

# Libraries by the prefix of their headers. A header outside these and our rooms must be a header of
# C, C++ or POSIX.
THIRD_PARTY = (
    "absl/", "google/protobuf/", "grpcpp/", "grpc/", "rocksdb/", "prometheus/",
    "yaml-cpp/", "nlohmann/", "libaio.h", "zlib.h", "gtest/", "gmock/",
    "benchmark/", "openssl/", "nanobind/", "Python.h", "torch/", "ATen/", "cuda", "nccl.h")
SYSTEM_FOLDERS = ("sys/", "linux/", "netinet/", "arpa/", "net/", "asm/", "sanitizer/")

TYPES = "common/types"
COMMON = (
    TYPES, "common/base", "common/text", "common/bytes", "common/threads", "common/faults",
    "common/system", "common/io", "common/tensor", "common/policy", "common/job",
    "common/metrics", "common/rendezvous", "common/security")
TLS = "common/tls"
# Generated headers: ballast/v1/*.pb.h, and ballast/config/v1/*.pb.h.
WIRE, CONFIG = "proto:wire", "proto:config"
PUBLIC_CLIENT = "client/cpp/ballast"
# Headers of TYPES that are installed with the client's.
INSTALLED_TYPES = ("ballast/job_settings.h", "ballast/types.h")
SERVER_ROOMS = (
    "server/simd", "server/optim", "server/reduce", "server/tier", "server/state",
    "server/durability", "server/durability/records", "server/durability/log",
    "server/durability/images", "server/meta", "server/round", "server/extents", "server/recovery",
    "server/engine", "server/quota", "server/snapshot", "server/exchange", "server/config",
    "server/jobs", "server/operator", "server/home", "server/directory", "server/admin",
    "server/security", "server/net", "server/host")
# Of the port. Below them nothing knows gRPC, and of the messages only the configuration's.
PORT_ROOMS = (
    "server/stream", "server/rpc", "server/convert", "server/peer", "server/service",
    "server/status")
PROTOBUF, GRPC = ("google/protobuf/",), ("grpcpp/", "grpc/")
SAFETENSORS = "common/safetensors"
EVERYTHING = COMMON + (
    SAFETENSORS, TLS, WIRE, CONFIG, "proto/convert") + SERVER_ROOMS + PORT_ROOMS + (
    "server", PUBLIC_CLIENT, "client/cpp/transport", "client/cpp/job", "client/cpp/session",
    "client/cpp/attach", "client/device", "client/device/cuda", "client/collective", "client/aio")

TOOLS = ("tools/ctl", "tools/commands", "tools/host", "tools/reference")

# Kernels run inside the memory-bound pass over an extent: nothing in them may wait or allocate.
KERNEL_BANS = (
    "mutex", "shared_mutex", "thread", "condition_variable", "common/base/sync.h",
    "common/threads/", "absl/container/",
    "absl/synchronization/")


@dataclasses.dataclass(frozen=True)
class Room:
    """One row of the table: rooms and libraries that may be included, and headers that may not."""

    rooms: tuple = ()
    libraries: tuple = ("absl/",)
    banned: tuple = ()


ROOMS = {
    TYPES: Room(),
    "common/base": Room(),
    "common/text": Room(("common/base",)),
    "common/bytes": Room(),
    "common/threads": Room(("common/base",)),
    # common/text: names of points that are misspelt.
    "common/faults": Room(("common/base", "common/text")),
    "common/system": Room(("common/base",)),
    "common/io": Room(
        ("common/base", "common/text", "common/bytes", "common/threads"), ("absl/", "libaio.h")),
    "common/safetensors": Room(
        ("common/base", "common/text", "common/faults", "common/io"), ("absl/", "nlohmann/")),
    # Calls OpenSSL itself, as server/net does; gRPC does so for the connections.
    "common/tls": Room(("common/base", "common/text", "common/system"), ("absl/", "openssl/")),
    "common/tensor": Room((TYPES, "common/base")),
    # common/policy: a job says how its loss scale and its learning rates move.
    "common/job": Room((TYPES, "common/base", "common/text", "common/bytes", "common/faults",
                        "common/policy", "common/tensor")),
    "common/metrics": Room(("common/base", "common/text")),
    "common/policy": Room((TYPES, "common/base")),
    # Not in server/: tests of the client's collectives run it without a server.
    "common/rendezvous": Room((TYPES, "common/base", "common/bytes", "common/faults")),
    "common/security": Room(
        ("common/base", "common/text", "common/faults"), ("absl/", "openssl/")),
    # common/tls: the credentials of gRPC's connections.
    "proto/convert": Room(COMMON + (TLS, WIRE, CONFIG), ("absl/",) + GRPC + PROTOBUF),
    "server/simd": Room(("common/base",), banned=KERNEL_BANS),
    # common/job: only the table of optimizer kinds, for scalars and dispatch; not for kernels.
    "server/optim": Room(
        ("common/base", "common/job", "common/tensor", "server/simd"), banned=KERNEL_BANS),
    "server/reduce": Room(("common/base", "common/tensor", "server/simd"), banned=KERNEL_BANS),
    # server/durability: an extent on NVMe lives in the images that its checkpoint would go to.
    "server/tier": Room(
        COMMON + ("server/durability", "server/durability/images",)),
    "server/state": Room(
        COMMON + ("server/optim", "server/tier")),
    "server/durability/records": Room(COMMON),
    "server/durability/log": Room(COMMON + ("server/durability/records",)),
    "server/durability/images": Room(COMMON + ("server/durability/records",)),
    "server/durability": Room(COMMON + (
        "server/durability/images", "server/durability/log", "server/durability/records")),
    "server/meta": Room(COMMON, ("absl/", "rocksdb/")),
    # server/simd: only the type Isa, which is chosen once and handed down to the kernels.
    "server/round": Room(COMMON + (
        "server/state", "server/optim", "server/tier", "server/durability/records")),
    "server/extents": Room(COMMON + (
        "server/round", "server/reduce", "server/tier", "server/durability/log")),
    "server/recovery": Room(COMMON + (
        "server/round", "server/state", "server/optim", "server/simd", "server/tier",
        "server/durability", "server/durability/images", "server/durability/log",
        "server/durability/records")),
    "server/engine": Room(COMMON + (
        "server/recovery", "server/extents", "server/round", "server/optim", "server/simd",
        "server/tier", "server/durability")),
    # server/recovery: a snapshot is taken out of a log and images.
    "server/snapshot": Room(COMMON + (
        "server/recovery", "server/round", "server/durability/images",
        "server/durability/records")),
    "server/exchange": Room(COMMON + (
        SAFETENSORS, "server/snapshot", "server/durability/images", "server/durability/records",
        "server/optim", "server/simd"), ("absl/", "zlib.h")),
    "server/quota": Room(("common/base", "common/text")),
    # server/quota: the limits that a quota file says, as plain values.
    "server/config": Room(
        ("common/base", "common/text", "common/faults", "server/quota", CONFIG),
        ("absl/", "yaml-cpp/") + PROTOBUF),
    "server/jobs": Room(COMMON + (
        "server/engine", "server/recovery", "server/round", "server/quota", "server/snapshot",
        "server/exchange", "server/durability", "server/meta")),
    "server/operator": Room(COMMON + (
        "server/home", "server/jobs", "server/recovery", "server/round", "server/snapshot",
        "server/exchange", "server/durability/images", "server/durability/records")),
    "server/home": Room(COMMON + (
        "server/jobs", "server/round", "server/quota")),
    "server/directory": Room(COMMON + (
        "server/home", "server/operator", "server/jobs", "server/round",
        "server/quota")),
    "server/security": Room(
        ("common/base", "common/threads", "common/system", "common/metrics", "common/security")),
    # server/net: one accept loop for both ports.
    "server/admin": Room(COMMON + ("server/net",), ("absl/", "prometheus/")),
    "server/net": Room(COMMON, ("absl/", "openssl/")),
    # The machine under a server.
    "server/host": Room(
        ("common/base", "common/text", "common/threads", "common/io", "common/metrics", CONFIG)),
    # The server's end of a call, and the calls with one answer: without gRPC.
    "server/stream": Room(COMMON + (WIRE, "proto/convert"), ("absl/",) + PROTOBUF),
    # common/tls: why a handshake failed.
    "server/rpc": Room(
        COMMON + ("server/stream", "server/net", "server/security", TLS, WIRE, CONFIG,
                  "proto/convert"),
        ("absl/",) + GRPC + PROTOBUF),
    "server/convert": Room(
        COMMON + ("server/operator", "server/jobs", "server/round", "server/quota", WIRE,
                  "proto/convert")),
    # Over server/stream: it knows no gRPC.
    "server/peer": Room(
        COMMON + ("server/stream", "server/convert", "server/jobs", "server/security", WIRE,
                  "proto/convert")),
    # Over server/stream: the services know no gRPC.
    "server/service": Room(
        COMMON + ("server/stream", "server/convert", "server/peer", "server/directory",
                  "server/round", "server/security", "server/host", WIRE, "proto/convert")),
    "server/status": Room((TYPES, "common/text", WIRE), ("absl/",) + PROTOBUF),
    "server": Room(
        COMMON + SERVER_ROOMS + PORT_ROOMS + (TLS, WIRE, CONFIG, "proto/convert"),
        ("absl/",) + GRPC + PROTOBUF),
    PUBLIC_CLIENT: Room((TYPES,)),
    "client/device": Room(("common/base", "common/tensor")),
    "client/device/cuda": Room(("client/device",), ("cuda",)),
    "client/collective": Room(("common/base", "common/tensor", "client/device")),
    "client/aio": Room(("common/base", "common/threads", "common/io")),
    # The wire and its clock: gRPC is one transport of several.
    "client/cpp/transport": Room(COMMON + (WIRE, "proto/convert"), ("absl/",) + GRPC + PROTOBUF),
    # A trainer's job as plain values, and the memory that it lends to a round.
    "client/cpp/job": Room(
        COMMON + (WIRE, "proto/convert", PUBLIC_CLIENT, "client/device", "client/cpp/transport"),
        ("absl/",)),
    "client/cpp/session": Room(
        COMMON + (WIRE, "proto/convert", PUBLIC_CLIENT, "client/cpp/transport",
                  "client/cpp/job"), ("absl/",)),
    "client/cpp/attach": Room(
        COMMON + (WIRE, "proto/convert", PUBLIC_CLIENT, "client/cpp/transport",
                  "client/cpp/job", "client/cpp/session"), ("absl/",)),
    "client/python": Room(
        (PUBLIC_CLIENT, TYPES, "client/aio", "client/collective", "client/device", "common/base",
         "common/text", "common/io", "common/tensor", SAFETENSORS),
        ("absl/", "nanobind/", "Python.h")),
    "examples": Room((PUBLIC_CLIENT,)),
    "tools": Room(
        ("common/base", "common/text", "common/system", "tools/ctl", "tools/commands"),
        THIRD_PARTY),
    "tools/ctl": Room(EVERYTHING, THIRD_PARTY),
    "tools/commands": Room(EVERYTHING + ("tools/ctl",), THIRD_PARTY),
    "tools/host": Room(EVERYTHING + ("tools/ctl",), THIRD_PARTY),
    "tools/reference": Room(EVERYTHING + ("tools/ctl",), THIRD_PARTY),
    "bench/parts": Room(EVERYTHING, THIRD_PARTY),
    "bench/kernel": Room(EVERYTHING + ("bench/parts",), THIRD_PARTY),
    "bench/round": Room(EVERYTHING + ("bench/parts",), THIRD_PARTY),
    "bench/storage": Room(EVERYTHING + ("bench/parts",), THIRD_PARTY),
    "tests": Room(EVERYTHING + TOOLS, THIRD_PARTY),
}
# Rooms whose subfolders are rooms of their own.
FLAT_ROOMS = ("server", "tools")

# The pure core: the same objects run under gRPC, under a seeded simulator and under replay, so
# nothing in them may depend on threads, time, chance, the system or the order of a hash table.
PURE_CORE = (
    "common/job/", "common/policy/", "common/rendezvous/",
    "server/home/attach_barrier.", "server/home/epoch_change.",
    "server/home/home_errors.", "server/home/home_growth.", "server/home/home_job.",
    "server/home/home_job_epochs.", "server/home/home_types.",
    "server/home/seating.", "server/home/waiting_room.", "server/quota/amounts.",
    "server/quota/tenant_ledger.", "server/round/contributor_table.", "server/round/round_begins.",
    "server/round/round_fsm.", "server/round/round_fsm_state.")
PURE_BANS = (
    "thread", "mutex", "shared_mutex", "atomic", "condition_variable", "future", "random",
    "fstream", "iostream", "ctime", "time.h", "unistd.h", "fcntl.h", "sys/", "unordered_map",
    "unordered_set", "absl/container/flat_hash", "absl/container/node_hash", "absl/random/",
    "absl/synchronization/", "absl/time/clock.h", "common/base/sync.h", "common/threads/",
    "common/base/clock.h", "common/base/log.h", "common/io/")
PURE_TOKENS = re.compile(
    r"\bstd::(?:jthread|thread|mutex|atomic|condition_variable|random_device|mt19937)\w*"
    r"|\b(?:Mutex|MutexLock|CondVar)\b"
    r"|\b(?:steady|system|high_resolution)_clock\b"
    r"|\b(?:flat|node)_hash_(?:map|set)\b|\bunordered_(?:map|set)\b"
    r"|(?<![\w.>:])(?:std::|::)?"
    r"(?:s?rand|time|clock_gettime|gettimeofday|getenv|f?open|sleep|usleep)\s*\(")

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE)
# ballast_room(NAME room ...) and target_link_libraries(ballast_room ...), with the names inside.
_LIBRARY = re.compile(
    r"\b(ballast_room\s*\(\s*NAME\s+|target_link_libraries\s*\(\s*ballast_)(\w+)([^()]*)\)")
_LINKED = re.compile(r"\bBallast::(\w+)")


def room_of(path):
    """Returns the room (key of ROOMS) that holds a file, or None."""
    name = str(path)
    for room in sorted(ROOMS, key=len, reverse=True):
        if name.startswith(room + "/") and (
                room not in FLAT_ROOMS or "/" not in name[len(room) + 1:]):
            return room
    return None


def included_room(name):
    """Returns the room that an include path leads to, or None when it is none of ours."""
    if name.startswith("ballast/"):
        if name.endswith(".pb.h"):
            return CONFIG if name.startswith("ballast/config/") else WIRE
        if name in INSTALLED_TYPES:
            return TYPES
        return PUBLIC_CLIENT
    return room_of(name)


def _matches(name, entries):
    """Says whether name is one of entries; folders, *_hash and cuda stand for all that follows."""
    return any(name == e or (name.startswith(e) and e.endswith(("/", "_hash", "cuda")))
               for e in entries)


def check_include(room_name, path, name, quoted):
    """Returns why the file at path, which is in room_name, may not include name, or None."""
    room = ROOMS[room_name]
    if _matches(name, room.banned):
        return f"{room_name} is a kernel room and may not include {name}"
    if str(path).startswith(PURE_CORE) and _matches(name, PURE_BANS):
        return f"{path} is pure core (no thread, clock, chance, I/O, hash order): not {name}"
    target = included_room(name)
    if target is not None:
        if target == room_name or target in room.rooms:
            return None
        allowed = ", ".join(room.rooms) or "no other room"
        return f"{room_name} may not include {target} ({name}); it may include {allowed}"
    if _matches(name, THIRD_PARTY):
        if _matches(name, room.libraries):
            return None
        return f"{room_name} may not use the library of {name}"
    if quoted:
        return f'unknown include "{name}": write our headers from the root, as "common/base/sync.h"'
    if "/" in name and not _matches(name, SYSTEM_FOLDERS):
        return f"unknown library header <{name}>: add it to THIRD_PARTY in tools/check_rooms.py"
    return None


def check_cpp(path, text):
    """Yields (line, message) for each broken rule in one C++ file."""
    room_name = room_of(path)
    if room_name is None:
        yield 1, f"{path} is in no room of tools/check_rooms.py: add the room to the table"
        return
    code, _ = source_text.split_cpp(text)
    for match in _INCLUDE.finditer(code):
        name = match.group(1) or match.group(2)
        message = check_include(room_name, path, name, match.group(1) is not None)
        if message:
            yield source_text.line_of(code, match.start()), message
    if str(path).startswith(PURE_CORE):
        without_includes = _INCLUDE.sub(lambda m: " " * len(m.group(0)), code)
        for match in PURE_TOKENS.finditer(without_includes):
            yield source_text.line_of(code, match.start()), (
                f"{path} is pure core (no thread, clock, chance, I/O, hash order): "
                f"not {match.group(0).strip()}")


def check_proto(path, text):
    """Yields (line, message): a .proto file may import only ballast/ and google/protobuf/."""
    code, _ = source_text.split_cpp(re.sub(r'import(\s+public)?\s+"', '#include "', text))
    for match in re.finditer(r'^#include "([^"\n]*)"', code, re.MULTILINE):
        if not match.group(1).startswith(("ballast/", "google/protobuf/")):
            yield source_text.line_of(code, match.start()), (
                f"a .proto file imports only ballast/ and google/protobuf/, not {match.group(1)}")


def check_libraries(build_files):
    """Returns violations in {path: text} of CMakeLists.txt: rooms link only rooms of their rows."""
    folders, links, found = {}, [], []
    for path, text in build_files.items():
        for match in _LIBRARY.finditer(re.sub(r"#.*", lambda m: " " * len(m.group(0)), text)):
            if match.group(1).startswith("ballast_room"):
                folders[match.group(2)] = str(path.parent)
            line = source_text.line_of(text, match.start())
            links += [(path, line, name) for name in _LINKED.findall(match.group(3))]
    for path, line, name in links:
        # The library of a folder may hold the rooms below it, too.
        own, linked = str(path.parent), folders.get(name)
        rows = [room for room in ROOMS if (room + "/").startswith(own + "/")]
        allowed = {own, *rows}.union(*(ROOMS[room].rooms for room in rows))
        if rows and linked and not any((room + "/").startswith(linked + "/") for room in allowed):
            found.append((path, line,
                          f"{own} may not include {linked}: it needs no Ballast::{name}"))
    return found


def _check_of(path):
    # The check of a file, or None when it needs none.
    if str(path).startswith(python_rooms.PACKAGE) and path.suffix == ".py":
        return python_rooms.check
    if path.suffix == ".proto":
        return check_proto
    return check_cpp if source_text.is_cpp(path) else None


def check_tree(root):
    """Returns all violations under root as (path, line, message)."""
    found, build_files = [], {}
    for path in source_text.list_files(root):
        if path.name == "CMakeLists.txt":
            build_files[path] = source_text.read_text(pathlib.Path(root) / path) or ""
        check = _check_of(path)
        if check is None:
            continue
        text = source_text.read_text(pathlib.Path(root) / path)
        if text is None:
            found.append((path, 1, "not a UTF-8 text file"))
            continue
        found += [(path, line, message) for line, message in check(path, text)]
    return found + check_libraries(build_files)


def main():
    """Prints every violation; the exit code is 1 when there is one."""
    parser = argparse.ArgumentParser(description="Checks the room table.")
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parent.parent)
    violations = check_tree(parser.parse_args().root)
    for path, line, message in violations:
        print(f"{path}:{line}: error: {message}")
    print(f"check_rooms: {len(violations)} violations", file=sys.stderr)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
