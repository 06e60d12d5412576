"""Forwards the output of trainers line by line, with the rank in front.

Comes from: launcher.trainers. One thread per stream; whole lines never interleave.
"""

from __future__ import annotations

import threading
from typing import BinaryIO

_write_lock = threading.Lock()


def forward(source: BinaryIO, target: BinaryIO, prefix: bytes) -> threading.Thread:
    """Copies `source` to `target` until its end, `prefix` before every line. Returns the thread.

    A last line without newline is forwarded when the stream ends. Errors of a closed target (a
    reader such as head has gone) end the copying, not the trainer.
    """
    thread = threading.Thread(target=_pump, args=(source, target, prefix), daemon=True)
    thread.start()
    return thread


def _pump(source: BinaryIO, target: BinaryIO, prefix: bytes) -> None:
    broken = False
    for line in iter(source.readline, b""):
        if broken:
            continue  # keep reading: a full pipe would block the trainer
        if not line.endswith(b"\n"):
            line += b"\n"
        try:
            with _write_lock:
                target.write(prefix + line)
                target.flush()
        except (OSError, ValueError):
            broken = True
