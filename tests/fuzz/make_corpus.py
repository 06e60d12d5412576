#!/usr/bin/env python3
"""Writes the first inputs of safetensors and job_file; the names say what becomes of them. Those of
job_file are made of file-good-export, a job.ballast that a server has written.

Comes from: people who change the format's rules. Goes to: the corpus, which is committed.
Thread safety: one process, nothing shared.
"""

import json
import struct

import corpus


def entry(dtype, shape, begin, end):
    """One tensor of a header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def file_of(header, data=b"", pad=0, length=None):
    """A whole file; header is an object or the bytes of one."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * pad
    return struct.pack("<Q", len(text) if length is None else length) + text + data


WIDTHS = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2,
          "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8}
W = {"w": entry("U8", [4], 0, 4)}


def all_dtypes():
    """A file with a tensor of each dtype, named after it."""
    header, end = {}, 0
    for name, width in WIDTHS.items():
        header[name] = entry(name, [2, 1], end, end + 2 * width)
        end += 2 * width
    return file_of(header, bytes(range(end)))


GOOD = {
    "file-good-empty": file_of({}),
    "file-good-one": file_of(W, b"abcd"),
    "file-good-padded": file_of(W, b"abcd", pad=9),
    "file-good-dtypes": all_dtypes(),
    "file-good-metadata": file_of({"__metadata__": {"format": "pt", "é\n\"": "\u0000"}}),
    "file-good-scalar-and-none": file_of(
        {"none": entry("F32", [0, 7], 8, 8), "scalar": entry("F64", [], 0, 8)}, bytes(8)),
    "file-good-order": file_of(
        {"b": entry("U8", [1], 1, 2), "a": entry("U8", [1], 0, 1)}, b"ab"),
    "file-good-escapes": file_of(
        b'{"\\u0061\\ud83d\\ude00\\/":{"shape":[],"dtype":"I8","data_offsets":[0,1]}}', b"x"),
    "index-good-one": json.dumps({"metadata": {"total_size": 4, "x": "y", "n": 1.5, "t": True},
                                  "weight_map": {"w": "a.safetensors"}}, indent=2).encode(),
    "index-good-empty": b'{"weight_map":{}}\n',
    "header-of-much-data": struct.pack("<Q", 2**40) + json.dumps(
        {"w": entry("U8", [2**20, 2**20], 0, 2**40)}).encode(),
}

BAD = {
    "file-bad-cut-off": file_of(W, b"abc"),
    "file-bad-longer": file_of(W, b"abcde"),
    "file-bad-length": file_of(W, b"abcd", length=2**64 - 1),
    "file-bad-hole": file_of({"w": entry("U8", [4], 1, 5)}, b"abcde"),
    "file-bad-overlap": file_of(
        {"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, b"abc"),
    "file-bad-twice": file_of(
        b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},'
        b'"\\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
    "file-bad-overflow": file_of({"w": entry("F64", [2**32, 2**32], 0, 0)}),
    "file-bad-size": file_of({"w": entry("F32", [4], 0, 4)}, b"abcd"),
    "file-bad-negative": file_of({"w": entry("U8", [-4], 0, 4)}, b"abcd"),
    "file-bad-point": file_of({"w": entry("U8", [4.0], 0, 4)}, b"abcd"),
    "file-bad-subbyte": file_of({"w": entry("F4", [8], 0, 4)}, b"abcd"),
    "file-bad-dtype": file_of({"w": entry("Q9", [4], 0, 4)}, b"abcd"),
    "file-bad-field": file_of({"w": {**entry("U8", [4], 0, 4), "stride": [1]}}, b"abcd"),
    "file-bad-utf8": file_of(b'{"__metadata__":{"a":"\xff"}}'),
    "file-bad-zero-in-name": file_of({"a\u0000": entry("U8", [0], 0, 0)}),
    "file-bad-zero-behind": file_of(b'{}\x00{"hidden":1}'),
    "file-bad-bom": file_of(b"\xef\xbb\xbf{}"),
    "file-bad-newline": file_of(b"{}\n"),
    "file-bad-metadata": file_of({"__metadata__": {"a": {"b": 1}}}),
    "file-bad-nesting": file_of(b'{"w":' + b"[" * 500),
    "index-bad-path": b'{"weight_map":{"w":"../a.safetensors"}}',
    "index-bad-twice": b'{"weight_map":{"w":"a.safetensors","w":"b.safetensors"}}',
    "index-bad-total": b'{"metadata":{"total_size":-1},"weight_map":{}}',
    "index-bad-key": b'{"weights":{}}',
}


def parts_of(body):
    """Where the texts of a manifest's body begin and end (docs/formats/snapshot.md)."""
    spans, at = {}, 8
    for name in ("name", "job", "", "plan", "prepared", "decision"):
        if not name:
            at += 24  # created, round, bytes
            continue
        (size,) = struct.unpack_from("<I", body, at)
        spans[name] = (at + 4, at + 4 + size)
        at += 4 + size
    return spans


def job_files(whole):
    """Inputs by name: whole files, and the bytes of one between head and checksum."""
    body = whole[24:-4]
    spans = parts_of(body)
    part = {name: body[begin:end] for name, (begin, end) in spans.items()}
    name_at = spans["name"][0]
    long_name = struct.pack("<I", 2**32 - 1)
    return {
        "file-bad-cut-off": whole[:-1],
        "file-bad-newer": whole[:8] + b"\x02" + whole[9:],
        "file-bad-checksum": whole[:-1] + bytes([whole[-1] ^ 1]),
        "file-bad-magic": b"BALLSNQ" + whole[7:],
        "body-good-whole": body,
        "body-bad-id": bytes(8) + body[8:],
        "body-bad-longer": body + b"\x00",
        "body-bad-name": body[:name_at] + b"/" + body[name_at + 1 :],
        "body-bad-name-length": body[: name_at - 4] + long_name + body[name_at:],
        "body-bad-no-decision": body[: spans["decision"][0] - 4] + bytes(4),
        "body-bad-round": body[: spans["job"][1] + 8] + bytes(8) + body[spans["job"][1] + 16 :],
        "prepared-good-whole": part["prepared"],
        "decision-good-whole": part["decision"],
    }


def main():
    """Writes every input; those that fuzzing found stay."""
    corpus.write("safetensors", {**corpus.read("safetensors"), **GOOD, **BAD})
    kept = corpus.read("job_file")
    corpus.write("job_file", {**kept, **job_files(kept["file-good-export"])})


if __name__ == "__main__":
    main()
