"""deepspeed.utils.logger and log_dist, for scripts that write their lines with them.

Comes from: user code. Goes to: Python's logging; stdout unless the script has set up a handler.
Thread safety: as logging. Source: deepspeed/utils/logging.py of 0.19.8.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from ballast.deepspeed import comm

_FORMAT = "[%(asctime)s] [%(levelname)s] [%(filename)s:%(lineno)d:%(funcName)s] %(message)s"


def _made() -> logging.Logger:
    made = logging.getLogger("ballast.deepspeed")
    made.setLevel(logging.INFO)
    made.propagate = False
    if not made.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter(_FORMAT))
        made.addHandler(handler)
    return made


logger = _made()


def log_dist(
    message: str, ranks: Sequence[int] | None = None, level: int = logging.INFO
) -> None:
    """Logs on the trainers whose numbers are in `ranks`; [-1] means all. One trainer always does.

    Several trainers without `ranks` log nothing, as in DeepSpeed.
    """
    rank, wanted = comm.get_rank(), list(ranks or ())
    if comm.get_world_size() == 1 or rank in wanted or wanted[:1] == [-1]:
        logger.log(level, f"[Rank {rank}] {message}", stacklevel=2)
