"""Notices parameters that a script changed between two rounds, and warns of the consequence.

torch counts operations in place, and new memory shows by its address: both are examined in every
round, and only then are bits compared with the service's. Writes through `p.data`, numpy or C++
leave no such trace. A checksum finds them: in the first rounds, in every hundredth, and in all
once it has found one. It is formed where the parameter lies; 8 bytes of each go to the CPU.
Comes from: ballast.torch.membership, .rounds. Goes to: ballast.session.
Thread safety: used by one thread at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from ballast.config import JobConfig
from ballast.errors import InitMismatch, WeightsEdited, warn
from ballast.session import Session
from ballast.torch.manifest import Entry

ROUNDS, EVERY = 10, 100  # examined: the first ROUNDS rounds, and every EVERYth
_ROW = 4096  # words of a checksum's row
_COMPARED = 1 << 26  # elements fetched at a time, to be compared
_PAGE = "docs/optimizers.md#weights-that-a-script-changes"
_UNTRACED = "without a trace in torch (p.data, numpy or C++)"
_OWN_ROWS = (
    "With equal seeds it is what each trainer has changed by itself: nn.Embedding(max_norm=) "
    "scales the rows of its own batch in each forward pass. Leave max_norm= out, and scale all "
    f"rows after step(), then call opt.upload_weights() ({_PAGE})"
)
# The most frequent causes of such changes.
_OFTEN = {
    "in place": "nn.Embedding(max_norm=) does so in each forward pass",
    "by giving it other memory": "torch.nn.utils.prune.remove() does so",
    _UNTRACED: "Lookahead and other wrappers of optimizers do so",
}


class EditWatch:
    """Looks at the parameters of one optimizer between its rounds."""

    def __init__(self) -> None:
        self._count = 0  # times between two rounds
        self._missed = False  # whether one of them was not examined
        self._always = False
        self._warned = False
        self._looking = True

    def begin(self, entries: Sequence[Entry]) -> None:
        """A round has ended, and the parameters hold the service's values."""
        self._count += 1
        self._looking = self._always or self._count <= ROUNDS or self._count % EVERY == 0
        self._missed |= not self._looking
        for entry in entries:
            entry.checksum = None
        self.join(entries)

    def join(self, entries: Sequence[Entry]) -> None:
        """As begin(), for tensors new in the job."""
        if not self._looking:
            return
        for entry, value in zip(entries, _checksums([e.param for e in entries])):
            entry.checksum = value

    def settle(
        self, entries: Sequence[Entry], session: Session, arrays: int, config: JobConfig
    ) -> bool:
        """Before a round: whether changed parameters are to be uploaded first.

        arrays: state arrays of the job. Raises WeightsEdited, naming a parameter, where a script
        must say what it wants: with several trainers, where the job may have been resumed or have
        16-bit parameters, and when earlier changes may have been lost.
        """
        changed = [(e, how) for e in entries if not e.left and (how := _traced(e))]
        if changed:
            changed = _different(changed, entries, session, arrays)
        known = [e for e in entries if e.checksum is not None and not e.left and not _traced(e)]
        now = _checksums([e.param for e in known])
        untraced = [e for e, value in zip(known, now) if e.checksum != value]
        lost = bool(untraced) and self._missed and not self._always
        self._always |= bool(untraced)
        changed += [(e, _UNTRACED) for e in untraced]
        if not changed:
            return False
        entry, how = changed[0]
        if lost or not _alone(entries, config) or not all(_fits(e) for e, _ in changed):
            raise WeightsEdited(_refusal(entry, how, lost), job=config.job)
        if not self._warned:
            self._warned = True
            warn(
                f"parameter {entry.name!r} was changed {how} between two rounds. Such changes are "
                "uploaded before the next one, by a round that opt.round counts and opt.opt_step "
                f"does not; opt.upload_weights() does it without this warning ({_PAGE})"
            )
        return True


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Adds to an InitMismatch how trainers come by different weights without a seed."""
    try:
        yield
    except InitMismatch as error:
        raise error.followed_by(_OWN_ROWS) from None


def _alone(entries: Sequence[Entry], config: JobConfig) -> bool:
    # Several trainers must decide alike. A resumed script counts rounds. And an upload
    # would round the fp32 masters of all 16-bit parameters.
    single = config.world_size == 1 and not config.variable_world
    return single and config.resume == "never" and all(e.dtype == torch.float32 for e in entries)


def _refusal(entry: Entry, how: str, lost: bool) -> str:
    past = (
        ". Earlier changes of this kind may have been overwritten: only the first "
        f"{ROUNDS} rounds and every {EVERY}th are looked at until one is found" * lost
    )
    return (
        f"parameter {entry.name!r} was changed {how} after the last round, but its true value "
        f"lives in the service ({_OFTEN[how]}){past}. Call opt.fetch_weights() to drop the change, "
        "or opt.upload_weights() on all trainers to make it the service's: with equal changes on "
        f'all, or with init="broadcast" those of the lowest rank ({_PAGE})'
    )


def _traced(entry: Entry) -> str:
    p = entry.param
    if p.data_ptr() != entry.address:
        return "by giving it other memory"
    return "in place" if p._version != entry.version else ""


def _fits(entry: Entry) -> bool:
    p = entry.param
    return (p.dtype, p.shape, p.device) == (entry.dtype, entry.shape, entry.device)


def _different(
    changed: list[tuple[Entry, str]], entries: Sequence[Entry], session: Session, arrays: int
) -> list[tuple[Entry, str]]:
    # Those whose bits are not the service's; the others are in agreement with it again.
    left, now, elements = [], [], 0
    for i, (entry, how) in enumerate(changed):
        if not _fits(entry):
            left.append((entry, how))
            continue
        now.append((entry, how))
        elements += entry.param.numel()
        if elements >= _COMPARED or i == len(changed) - 1:
            left += _of_other_bits(now, entries, session, arrays)
            now, elements = [], 0
    return left + _of_other_bits(now, entries, session, arrays)


def _of_other_bits(
    changed: list[tuple[Entry, str]], entries: Sequence[Entry], session: Session, arrays: int
) -> list[tuple[Entry, str]]:
    if not changed:
        return []
    masters = {
        id(e): torch.empty(e.shape, dtype=torch.float32, device="cpu") for e, _ in changed
    }
    here = [masters[id(e)].data_ptr() if id(e) in masters else 0 for e in entries]
    if any(here):
        session.fetch_state([here, *([0] * len(here) for _ in range(arrays - 1))], keep=masters)
    left = []
    for entry, how in changed:
        theirs = masters[id(entry)].to(entry.dtype)
        if torch.equal(_bits(theirs), _bits(entry.param).cpu()):
            entry.agree()
        else:
            left.append((entry, how))
    return left


def _bits(p: torch.Tensor) -> torch.Tensor:
    integers = torch.int32 if p.element_size() == 4 else torch.int16
    return p.detach().contiguous().reshape(-1).view(integers)


def _checksums(parameters: Sequence[torch.Tensor]) -> list[int]:
    values = [checksum(p) for p in parameters]
    of_device: dict[torch.device, list[torch.Tensor]] = {}
    for value in values:
        of_device.setdefault(value.device, []).append(value)
    numbers = {device: iter(torch.stack(them).tolist()) for device, them in of_device.items()}
    return [next(numbers[value.device]) for value in values]


def checksum(p: torch.Tensor) -> torch.Tensor:
    """One int64 of the bits of `p`, on its device: sums of rows of 32 KiB, times odd numbers.

    p: of 16 or 32 bits; a strided one is copied. Equal bits have equal sums, whatever the order in
    which they are added. Two changes within a row may cancel each other.
    """
    bits = _bits(p)
    if bits.storage_offset() * bits.element_size() % 8:
        bits = bits.clone()
    whole = bits.numel() - bits.numel() % (8 // bits.element_size())
    words = bits[:whole].view(torch.int64)
    rows = words[: words.numel() - words.numel() % _ROW]
    # Short enough for one thread: here several are slower on a host busy with other work.
    pieces = rows.split(7 * _ROW) if p.device.type == "cpu" and rows.numel() else (rows,)
    sums = [piece.view(-1, _ROW).sum(1) for piece in pieces]
    values = torch.cat([*sums, words[rows.numel() :], bits[whole:].to(torch.int64)])
    odd = torch.arange(1, 2 * values.numel() + 1, 2, device=values.device)
    return (values * odd).sum()
