"""python -m ballast.ds_config FILE [-o text|json] [--world N]: the verdict on a ds_config.json.

Exit code: 0 if nothing is refused, 1 if something is, 2 for a file that cannot be read or wrong
usage.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ballast.ds_config.check import check
from ballast.ds_config.errors import DsConfigError


def _world(text: str) -> int:
    if text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, 1 or more")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m ballast.ds_config",
        allow_abbrev=False,
        description="Says what Ballast does with each key of a ds_config.json.",
        epilog="Exit code: 0 if nothing is refused, 1 if something is, 2 if FILE cannot be read.",
    )
    p.add_argument("file", metavar="FILE", help="ds_config.json, or its urlsafe base64")
    p.add_argument("-o", choices=("text", "json"), default="text", help="how to print it (text)")
    p.add_argument("--world", type=_world, metavar="N", help="trainers, for the batch sizes")
    return p


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        report = check(options.file, options.world)
    except DsConfigError as error:
        print(f"ds_config: {error.message}", file=sys.stderr)
        return 2
    _print(report.as_json() if options.o == "json" else report.as_text())
    return report.exit_code


def _print(text: str) -> None:
    """A reader that closes the pipe, such as `head`, has what it wants: that is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
