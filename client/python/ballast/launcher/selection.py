"""Which hosts and slots of a hostfile take part: --include, --exclude, --num-nodes, --num-gpus.

Comes from: launcher.placement. Goes to: launcher.hostfile. The syntax is that of DeepSpeed's
launcher: "NAME[:SLOT[,SLOT...]]", several joined by "@". Thread safety: pure functions.
"""

from __future__ import annotations

import argparse
import dataclasses
import glob
import re
from collections.abc import Sequence

from ballast.launcher.hostfile import Host
from ballast.launcher.servers import UsageError

_PART = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.%-]*)(?::([0-9]{1,4}(?:,[0-9]{1,4})*))?\Z")
_GPUS = "/dev/nvidia[0-9]*"
_WRITE = 'write NAME or NAME:SLOT,SLOT, several joined by "@", such as "node-a@node-b:0,2"'


def selected(hosts: Sequence[Host], options: argparse.Namespace) -> list[Host]:
    """The hosts that take part, in the order of the file, each with its slots.

    UsageError for a text that names none, an absent host or slot, and options that say
    the same twice.
    """
    counts = [n for n in ("num_nodes", "num_gpus", "nproc") if getattr(options, n) is not None]
    filters = [n for n in ("include", "exclude") if getattr(options, n) is not None]
    if len(filters) == 2 or (filters and counts):
        both = " and ".join(f"--{n.replace('_', '-')}" for n in (*filters, *counts)[:2])
        raise UsageError(f"{both} both say which slots take part; leave one of them out")
    if "num_gpus" in counts and "nproc" in counts:
        raise UsageError("--num-gpus counts trainers of each host, and --nproc all; leave one out")
    if options.include is not None:
        return _included(hosts, options.include)
    if options.exclude is not None:
        return _without(hosts, options.exclude)
    return _counted(hosts, options.num_nodes, options.num_gpus)


def local(options: argparse.Namespace) -> Host:
    """This machine, as a host: its slots are those that --include names, or --num-gpus counts, or
    with --exclude its GPUs; else one."""
    slots = options.num_gpus or 1
    if options.exclude is not None:
        slots = max(1, len(glob.glob(_GPUS)))
    for _, named in _parts(options.include, "--include") if options.include else ():
        slots = max(slots, *(slot + 1 for slot in named or (0,)))
    return Host("localhost", slots)


def _parts(text: str, option: str) -> list[tuple[str, tuple[int, ...] | None]]:
    """(host, its slots; None: all). Of user@host the name is host."""
    found = []
    for part in text.split("@"):
        match = _PART.match(part.strip())
        if match is None:
            raise UsageError(f"{option} {text!r}: {part!r} is no host; {_WRITE}")
        slots = match.group(2)
        numbers = None if slots is None else tuple(sorted({int(s) for s in slots.split(",")}))
        found.append((match.group(1), numbers))
    return found


def _named(hosts: Sequence[Host], text: str, option: str) -> dict[str, tuple[int, ...] | None]:
    """By name of a host of the file: the slots that `text` names; None: all."""
    found: dict[str, tuple[int, ...] | None] = {}
    for name, slots in _parts(text, option):
        host = next((h for h in hosts if name in (h.name, h.address)), None)
        if host is None:
            known = ", ".join(h.name for h in hosts)
            raise UsageError(f"{option} {text!r}: there is no host {name}; there are {known}")
        if host.name in found:
            raise UsageError(f"{option} {text!r}: names {name} twice; name each host once")
        for slot in slots or ():
            if slot >= host.slots:
                last = host.slots - 1
                raise UsageError(f"{option} {text!r}: {name} has slots 0..{last}, and no {slot}")
        found[host.name] = slots
    return found


def _included(hosts: Sequence[Host], text: str) -> list[Host]:
    named = _named(hosts, text, "--include")
    return [_only(host, named[host.name]) for host in hosts if host.name in named]


def _without(hosts: Sequence[Host], text: str) -> list[Host]:
    named = _named(hosts, text, "--exclude")
    left = []
    for host in hosts:
        if host.name not in named:
            left.append(host)
        elif named[host.name] is not None:
            slots = tuple(s for s in range(host.slots) if s not in named[host.name])
            left += [_only(host, slots)] if slots else []
    if not left:
        raise UsageError(f"--exclude {text!r} leaves no slot; exclude fewer")
    return left


def _only(host: Host, slots: tuple[int, ...] | None) -> Host:
    if slots is None:
        return host
    return dataclasses.replace(host, slots=len(slots), devices=slots)


def _counted(hosts: Sequence[Host], nodes: int | None, gpus: int | None) -> list[Host]:
    if nodes is not None and nodes > len(hosts):
        there = f"there are {len(hosts)} hosts" if len(hosts) > 1 else "there is one host"
        raise UsageError(f"--num-nodes {nodes}: {there}; name fewer, or more in a --hostfile")
    taken = list(hosts)[:nodes]
    short = next((h for h in taken if gpus is not None and gpus > h.slots), None)
    if short is not None:
        raise UsageError(f"--num-gpus {gpus}: {short.name} has {short.slots} slots; name fewer")
    return taken if gpus is None else [dataclasses.replace(h, slots=gpus) for h in taken]
