"""Forwards the output of trainers with the rank in front: lines when they are whole, bars as drawn.

Comes from: launcher.trainers, ballast.run. One thread per stream. A progress bar writes a carriage
return and its line again; such a line passes at once. Of two bars the newer one overwrites the
other. A whole line never lands in the middle of another one.
"""

from __future__ import annotations

import os
import re
import select
import threading
import time
from typing import BinaryIO

# A line without a carriage return that does not end is shown after this time.
UNFINISHED_S = 1.0
_CHUNK_BYTES = 1 << 16
_PIECES = re.compile(rb"[^\r\n]+|\r|\n")

_lock = threading.Lock()


class _Screen:
    """The unfinished end of one file or terminal: the line of `writer`, without its newline."""

    def __init__(self) -> None:
        self.writer: _Writer | None = None
        self.columns = 0


_screens: dict[tuple[int, int], _Screen] = {}  # by device and number: 2>&1 is one of them


def forward(source: BinaryIO, target: BinaryIO, prefix: bytes) -> threading.Thread:
    """Copies `source` to `target` until its end, `prefix` before every line. Returns the thread.

    A last line without newline gets one when the stream ends. Errors of a closed target (a reader
    such as head has gone) end the copying, not the trainer.
    """
    thread = threading.Thread(
        target=_pump, args=(source.fileno(), _Writer(target, prefix)), daemon=True
    )
    thread.start()
    return thread


def say(target: BinaryIO, line: str) -> None:
    """Writes a line of ballast-run itself, below a trainer's unfinished line."""
    _Writer(target, b"").take(line.encode(errors="backslashreplace") + b"\n")


def _pump(source: int, writer: _Writer) -> None:
    poll = select.poll()
    poll.register(source, select.POLLIN)
    while True:
        left_s = writer.unfinished_for_s()
        if left_s is not None and not poll.poll(1000.0 * left_s):
            writer.show()
            continue
        chunk = os.read(source, _CHUNK_BYTES)
        if not chunk:
            break
        writer.take(chunk)
    writer.end()


class _Writer:
    """One stream of one trainer. Owned by its thread; its screen is everybody's, under _lock."""

    def __init__(self, target: BinaryIO, prefix: bytes) -> None:
        self._target = target
        self._prefix = prefix
        self._screen = _screen_of(target)
        self._broken = False
        self._text = b""  # of the present line, since the last carriage return
        self._shown = b""  # what of it was written
        self._returned = False  # the next text begins the line again
        self._since = 0.0  # when the line began
        self._redraws = False  # it is a bar

    def unfinished_for_s(self) -> float | None:
        """How long the present line may stay unseen; None: nothing of it is."""
        if len(self._text) <= len(self._shown):
            return None
        return max(0.0, self._since + UNFINISHED_S - time.monotonic())

    def take(self, chunk: bytes) -> None:
        """Writes the lines that end in `chunk`, and the progress bar that it draws."""
        with _lock:
            drawn = [self._after(piece) for piece in _PIECES.findall(chunk)]
            self._write(b"".join(drawn) + self._of_bar())

    def show(self) -> None:
        """Writes the present line, which has no end yet."""
        with _lock:
            self._write(self._drawn())

    def end(self) -> None:
        with _lock:
            if self._text or self._screen.writer is self:
                self._write(self._ended())

    # ---- under _lock

    def _after(self, piece: bytes) -> bytes:
        if piece == b"\n":
            return self._ended()
        if piece == b"\r":
            self._redraws = True
            drawn = self._of_bar()
            self._returned = True
            return drawn
        if self._returned:
            self._returned, self._text, self._shown = False, b"", b""
        if not self._text:
            self._since = time.monotonic()
        self._text += piece
        return b""

    def _of_bar(self) -> bytes:
        seen = self._shown.startswith(self._text)
        return self._drawn() if self._redraws and not seen else b""

    def _ended(self) -> bytes:
        """The present line with its newline."""
        drawn = self._drawn() + b"\n"
        self._screen.writer, self._screen.columns = None, 0
        self._text = self._shown = b""
        self._redraws = self._returned = False
        return drawn

    def _drawn(self) -> bytes:
        """The bytes that bring the screen from the line it shows to the present one."""
        screen, last = self._screen, self._screen.writer
        if last is self and self._shown.startswith(self._text):
            out = b""
        elif last is self and self._shown and self._text.startswith(self._shown):
            out = self._text[len(self._shown) :]
            self._shown = self._text
        else:
            line, begin = self._prefix + self._text, b""
            if last is not None:
                begin = b"\r" if last is self or (last._redraws and self._redraws) else b"\n"
            # Of a longer line in its place nothing may stay.
            blank = b" " * (screen.columns - len(line)) if begin == b"\r" else b""
            out = begin + line + blank
            self._shown = self._text + blank
        screen.writer, screen.columns = self, len(self._prefix + self._shown)
        return out

    def _write(self, out: bytes) -> None:
        if self._broken or not out:
            return  # but the trainer is read on: a full pipe would block it
        try:
            self._target.write(out)
            self._target.flush()
        except (OSError, ValueError):
            self._broken = True


def _screen_of(target: BinaryIO) -> _Screen:
    info = os.fstat(target.fileno())
    with _lock:
        return _screens.setdefault((info.st_dev, info.st_ino), _Screen())
