"""A ds_config as the engine uses it: every value that counts, or a refusal that says all.

Comes from: ballast.deepspeed.initialize. Goes to: ballast.ds_config. Thread safety: reads one file.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ballast.deepspeed.unbuilt import unbuilt
from ballast.ds_config import launched
from ballast.ds_config.check import effective
from ballast.ds_config.errors import DsConfigError
from ballast.ds_config.report import refusal, refusal_of
from ballast.ds_config.row import Verdict
from ballast.ds_config.source import Config
from ballast.errors import BadArgument, Unsupported


class RefusedConfig(Unsupported, DsConfigError):
    """Refused keys of a configuration; DeepSpeed's class of errors of it, too."""

    def __init__(self, source: str, text: str) -> None:
        Unsupported.__init__(self, text)
        self.source, self.line, self.column, self.text = source, 0, 0, text

    def __reduce__(self) -> Any:
        return type(self), (self.source, self.text)


class Settings:
    """Values by dotted key, defaults filled in.

    Raises DsConfigError for a configuration that cannot be read, and Unsupported when a key is
    refused: the text has each refused key, why, and what to write instead.
    """

    def __init__(self, config: Config, world: int) -> None:
        report, self._values = effective(config, world)
        error = refusal(report.source, (*report.refused, *report.unfilled))
        error = error or refusal_of(report.source, unbuilt(self._values))
        if error is not None:
            raise RefusedConfig(str(report.source), error.message)
        self.batch = report.batch
        # Switched on, and left to the script.
        self.alongside = [
            finding.path
            for finding in report.findings
            if finding.verdict is Verdict.ALONGSIDE and finding.effective is True
        ]

    def __getitem__(self, path: str) -> Any:
        return self._values[path]

    def under(self, section: str) -> dict[str, Any]:
        """The values of one section, by the rest of their keys."""
        start = f"{section}."
        return {p.removeprefix(start): v for p, v in self._values.items() if p.startswith(start)}


def config_of(args: Any, config: Config | None, config_params: Config | None) -> Config:
    """The one configuration among initialize()'s arguments, or ballast-run's.

    BadArgument for none, several, or one that differs from ballast-run's.
    """
    names = ("deepspeed_config", "deepscale_config")  # The second is the name of 2020.
    named = [args.get(n) if isinstance(args, Mapping) else getattr(args, n, None) for n in names]
    given = [value for value in (config, config_params, *named) if value is not None]
    if len(given) <= 1:
        found = launched.chosen(given[0] if given else None, "initialize()")
        if found is not None:
            return found
    what = "no ds_config was given" if not given else "more than one ds_config was given"
    raise BadArgument(
        f"{what}: pass config= (a path or a dict) to initialize(), --deepspeed_config in args, or "
        "--ds-config to ballast-run"
    )


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds --deepspeed and --deepspeed_config, as DeepSpeed does; LOCAL_RANK names the trainer."""
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configurations, read by Ballast")
    group.add_argument("--deepspeed", action="store_true", help="accepted; nothing depends on it")
    group.add_argument("--deepspeed_config", metavar="FILE", help="the ds_config.json")
    return parser
