"""Unary gRPC calls written by hand, for messages that no client library would form.

Comes from: tests of strangers' input. Goes to: a server's port. The part of HTTP/2 that one call
needs (RFC 9113): no header is compressed, and answers are examined only for their end.
"""

from __future__ import annotations

import contextlib
import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0, 1, 3, 4, 6, 7, 8, 9)  # fmt: skip
ACK = END_STREAM = 1
END_HEADERS = 4
CANCEL = 8
FRAME_MAX = 16384


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _text(text: str) -> bytes:
    assert len(text) < 127
    return bytes([len(text)]) + text.encode()


def headers(method: str, **more: str) -> bytes:
    """A block of the headers of a call. more: further ones, with _ in the place of -."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())


class Http2:
    """One connection; calls go one after the other. settings: the payload of its first frame."""

    def __init__(self, connection: socket.socket, settings: bytes = b"") -> None:
        self._socket = connection
        self._stream = 1
        self._buffer = b""
        self._window = {0: 65535}
        self._initial = 65535
        self._ended: set[int] = set()
        self.trailers = b""  # of the call ended last, not decoded
        self._data_bytes = 0
        # Else a call's body waits until the server has acknowledged its headers, 40 ms.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(PREFACE + frame(SETTINGS, 0, 0, settings))

    def close(self) -> None:
        self._socket.close()

    def begin(self, method: str, **more: str) -> int:
        stream, self._stream = self._stream, self._stream + 2
        self._window[stream] = self._initial
        self._socket.sendall(frame(HEADERS, END_HEADERS, stream, headers(method, **more)))
        return stream

    def call(self, method: str, message: bytes, compression: str = "") -> None:
        """Sends a whole request, and returns when the call has ended. compression: the message's
        encoding, by gRPC's name."""
        flag = b"\1" if compression else b"\0"
        self.call_of_bytes(method, flag + struct.pack(">I", len(message)) + message, compression)

    def call_of_bytes(self, method: str, body: bytes, compression: str = "") -> None:
        """The same with a body of a byte or more that need not be one message."""
        stream = self.begin(method, **({"grpc_encoding": compression} if compression else {}))
        self._send(stream, body, END_STREAM)
        while stream not in self._ended:
            self.read()

    def send_part(self, method: str, whole_bytes: int, part_bytes: int) -> int:
        """Begins a request of `whole_bytes`, and stops after `part_bytes`, when the call ends, when
        the server closes the connection, or when it gives no room within the socket's timeout. How
        many bytes went out before, in whole frames."""
        part = b"\0" + struct.pack(">I", whole_bytes) + bytes(part_bytes)
        before = self._data_bytes
        with contextlib.suppress(OSError):
            self._send(self.begin(method), part, 0)
        return self._data_bytes - before

    def _send(self, stream: int, message: bytes, last_flags: int) -> None:
        body = memoryview(message)
        while len(body) > 0 and stream not in self._ended:
            room = min(self._window[0], self._window[stream], FRAME_MAX)
            if room <= 0:
                self.read()
                continue
            part = body[:room]
            body = body[room:]
            for key in (0, stream):
                self._window[key] -= len(part)
            flags = last_flags if len(body) == 0 else 0
            self._socket.sendall(frame(DATA, flags, stream, bytes(part)))
            self._data_bytes += len(part)

    def call_and_hang_up(self, method: str) -> None:
        """Begins a call and breaks it off, in one write. The server may have seen it or not."""
        stream, self._stream = self._stream, self._stream + 2
        begin = frame(HEADERS, END_HEADERS, stream, headers(method))
        self._socket.sendall(begin + frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL)))

    def read(self) -> None:
        """Reads one frame, and answers what must be answered."""
        length, kind, flags, stream = struct.unpack(">IBBI", b"\0" + self._take(9))
        payload = self._take(length)
        if kind == WINDOW_UPDATE:
            self._window[stream] = self._window.get(stream, 0) + struct.unpack(">I", payload)[0]
        elif kind == SETTINGS and not flags & ACK:
            self._settings(payload)
        elif kind == PING and not flags & ACK:
            self._socket.sendall(frame(PING, ACK, 0, payload))
        elif kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
            self._ended.add(stream)
            if kind == HEADERS:
                self.trailers = payload
        elif kind == GOAWAY:
            raise ConnectionError(payload[8:].decode(errors="replace"))

    def read_what_came(self) -> None:
        """Reads one frame, and any that came with it."""
        self.read()
        while len(self._buffer) >= 9:
            length = struct.unpack(">I", b"\0" + self._buffer[:3])[0]
            if len(self._buffer) < 9 + length:
                return
            self.read()

    def _settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            name, value = struct.unpack(">HI", payload[at : at + 6])
            if name == 4:
                for key in self._window:
                    self._window[key] += value - self._initial if key else 0
                self._initial = value
        self._socket.sendall(frame(SETTINGS, ACK, 0))

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            got = self._socket.recv(1 << 16)
            if not got:
                raise ConnectionError("the server has closed the connection")
            self._buffer += got
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken
