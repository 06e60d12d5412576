"""Where the parts of a launch run: trainers by rank, servers, torch.distributed's rendezvous.

Comes from: ballast.run. Goes to: launcher.hostfile. Thread safety: immutable values; reads the
hostfile and asks for names.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence

from ballast import config
from ballast.launcher import hostfile, selection, trainers
from ballast.launcher.hostfile import Host, Seat
from ballast.launcher.servers import UsageError

_LOOPBACK = "127.0.0.1"
# torchrun's and DeepSpeed's, for a first host whose free ports are not known here.
_PORT = 29500
_INSECURE = "BALLAST_LISTEN_INSECURE_NETWORK"


@dataclasses.dataclass(frozen=True)
class Placement:
    """seats: of all trainers, by rank. address: where servers listen and rank 0 is found.
    endpoints: running servers; empty: some are started here."""

    seats: Sequence[Seat]
    address: str
    port: int
    endpoints: Sequence[str]

    @property
    def hosts(self) -> dict[int, str]:
        """The hosts other than this machine, by rank."""
        return {seat.rank: seat.host for seat in self.seats if seat.host is not None}


def placed(options: argparse.Namespace, environ: Mapping[str, str]) -> Placement:
    """Reads the hostfile, if there is one, and BALLAST_ENDPOINTS.

    Raises UsageError for options that do not fit, a hostfile that cannot be used, servers that the
    other hosts could not reach; BadArgument for BALLAST_ENDPOINTS without valid endpoints.
    """
    endpoints = _given(options, environ)
    if options.hostfile is None:
        return _local(options, endpoints)
    hosts = selection.selected(hostfile.read(options.hostfile), options)
    seats = hostfile.seats(hosts, options.nproc)
    here = seats[0].host is None
    if not endpoints and not here:
        raise UsageError(
            f"the first host of {options.hostfile}, {hosts[0].name}, is not this machine, where "
            "the servers would start; run ballast-run there, or start servers and name them in "
            "BALLAST_ENDPOINTS"
        )
    address = options.master_addr or _address(hosts[0], seats)
    if not endpoints and address not in hostfile.LOOPBACKS:
        _check_insecure(address, environ)
    port = options.master_port or (trainers.free_port() if here else _PORT)
    return Placement(seats, address, port, endpoints)


def _given(options: argparse.Namespace, environ: Mapping[str, str]) -> Sequence[str]:
    """Servers that run already; none: ballast-run starts some."""
    endpoints = config.endpoints_of(None, environ) if environ.get("BALLAST_ENDPOINTS") else ()
    if endpoints and options.servers is not None:
        raise UsageError(
            f"--servers {options.servers}, and BALLAST_ENDPOINTS names running servers; leave one "
            "of the two out"
        )
    return endpoints


def _local(options: argparse.Namespace, endpoints: Sequence[str]) -> Placement:
    for name in ("master_addr", "master_port"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} is for --hostfile; leave it out")
    (host,) = selection.selected([selection.local(options)], options)
    count = options.nproc or host.slots
    seats = [Seat(rank, None, rank, count, host.devices) for rank in range(count)]
    return Placement(seats, _LOOPBACK, trainers.free_port(), endpoints)


def _address(first: Host, seats: Sequence[Seat]) -> str:
    """By which the other seats reach the first host."""
    if seats[0].host is not None:
        return first.address
    if all(seat.host is None for seat in seats):
        return _LOOPBACK
    found = hostfile.address_of(first.address)
    if found is None:
        raise UsageError(
            f"{first.address}, the first host, has no address here that other hosts reach it by; "
            "name one with --master-addr"
        )
    return found


def _check_insecure(address: str, environ: Mapping[str, str]) -> None:
    if environ.get(_INSECURE, "").lower() != "true":
        raise UsageError(
            f"the servers would listen on {address} in plaintext, where every process that reaches "
            f"them can read and change the weights. Set {_INSECURE}=true on a network that you "
            "trust, or start servers with certificates and name them with BALLAST_ENDPOINTS "
            "(docs/security.md)"
        )
