"""What `check` says: a finding per key, as text for people and as JSON for programs.

Comes from: ballast.ds_config.check. Goes to: users. Thread safety: immutable.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

from ballast.ds_config.kinds import shown
from ballast.ds_config.row import Verdict
from ballast.errors import Unsupported

JSON_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Finding:
    """One key, or one unknown name.

    path: dotted. code: what kind of finding, for programs: "key" (a key of the table), "unknown",
    "wrong_value", "missing", "auto", "mismatch", "batch", "conflict", "deprecated" or "note".
    place: `file:line:column`, or "" for a default or a dict. effective: the value that counts, as
    JSON has it; None where there is none. origin: where that value comes from. text, instead, see:
    as in row.Outcome.
    """

    path: str
    verdict: Verdict
    text: str
    code: str = "key"
    place: str = ""
    effective: Any = None
    origin: str = ""
    instead: str = ""
    see: str = ""

    def as_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "verdict": self.verdict.value}

    def as_text(self, source: str) -> str:
        """Up to three lines: key and value, why, and what to do. source: the file, which the
        report's first line names."""
        value = f" = {shown(self.effective)}" if self.effective is not None else ""
        origin = f"  ({self.origin})" if self.origin else ""
        place = f"  {self.place.removeprefix(f'{source}:')}" if self.place else ""
        lines = [f"  {_plain(self.path)}{value}{origin}{place}", f"      {self.text}"]
        if self.instead:
            lines.append(f"      instead: {self.instead}")
        if self.see:
            lines.append(f"      see: {self.see}")
        return "\n".join(lines)


def _plain(text: str) -> str:
    """ASCII on one line, whatever the file's names hold."""
    return text if text.isascii() and text.isprintable() else json.dumps(text)


@dataclasses.dataclass(frozen=True)
class Batch:
    """Samples: a round's, a backward pass's, and how many of the latter; None where not known."""

    train: int | None = None
    micro: int | None = None
    accumulation: int | None = None
    world: int | None = None


@dataclasses.dataclass(frozen=True)
class Report:
    """The verdict on one configuration. findings: refusals first, then by verdict, then by path."""

    source: str
    deepspeed: str
    batch: Batch
    findings: tuple[Finding, ...]

    @property
    def refused(self) -> tuple[Finding, ...]:
        """The changes needed before Ballast can follow the configuration."""
        return tuple(f for f in self.findings if f.verdict is Verdict.REFUSED)

    @property
    def unfilled(self) -> tuple[Finding, ...]:
        """Each "auto" that Hugging Face's Trainer fills; no other framework does."""
        return tuple(f for f in self.findings if f.verdict is Verdict.AUTO)

    @property
    def exit_code(self) -> int:
        """0 if nothing is refused, else 1."""
        return 1 if self.refused else 0

    def of(self, path: str) -> tuple[Finding, ...]:
        """The findings about one dotted key."""
        return tuple(f for f in self.findings if f.path == path)

    def count(self, verdict: Verdict) -> int:
        return sum(f.verdict is verdict for f in self.findings)

    def as_json(self) -> str:
        """One JSON object, ASCII. The version grows when a name in it changes its meaning."""
        return json.dumps(
            {
                "version": JSON_VERSION,
                "source": self.source,
                "deepspeed": self.deepspeed,
                "refused": len(self.refused),
                "batch": dataclasses.asdict(self.batch),
                "findings": [finding.as_json() for finding in self.findings],
            },
            indent=2,
            allow_nan=False,
        )

    def as_text(self, all: bool = False) -> str:
        """For people: a summary, the refusals, and a line for each other verdict. all: each
        finding under its verdict."""
        counts = [f"{self.count(v)} {v.value}" for v in _ORDER if self.count(v)]
        lines = [
            f"{_plain(self.source)}, read as DeepSpeed {self.deepspeed}: "
            + (", ".join(counts) or "nothing to say"),
            *self._batch_as_text(),
        ]
        for verdict in _ORDER:
            found = [f for f in self.findings if f.verdict is verdict]
            if found and (all or verdict is Verdict.REFUSED):
                lines += ["", verdict.value, *(f.as_text(self.source) for f in found)]
            elif found:
                paths = ", ".join(dict.fromkeys(_plain(f.path) for f in found))
                lines += ["", f"{verdict.value}: {paths}"]
        if not all and len(self.findings) > len(self.refused):
            lines += ["", "--all shows each key with its value, and why"]
        return "\n".join(lines)

    def _batch_as_text(self) -> list[str]:
        b = self.batch
        if b.train is None or b.micro is None or b.accumulation is None or b.world is None:
            return []
        product = f"{b.micro} x {b.accumulation} x {b.world}"
        return [f"batch {b.train} = {product}: fits --world {b.world}"]


def refusal(source: object, findings: Iterable[Finding]) -> Unsupported | None:
    """One error with all refused keys of `source`; None where there is none."""
    return refusal_of(source, [f"{f.path}: {f.text}; {f.instead}" for f in findings])


def refusal_of(source: object, lines: Sequence[str]) -> Unsupported | None:
    """As refusal(), from a line for each key."""
    if not lines:
        return None
    return Unsupported("\n  ".join([f"{len(lines)} keys of {source} are refused:", *lines]))


_ORDER = (
    Verdict.REFUSED,
    Verdict.AUTO,
    Verdict.SERVICE,
    Verdict.SDK,
    Verdict.ALONGSIDE,
    Verdict.NO_EFFECT,
)


def ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    """As Report.findings wants them."""
    return tuple(sorted(findings, key=lambda f: (_ORDER.index(f.verdict), f.path, f.code)))
