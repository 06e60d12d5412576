"""comms_logger: each round's traffic and its rates, in the form of DeepSpeed's table.

Comes from: ballast.deepspeed.engine, which adds rounds. Goes to: comm.log_summary(), stdout.
Source of the table: deepspeed/utils/comms_logging.py of 0.19.8. Thread safety: used by one thread
at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

# Operations of a round: the fields of last_report with its bytes and its time.
_OPERATIONS = {"push": ("bytes_up", "push_ns"), "pull": ("bytes_down", "pull_ns")}
_COLUMNS = (
    "Comm. Op", "Message Size", "Count", "Total Latency(ms)", "Avg Latency(ms)",
    "tput_avg (Gbps)", "busbw_avg (Gbps)",
)  # fmt: skip
_WIDTH = 20
_TRIMMED = 0.1  # of the values at each end, for the averages
_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")


class Transfers:
    """Rounds' transfers of one trainer, by operation and size.

    operations: prof_ops, those that count; all of them when it is empty. verbose: each one is
    printed as it ends. rank: 0 prints.
    """

    def __init__(self, operations: Sequence[str], verbose: bool, rank: int) -> None:
        self._operations = [op for op in _OPERATIONS if not operations or op in operations]
        self._verbose = verbose
        self._rank = rank
        self._taken: dict[str, dict[int, list[float]]] = {}  # milliseconds, by operation and bytes

    def add(self, report: Mapping[str, Any]) -> None:
        """A round: the optimizer's last_report."""
        for operation in self._operations:
            size, time = (report.get(field, 0) for field in _OPERATIONS[operation])
            if not size or not time:
                continue  # a skipped round brings no weights
            taken = time * 1e-6
            self._taken.setdefault(operation, {}).setdefault(int(size), []).append(taken)
            if self._verbose and self._rank == 0:
                rate = _gigabits(size, taken)
                print(f"[Rank 0] comm op: {operation} | time (ms): {taken:.2f} | "
                      f"msg size: {_text(size)} | algbw (Gbps): {rate:.2f} | "
                      f"busbw (Gbps): {rate:.2f}", flush=True)  # fmt: skip

    def summary(self) -> dict[str, dict[int, dict[str, Any]]]:
        """By operation and bytes: count, total and average milliseconds, Gbit/s on average."""
        return {op: {size: _summary(size, taken) for size, taken in sorted(sizes.items())}
                for op, sizes in self._taken.items()}  # fmt: skip

    def table(self) -> str:
        """The summary as DeepSpeed prints it."""
        lines = ["".join(f"{column: <{_WIDTH}}" for column in _COLUMNS)]
        for operation, sizes in self.summary().items():
            lines.append(operation)
            for one in sizes.values():
                cells = ["", one["msg_size_str"], str(one["count"])]
                cells += [f"{one[key]:.2f}" for key in (
                    "total_latency_ms", "avg_latency_ms", "tput_avg_gbps", "busbw_avg_gbps")]
                lines.append("".join(f"{cell: <{_WIDTH}}" for cell in cells))
        return "\n".join(lines)


def _summary(size: int, taken: Sequence[float]) -> dict[str, Any]:
    rate = _trimmed_mean([_gigabits(size, ms) for ms in taken])
    return {
        "count": len(taken),
        "total_latency_ms": math.fsum(taken),
        "avg_latency_ms": _trimmed_mean(taken),
        "tput_avg_gbps": rate,
        "busbw_avg_gbps": rate,
        "msg_size_bytes": size,
        "msg_size_str": _text(size),
    }


def _gigabits(size: int, milliseconds: float) -> float:
    """Gbit/s. Between a trainer and the servers both of DeepSpeed's bandwidths are this one."""
    return size * 8 / milliseconds * 1e-6


def _trimmed_mean(values: Sequence[float]) -> float:
    ordered = sorted(values)
    left_out = int(len(ordered) * _TRIMMED)
    kept = ordered[left_out : len(ordered) - left_out]
    return math.fsum(kept) / len(kept)


def _text(size: int) -> str:
    power = min(int(math.log(size, 1024)), len(_UNITS) - 1)
    return f"{round(size / 1024**power, 2)} {_UNITS[power]}"
