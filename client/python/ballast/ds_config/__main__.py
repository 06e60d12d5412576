"""python -m ballast.ds_config FILE [--all] [-o text|json|yaml] [--world N] [--arguments FILE]

Prints the verdict on a ds_config.json. The arguments are those of Hugging Face's Trainer, as JSON.
`ballastctl ds check` calls main(), too.

Exit code: 0 if nothing is refused, 1 if something is, 2 if a file cannot be read or the command
line is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ballast.ds_config.arguments import Arguments
from ballast.ds_config.check import check
from ballast.ds_config.source import load
from ballast.ds_config.yaml_form import yaml_of
from ballast.errors import BadArgument


def _world(text: str) -> int:
    if text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, 1 or more")


def parser(program: str) -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog=program,
        allow_abbrev=False,
        description="Says what Ballast does with each key of a ds_config.json.",
        epilog="Exit code: 0 if nothing is refused, 1 if something is, 2 if a file cannot be read.",
    )
    p.add_argument("file", metavar="FILE", help="ds_config.json, or its urlsafe base64")
    p.add_argument(
        "-o",
        "--output",
        choices=("text", "table", "json", "yaml"),
        default="text",
        help="how to print it: text (table is the same), json or yaml (text)",
    )
    p.add_argument(
        "--all",
        action="store_true",
        help="as text: each key with its value and where that comes from, in place of a line for "
        "each verdict but refusals",
    )
    p.add_argument("--world", type=_world, metavar="N", help="trainers, for the batch sizes")
    p.add_argument(
        "--arguments",
        metavar="ARGUMENTS.json",
        help='fills "auto": what TrainingArguments.to_json_string() gives, with '
        '"num_training_steps" and "hidden_size" added where they are known',
    )
    return p


def main(
    arguments: Sequence[str] | None = None, program: str = "python -m ballast.ds_config"
) -> int:
    """Returns the exit code; SystemExit(2) for a wrong command line. program: as texts name it."""
    options = parser(program).parse_args(arguments)
    try:
        given = None
        if options.arguments is not None:
            given = Arguments.of(load(Path(options.arguments)).values)
        report = check(options.file, options.world, given)
    except BadArgument as error:
        print(f"ds_config: {error.message}", file=sys.stderr)
        return 2
    forms = {"json": report.as_json, "yaml": lambda: yaml_of(json.loads(report.as_json()))}
    _print(forms.get(options.output, lambda: report.as_text(options.all))())
    return report.exit_code


def _print(text: str) -> None:
    """Prints. A reader that closes the pipe, such as `head`, has read enough: that is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
