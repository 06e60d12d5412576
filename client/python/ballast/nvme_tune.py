"""ballast-nvme-tune: ds_nvme_tune's flags for `ballastctl tune nvme`.

Comes from: the shell. Goes to: ballastctl, which measures. Prints what ds_nvme_tune prints: the
best rates and an "aio" section, with numbers and booleans where DeepSpeed's tuner has texts.
Exit code: 0; 2 for wrong flags; else that of ballastctl.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ballast.launcher.servers import LaunchError, find_ballastctl

_UNITS = {"": "", "B": "", "K": "KiB", "M": "MiB", "G": "GiB"}
_SECONDS = 0.3  # of one measurement; --loops multiplies it
_LOG = "ballast_nvme_tune.json"


class UsageError(Exception):
    """A flag, or the file of --sweep_config, is wrong; the text says what to write."""


def parser() -> argparse.ArgumentParser:
    """ds_nvme_tune's flags, with its defaults (deepspeed/nvme/perf_run_sweep.py, 0.19.8)."""
    p = argparse.ArgumentParser(
        prog="ballast-nvme-tune",
        allow_abbrev=False,
        description="Measures disks as `ballastctl tune nvme` does, by ds_nvme_tune's flags.",
    )
    p.add_argument("--nvme_dir", nargs="+", required=True, metavar="DIR", help="on each disk")
    p.add_argument("--sweep_config", metavar="FILE", help="JSON: block_size, queue_depth")
    p.add_argument("--no_read", action="store_true", help="leave reads out")
    p.add_argument("--no_write", action="store_true", help="leave writes out")
    p.add_argument("--io_size", default="400M", metavar="SIZE", help="of the temporary file")
    p.add_argument("--gpu", action="store_true", help="refused: there are no GPU transfers")
    p.add_argument("--gds", action="store_true", help="refused: there is no GPUDirect Storage")
    p.add_argument("--flush_page_cache", action="store_true", help="has no effect")
    p.add_argument("--log_dir", default="./_aio_bench_logs", metavar="DIR", help="for the results")
    p.add_argument("--loops", type=int, default=1, help=f"measures {_SECONDS} s x LOOPS each")
    p.add_argument("--verbose", action="store_true", help="print every measurement")
    return p


def _size(text: object) -> str:
    """A size as ballastctl takes it: "400M" -> "400MiB". DeepSpeed's units are powers of 1024."""
    match = re.fullmatch(r"([0-9]+)([KMG]?)i?B?", str(text))
    if match is None:
        raise UsageError(f"{text!r} is no size; write a number with K, M or G, such as 400M")
    return match[1] + _UNITS[match[2]]


def _sweep(path: str) -> list[str]:
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--sweep_config {path}: {error}") from None
    if not isinstance(config, dict):
        raise UsageError(f"--sweep_config {path}: write an object with lists, such as block_size")
    flags = []
    known = (("block_size", "--block-size", _size), ("queue_depth", "--queue-depth", str))
    for key, flag, form in known:
        values = config.pop(key, None)
        if values is None:
            continue
        if not isinstance(values, list) or not values:
            raise UsageError(f"--sweep_config {path}: {key} is {values!r}; write a list")
        flags += [flag, ",".join(form(value) for value in values)]
    if config:
        _say(f"--sweep_config {path}: no effect: {', '.join(sorted(config))}")
    return flags


def command(arguments: argparse.Namespace, program: str) -> list[str]:
    """The call of ballastctl for ds_nvme_tune's flags. Raises UsageError."""
    if arguments.gpu or arguments.gds:
        flag = "--gds" if arguments.gds else "--gpu"
        raise UsageError(
            f"{flag}: Ballast moves no bytes between GPUs and disks; leave it out: the disk is "
            "measured with memory, as the servers and aio_handle use it"
        )
    if arguments.loops < 1:
        raise UsageError(f"--loops {arguments.loops}; use 1 or more")
    words = [program, "tune", "nvme", "-o", "json", "--io-size", _size(arguments.io_size)]
    words += ["--seconds", str(_SECONDS * arguments.loops)]
    for directory in arguments.nvme_dir:
        words += ["--path", directory]
    for flag, given in (("--no-read", arguments.no_read), ("--no-write", arguments.no_write)):
        words += [flag] if given else []
    if arguments.sweep_config is not None:
        words += _sweep(arguments.sweep_config)
    if arguments.flush_page_cache:
        _say("--flush_page_cache has no effect: nothing that is measured comes from the page cache")
    return words


def text_of(results: Sequence[Mapping[str, Any]], verbose: bool) -> str:
    """The text to print: each disk's rates, and the "aio" section of the slowest disk.

    All disks get one section, so that none has more under way than it needs.
    """
    lines = []
    chosen = [(_chosen(result), result) for result in results]
    for sample, result in chosen:
        lines.append(f"{result['path']}:")
        if verbose:
            lines += [f"  {json.dumps(one)}" for one in result["samples"]]
        read, write = sample["read_mb_s"] / 1e3, sample["write_mb_s"] / 1e3
        lines.append(f"Best performance (GB/sec): read = {read:5.2f}, write = {write:5.2f}")
    slowest = min(chosen, key=lambda pair: _score(pair[0]))[1]
    lines.append(json.dumps({"aio": slowest["aio"]}, indent=3))
    return "\n".join(lines)


def _chosen(result: Mapping[str, Any]) -> Mapping[str, Any]:
    aio = result["aio"]
    wanted = (aio["block_size"], aio["queue_depth"])
    return next(s for s in result["samples"] if (s["block_size"], s["queue_depth"]) == wanted)


def _score(sample: Mapping[str, Any]) -> float:
    return sample["mixed_mb_s"] or sample["read_mb_s"] + sample["write_mb_s"]


def _say(text: str) -> None:
    print(f"ballast-nvme-tune: {text}", file=sys.stderr)


def main(words: Sequence[str] | None = None) -> int:
    """The program. Returns its exit code."""
    arguments = parser().parse_args(words)
    try:
        call = command(arguments, str(find_ballastctl(os.environ)))
        Path(arguments.log_dir).mkdir(parents=True, exist_ok=True)
    except (UsageError, LaunchError, OSError) as error:
        _say(str(error))
        return 2
    if arguments.verbose:
        _say(" ".join(call))
    print(f"Running DeepNVMe performance tuning on {arguments.nvme_dir}", flush=True)
    done = subprocess.run(call, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        return done.returncode
    (Path(arguments.log_dir) / _LOG).write_text(done.stdout, encoding="utf-8")
    print(text_of(json.loads(done.stdout), arguments.verbose))
    return 0


if __name__ == "__main__":
    sys.exit(main())
