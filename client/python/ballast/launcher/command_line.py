"""The command line of ballast-run.

Comes from: ballast.run. Goes to: nothing. Pure functions.
"""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

from ballast import __version__
from ballast.ds_config.launched import PRECISIONS

# As ballastd reads sizes; the bounds are its own to check.
_SIZE = re.compile(r"[0-9]+(\.[0-9]+)? ?(B|[KMGT]iB)?\Z")


def _whole(text: str) -> int | None:
    """None where the text is no whole number of at most nine digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _count(text: str) -> int:
    value = _whole(text)
    if value is None or not 1 <= value <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number in 1..1024")
    return value


def _port(text: str) -> int:
    value = _whole(text)
    if value is None or not 1 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a port, 1..65535")
    return value


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    if not words:
        raise argparse.ArgumentTypeError("must name a program")
    return words


def _restarts(text: str) -> int:
    value = _whole(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, 0 for never")
    return value


def _size(text: str) -> str:
    if not _SIZE.match(text):
        raise argparse.ArgumentTypeError(
            f"{text!r}: must be a size such as 4GiB, in B, KiB, MiB, GiB or TiB"
        )
    return text


def parser() -> argparse.ArgumentParser:
    """What ballast-run takes, with texts for --help."""
    p = argparse.ArgumentParser(
        prog="ballast-run",
        allow_abbrev=False,
        description="Runs a training script on local trainers with local Ballast servers.",
        usage="%(prog)s [options] SCRIPT [arguments]\n"
        "       %(prog)s [options] -m MODULE [arguments]\n"
        "       %(prog)s [options] --no-python PROGRAM [arguments]",
    )
    p.add_argument("--servers", type=_count, metavar="N", help="state servers (1)")
    p.add_argument(
        "--nproc",
        type=_count,
        metavar="N",
        help="trainer processes in all (1; with --hostfile, all slots)",
    )
    _add_host_options(p)
    _add_slot_options(p)
    _add_server_options(p)
    _add_trainer_options(p)
    p.add_argument("--job", metavar="NAME", help="job name; default: a fresh one")
    p.add_argument("--no-prefix", action="store_true", help="output without [rank] in front")
    p.add_argument("--quiet", action="store_true", help="nothing of ballast-run's own on stderr")
    p.add_argument("--version", action="version", version=f"ballast-run {__version__}")
    p.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module, as python -m")
    p.add_argument(
        "--no-python",
        "--no_python",
        action="store_true",
        help="SCRIPT is a program that is run as it is, without Python",
    )
    p.add_argument("script", metavar="SCRIPT", help='the Python script; "-": standard input has it')
    p.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")
    return p


def _add_host_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--hostfile",
        type=Path,
        metavar="FILE",
        help='hosts of the trainers, one a line: "name slots=N"; the first one is this machine and '
        "has the servers, unless BALLAST_ENDPOINTS names running ones",
    )
    p.add_argument(
        "--master-addr",
        "--master_addr",
        metavar="ADDR",
        help="address of the first host for the others (of its name in the hostfile)",
    )
    p.add_argument(
        "--master-port", "--master_port", type=_port, metavar="N", help="for torch.distributed"
    )
    p.add_argument(
        "--ssh",
        type=_words,
        default=["ssh"],
        metavar="COMMAND",
        help='how to reach the hosts (ssh), such as "ssh -p 2222"',
    )


def _add_slot_options(p: argparse.ArgumentParser) -> None:
    slots = 'as DeepSpeed writes them: "node-a@node-b:0,2"; such slots are CUDA_VISIBLE_DEVICES'
    p.add_argument("--include", metavar="SLOTS", help=f"only these hosts and slots, {slots}")
    p.add_argument("--exclude", metavar="SLOTS", help="all but these hosts and slots")
    p.add_argument(
        "--num-nodes",
        "--num_nodes",
        type=_count,
        metavar="N",
        help="so many hosts, the first ones of the hostfile",
    )
    p.add_argument(
        "--num-gpus",
        "--num_gpus",
        type=_count,
        metavar="N",
        help="so many trainers on each host (--nproc: in all)",
    )


def _add_server_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--data-dir", type=Path, metavar="D", help="server data and logs; kept")
    p.add_argument(
        "--dram-budget",
        type=_size,
        metavar="SIZE",
        help="memory for optimizer state per server, such as 4GiB; what does not fit lives in "
        "--data-dir (80 %% of the memory that is available, shared out among the servers)",
    )
    p.add_argument(
        "--max-server-restarts",
        type=_restarts,
        default=10,
        metavar="N",
        help="how often servers that end are started again, in all (10; 0: never)",
    )
    p.add_argument(
        "--tls",
        action="store_true",
        help="servers and trainers with certificates of a new authority (needs openssl)",
    )
    p.add_argument("--server-binary", metavar="PATH", help="the ballastd to start")


def _add_trainer_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--max-restarts",
        type=_restarts,
        default=0,
        metavar="N",
        help="how often trainers that fail are started again in their seats, in all (0); sets "
        "BALLAST_RESUME=auto unless it is set",
    )
    p.add_argument(
        "--ds-config",
        type=Path,
        metavar="FILE",
        help="the ds_config.json of the trainers (BALLAST_DS_CONFIG), which is checked first",
    )
    p.add_argument(
        "--mixed-precision",
        choices=PRECISIONS,
        help='fills fp16.enabled and bf16.enabled of the ds_config where they are "auto" or '
        "absent, and is the precision that Trainer and Accelerate compute with",
    )
