"""Bodies, header blocks and frames of strangers: near to good ones, and wrong at a few places.

Comes from: test_strangers_any_bytes.py, with a generator of a fixed seed. Goes to: a server's port,
over http2_by_hand. The same seed gives the same bytes (RFC 7541 for header blocks, RFC 9113 for
frames, gRPC's PROTOCOL-HTTP2 for bodies).
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from random import Random

from e2e.http2_by_hand import (
    CONTINUATION, DATA, END_HEADERS, END_STREAM, FRAME_MAX, HEADERS, frame, headers,
)  # fmt: skip

STATUS = "/ballast.v1.Admin/Status"
METHODS = (STATUS, "/ballast.v1.Control/Attach", "/ballast.v1.Data/Exchange",
           "/ballast.v1.Peer/Vote", "/grpc.health.v1.Health/Check", "/no.such/Method")  # fmt: skip
ENCODINGS = ("", "", "", "gzip", "deflate", "identity", "snappy", "gzip,deflate")
PADDED, PRIORITY_FLAG = 8, 32
KIB, MIB = 1 << 10, 1 << 20
TOO_LONG = 17 * MIB
INTEGERS = (0, 1, 2, 61, 62, 63, 126, 127, 4096, 16384, MIB, (1 << 31) - 1, (1 << 32) - 1)


@dataclasses.dataclass(frozen=True)
class Body:
    """The bytes after the headers of a call. says: the length in its prefix."""

    method: str
    encoding: str
    compressed: int
    says: int
    content: bytes

    @property
    def bytes(self) -> bytes:
        return struct.pack(">BI", self.compressed, self.says) + self.content


def body(random: Random) -> Body:
    """A message whose prefix says the truth, or not; compressed, or not, as its call says."""
    zeros = bytes(random.choice((KIB, 40 * KIB, 40 * KIB, MIB, TOO_LONG)))
    content = random.choice((b"", *[random.randbytes(random.randrange(300))] * 4, zeros))
    encoding = random.choice(ENCODINGS)
    compressed = random.choice((0, 0, 0, 1, 1, random.randrange(256)))
    if compressed and random.random() < 0.7:
        packed = zlib.compress(content, 9, wbits=31 if encoding == "gzip" else 15)
        content = packed[: random.choice((len(packed), len(packed), random.randrange(len(packed))))]
    says = len(content)
    if random.random() < 0.6:
        near = max(0, says + random.choice((-1, 1, -5, 5)))
        says = random.choice((near, *INTEGERS, TOO_LONG))
    return Body(random.choice(METHODS), encoding, compressed, says, content)


class _Fields:
    """Fields of header blocks, as RFC 7541 has them; each choice is wrong at a rate of `wild`."""

    def __init__(self, random: Random, wild: float) -> None:
        self._random, self._wild = random, wild

    def _wrong(self) -> bool:
        return self._random.random() < self._wild

    def _integer(self, prefix_bits: int, first: int, value: int) -> bytes:
        """5.1; a wrong one is another, or takes more bytes than it need, without an end."""
        value = self._random.choice(INTEGERS) if self._wrong() else value
        most = (1 << prefix_bits) - 1
        if value < most:
            return bytes([first | value])
        out, value = [first | most], value - most
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        more = [128] * self._random.choice((1, 4, 12)) if self._wrong() else []
        return bytes([*out, value | 128, *more, 0] if more else [*out, value])

    def _string(self, content: bytes) -> bytes:
        """5.2; a wrong one is any bytes in the place of Huffman's code."""
        return self._integer(7, 128 if self._wrong() else 0, len(content)) + content

    def next(self) -> bytes:
        random = self._random
        if random.random() < 0.4 or self._wrong():
            return self._integer(7, 128, random.randrange(1, 62))
        if self._wrong():
            return self._integer(5, 32, random.choice(INTEGERS))  # the table's size
        prefix, first = random.choice(((6, 64), (4, 0), (4, 16)))
        names = [b"te", b"grpc-timeout", b"x-a", b"x-bin", b"cookie", b"grpc-encoding"]
        if self._wrong():
            names = [b"", b"X-Y", b":path", b":no", random.randbytes(random.randrange(40))]
        values = [b"", b"1n", b"trailers", b"v" * random.choice((10, 200, 9000))]
        if self._wrong():
            values = [random.randbytes(random.randrange(200))]
        value = self._string(random.choice(values))
        if random.random() < 0.5:
            return self._integer(prefix, first, random.choice((16, 31, 58, 60))) + value
        return bytes([first]) + self._string(random.choice(names)) + value


def header_block(random: Random) -> bytes:
    """Fields after those of a call, or without these; some with an endless string, or with one from
    the table named again and again; some cut off."""
    fields = _Fields(random, random.choice((0, 0.01, 0.2)))
    block = headers(random.choice(METHODS)) if random.random() < 0.8 else b""
    block += b"".join(fields.next() for _ in range(random.choice((0, 1, 3, 10, 300))))
    more = random.randrange(20)
    if more == 0:
        block += b"\0\5x-aaa\x7f\x80\xff\xff\xff\x0f" + bytes(90 * KIB)
    elif more == 1:
        block += b"\x40\5x-aaa\x7f\x81\x1d" + b"v" * 3840 + b"\xbe" * random.choice((9, 900, 50000))
    elif more == 2:
        block = block[: random.randrange(len(block) + 1)]
    return block


def header_frames(random: Random, block: bytes, stream: int) -> list[bytes]:
    """The block in a HEADERS and as many CONTINUATION as it needs, or many more; with padding,
    priority, and an end, or without."""
    size = random.choice((FRAME_MAX, FRAME_MAX, 1000, max(1, len(block) // 3)))
    parts = [block[at : at + size] for at in range(0, len(block), size)] or [b""]
    if random.random() < 0.1:
        parts += [b""] * random.choice((1, 20, 9000))
    first, flags = parts[0], random.choice((0, END_STREAM))
    if random.random() < 0.1 and len(first) < FRAME_MAX - 300:
        padding = random.choice((0, 1, 255))
        first = bytes([padding]) + first + bytes(random.choice((padding, padding, 0)))
        flags |= PADDED
    if random.random() < 0.1 and len(first) < FRAME_MAX - 5:
        first = (first[:1] if flags & PADDED else b"") + random.randbytes(5) + first
        flags |= PRIORITY_FLAG
    ends = END_HEADERS if random.random() < 0.85 else 0
    frames = [frame(HEADERS, flags | (0 if parts[1:] else ends), stream, first)]
    for number, part in enumerate(parts[1:], 2):
        last = ends if number == len(parts) else 0
        frames.append(frame(CONTINUATION, last, stream, part))
    return frames


def any_frames(random: Random) -> list[bytes]:
    """Frames of all types, on streams open or not, of any length, with any flags."""
    frames = [frame(HEADERS, END_HEADERS, 1, headers(random.choice(METHODS)))]
    for _ in range(random.choice((1, 5, 40))):
        kind = random.choice((*range(10), DATA, HEADERS, random.randrange(256)))
        payload = random.choice(
            (b"", struct.pack(">I", random.choice(INTEGERS)), random.randbytes(8),
             random.randbytes(random.randrange(100)), headers(STATUS),
             struct.pack(">HI", random.randrange(8), random.choice(INTEGERS)))
        )  # fmt: skip
        stream = random.choice((0, 1, 1, 2, 3, 5, 7, (1 << 31) - 1))
        whole = frame(kind, random.choice((0, 1, 4, 5, random.randrange(256))), stream, payload)
        if random.random() < 0.05:  # another length than the payload's
            whole = struct.pack(">I", random.choice(INTEGERS) & 0xFFFFFF)[1:] + whole[3:]
        frames.append(whole)
    return frames
