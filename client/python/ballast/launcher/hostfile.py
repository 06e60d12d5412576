"""The hosts of a launch, from a hostfile as DeepSpeed's launcher reads one, and trainers' seats.

Comes from: ballast.run. Goes to: launcher.trainers. One line a host, "name slots=N"; "#" begins a
comment. Thread safety: immutable values; reads one file.
"""

from __future__ import annotations

import dataclasses
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from ballast.launcher.servers import UsageError

BYTES_MAX = 1 << 20
TRAINERS_MAX = 1024
# A name that begins with "-" would be an option of ssh.
_LINE = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.@:%-]*)\s+slots=([0-9]{1,9})\Z")
_WRITE = 'write "name slots=N" in a line for each, such as "node-a slots=8"'
LOOPBACKS = ("localhost", "127.0.0.1", "::1")


@dataclasses.dataclass(frozen=True)
class Host:
    """name: as ssh takes it, such as user@node-b. slots: trainers that it has room for. devices:
    the numbers of those slots, where a command line has chosen among them."""

    name: str
    slots: int
    devices: tuple[int, ...] | None = None

    @property
    def address(self) -> str:
        """The name without a user."""
        return self.name.rpartition("@")[2]


@dataclasses.dataclass(frozen=True)
class Seat:
    """Where a trainer runs. host: as ssh takes it; None: this machine. local_world: trainers of
    this launch there. devices: as of its host."""

    rank: int
    host: str | None
    local_rank: int
    local_world: int
    devices: tuple[int, ...] | None = None


def read(path: Path) -> list[Host]:
    """The hosts in the order of the file. UsageError with file:line for an invalid line."""
    try:
        data = path.read_bytes()
        text = data.decode()
    except OSError as error:
        raise UsageError(f"--hostfile {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--hostfile {path}: byte {error.start} is not UTF-8") from None
    if len(data) > BYTES_MAX:
        raise UsageError(f"--hostfile {path}: has {len(data)} bytes; the limit is {BYTES_MAX}")
    found: dict[str, int] = {}  # by name: its line
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.split("#", 1)[0].strip()
        if stripped:
            hosts.append(_host(stripped, f"{path}:{number}", found, number))
    if not hosts:
        raise UsageError(f"--hostfile {path}: has no host; {_WRITE}")
    return hosts


def _host(text: str, place: str, found: dict[str, int], number: int) -> Host:
    match = _LINE.match(text)
    if match is None:
        raise UsageError(f"{place}: {text!r} is no host; {_WRITE}")
    name, slots = match.group(1), int(match.group(2))
    if not 1 <= slots <= TRAINERS_MAX:
        raise UsageError(f"{place}: slots={slots} must be in 1..{TRAINERS_MAX}")
    if name in found:
        raise UsageError(
            f"{place}: {name} stands in line {found[name]} already; write one line with all slots"
        )
    found[name] = number
    return Host(name, slots)


def seats(hosts: Sequence[Host], count: int | None) -> list[Seat]:
    """The first `count` slots in the order of the file; None: all. UsageError where there are
    fewer, or more than a job may have."""
    room = sum(host.slots for host in hosts)
    wanted = room if count is None else count
    if wanted > room:
        raise UsageError(f"--nproc {wanted}: the hostfile has {room} slots; add hosts or slots")
    if wanted > TRAINERS_MAX:
        raise UsageError(
            f"the hostfile has {room} slots, and a job has at most {TRAINERS_MAX} trainers; name "
            "fewer with --nproc"
        )
    result: list[Seat] = []
    for host in hosts:
        local = min(host.slots, wanted - len(result))
        where = None if is_here(host.address) else host.name
        first = len(result)
        result += [Seat(first + i, where, i, local, host.devices) for i in range(local)]
    return result


def is_here(name: str) -> bool:
    """Whether a host's name, or one of its addresses, is this machine's."""
    if name in (*LOOPBACKS, socket.gethostname(), socket.getfqdn()):
        return True
    return any(_is_bindable(family, address) for family, address in _addresses(name))


def address_of(name: str) -> str | None:
    """An address of this machine's name that other machines reach it by; None: there is none."""
    for _, address in _addresses(name):
        if not address.startswith("127.") and address != "::1":
            return address
    return None


def _addresses(name: str) -> list[tuple[int, str]]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [(family, where[0]) for family, _, _, _, where in found]


def _is_bindable(family: int, address: str) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
