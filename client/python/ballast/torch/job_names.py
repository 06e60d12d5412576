"""A job's names of its tensors, where they differ from the model's by the prefixes of wrappers.

torch.compile puts "_orig_mod." in front of the names of the compiled module, a whole model or a
layer, and DDP "module." in front of all. A job begun with such a model may be continued without,
and the other way round: the names are then the job's on the wire, and the model's
everywhere else.
Comes from: ballast.torch.membership. Goes to: ballast.session (TensorSpec).
Thread safety: used by one thread at a time.
"""

from __future__ import annotations

import re

from ballast.errors import SpecMismatch
from ballast.session import TensorSpec
from ballast.torch.manifest import Entry

_WRAPPERS = ("_orig_mod", "module")
_WRAPPED = re.compile(r"((_orig_mod|module)\.)*")
# As the servers say it (common/job/job_spec.cc).
_NAMED = re.compile(r'tensor (\d+) \("(.*)"\) is named "(.*)" here')
_CONTINUES = "cannot continue job"


class JobNames:
    """Finds out the job's names from the servers' refusals, one wrapped module at a time."""

    def __init__(self) -> None:
        self._rules: list[tuple[str, str]] = []  # (the model's beginning, the job's)
        self._names: dict[str, str] = {}  # by the model's
        self._first = 0  # tensors before this one have the job's names

    def specs(self, entries: list[Entry]) -> list[TensorSpec]:
        """The specs of the entries for the servers."""
        return [
            spec._replace(name=self.of(spec.name), aliases=tuple(map(self.of, spec.aliases)))
            for spec in (entry.spec() for entry in entries)
        ]

    def of(self, name: str) -> str:
        """The job's name of the tensor that the model calls `name`."""
        if name not in self._names:
            self._names[name] = name
            for ours, theirs in self._rules:
                self._rename(name, ours, theirs)
        return self._names[name]

    def follow(self, refused: SpecMismatch, entries: list[Entry]) -> bool:
        """Whether only the names were refused, and specs() has learned the job's.

        entries: those of the refused attach. Where names differ by prefixes, and cannot be learned,
        raises `refused` with the prefixes.
        """
        found = _NAMED.search(refused.message)
        if found is None or _plain(found[2]) != _plain(found[3]):
            if self._rules:
                raise _explained(refused) from None
            return False
        number, theirs, ours = int(found[1]), found[2], found[3]
        if _CONTINUES not in refused.message or number < self._first:
            raise _explained(refused) from None
        self._first = number + 1
        names = [name for entry in entries[number:] for name in (entry.name, *entry.aliases)]
        # The wrapper of the whole model, followed by that of this tensor's module.
        whole = (_leading(ours), _leading(theirs))
        ours = whole[1] + ours[len(whole[0]):]  # fmt: skip
        while ours and ours.rpartition(".")[2] == theirs.rpartition(".")[2]:
            ours, theirs = ours.rpartition(".")[0], theirs.rpartition(".")[0]
        for rule in (whole, (_beginning(ours), _beginning(theirs))):
            if rule[0] != rule[1]:
                self._rules.append(rule)
                for name in names:
                    self._rename(name, *rule)
        return True

    def _rename(self, name: str, ours: str, theirs: str) -> None:
        now = self._names[name]
        if now.startswith(ours):
            self._names[name] = theirs + now[len(ours):]


def _leading(name: str) -> str:
    return _WRAPPED.match(name)[0]


def _plain(name: str) -> list[str]:
    return [part for part in name.split(".") if part not in _WRAPPERS]


def _beginning(path: str) -> str:
    return path + "." if path else ""


def _explained(refused: SpecMismatch) -> SpecMismatch:
    return refused.followed_by(
        'The names differ by the prefix of a wrapper ("_orig_mod." of torch.compile, "module." of '
        "DDP): pass named_parameters() of the model without it, or wrap the model on all trainers "
        "as it was when the job began"
    )
