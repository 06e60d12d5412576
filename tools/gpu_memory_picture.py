#!/usr/bin/env python3
"""Draws docs/img/gpu_memory.svg: what torch has in a GPU's memory, without Ballast and with.

Comes from: docs/measurements/gpu_h100.json, a report of the GPU kit. Goes to: README.md. The whole
of each bar is measured, the parts of a parameter are counted, and activations are the rest.
Thread safety: one process, nothing shared.

usage: gpu_memory_picture.py [--verify]    --verify: exit code 1 where the picture is not this one
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
REPORT = ROOT / "docs/measurements/gpu_h100.json"
PICTURE = ROOT / "docs/img/gpu_memory.svg"
GIB = 1 << 30
# Bytes per parameter: (what, bytes, colour). torch's contestant widens each gradient to fp32.
BARS = (
    ("torch.optim.AdamW", "medium torch", (
        ("bf16 weights", 2, "#4c78a8"), ("gradients", 4, "#9ecae9"),
        ("fp32 master weights", 4, "#e45756"), ("Adam's moments", 8, "#f58518"))),
    ("Ballast", "medium ballast process", (
        ("bf16 weights", 2, "#4c78a8"), ("gradients", 2, "#9ecae9"))),
)
REST = ("activations and the rest", "#bab0ac")
WIDTH, LEFT, TOP, BAR, GAP, SCALE = 840, 165, 34, 40, 16, 92.0  # pixels; SCALE: of a GiB


def text(x, y, words, anchor="start", size=13):
    return (f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="{size}">'
            f"{words}</text>")


def parts_of(check, parts):
    """(what, GiB, colour) of one bar, left to right; they add up to the measured peak."""
    counted = [(what, n * check["parameters"] / GIB, colour) for what, n, colour in parts]
    rest = check["memory"]["gpu_peak"] / GIB - sum(part[1] for part in counted)
    if rest < 0:
        raise ValueError(f"{check['check']}: the counted parts are more than the peak")
    return [*counted, (REST[0], rest, REST[1])]


def bar(top, label, parts):
    lines, x = [text(LEFT - 12, top + BAR / 2 + 5, label, "end", 14)], float(LEFT)
    for what, gib, colour in parts:
        width = gib * SCALE
        lines.append(f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{BAR}" '
                     f'fill="{colour}"><title>{what}: {gib:.2f} GiB</title></rect>')
        if width > 34:
            lines.append(text(x + width / 2, top + BAR / 2 + 5, f"{gib:.1f}", "middle"))
        x += width
    whole = sum(part[1] for part in parts)
    return [*lines, text(x + 8, top + BAR / 2 + 5, f"{whole:.2f} GiB", size=14)]


def picture(report):
    """The SVG's text."""
    checks = {c["check"]: c for c in report["checks"] if "memory" in c}
    bars = [(label, parts_of(checks[name], parts)) for label, name, parts in BARS]
    millions = checks[BARS[0][1]]["parameters"] / 1e6
    title = (f"Peak GPU memory in torch's allocator: {millions:.0f} M parameters, bf16, "
             "batch 8 x 1,024, one H100")
    lines = [text(LEFT, 20, title, size=14)]
    for i, (label, parts) in enumerate(bars):
        lines += bar(TOP + i * (BAR + GAP), label, parts)
    x, y = float(LEFT), TOP + len(bars) * (BAR + GAP) + 4
    for what, _, colour in bars[0][1]:
        lines.append(f'<rect x="{x:.0f}" y="{y}" width="11" height="11" fill="{colour}"/>')
        lines.append(text(x + 15, y + 10, what, size=11))
        x += 28 + 6.6 * len(what)
    height = y + 22
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" font-family="sans-serif" fill="#222">\n'
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>\n'
            + "\n".join(lines) + "\n</svg>\n")


def main():
    wanted = picture(json.loads(REPORT.read_text(encoding="utf-8")))
    if "--verify" in sys.argv[1:]:
        if PICTURE.read_text(encoding="utf-8") != wanted:
            print(f"{PICTURE.relative_to(ROOT)}:1: error: not what its report says; run "
                  "tools/gpu_memory_picture.py")
            return 1
        return 0
    PICTURE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
