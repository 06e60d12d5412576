"""Output of trainers under ballast-run: bars as they are drawn, lines whole, a prefix in front."""

import os
import threading

import pytest

from ballast.launcher import output


@pytest.fixture
def screen(tmp_path):
    """screen(): the text written to one target so far; screen.of(rank) writes there."""
    with open(tmp_path / "target", "w+b") as target:

        def written():
            return (tmp_path / "target").read_bytes()

        written.of = lambda rank: output._Writer(target, b"[%d] " % rank)
        written.target = target
        yield written


def test_a_bar_passes_as_it_is_drawn(screen):
    bar = screen.of(0)
    bar.take(b"\rstep 1/8")
    assert screen() == b"[0] step 1/8"
    bar.take(b"\rstep")
    bar.take(b" 2/8")
    assert screen() == b"[0] step 1/8\r[0] step    \r[0] step 2/8"
    bar.take(b"\nnext\n")
    assert screen().endswith(b"[0] step 2/8\n[0] next\n")


def test_a_bar_that_ends_its_text_with_the_return_passes_too(screen):
    bar = screen.of(0)
    for i in range(3):
        bar.take(b"%d %%\r" % i)
        assert screen().endswith(b"[0] %d %%" % i)
    bar.take(b"\n")
    assert screen() == b"[0] 0 %\r[0] 1 %\r[0] 2 %\n"


def test_every_update_of_one_piece_is_drawn(screen):
    screen.of(0).take(b"\r1\r2\r3")
    assert screen() == b"[0] 1\r[0] 2\r[0] 3"


def test_the_newer_of_two_bars_overwrites_and_the_last_state_of_both_stays(screen):
    first, second = screen.of(0), screen.of(1)
    first.take(b"\rlong 100 %")
    second.take(b"\r9 %")
    assert screen() == b"[0] long 100 %\r[1] 9 %       "
    first.take(b"\n")
    assert screen().endswith(b"\r[0] long 100 %\n")
    second.take(b"\r10 %\n")
    assert screen().endswith(b"long 100 %\n[1] 10 %\n")


def test_a_line_of_another_trainer_stands_below_the_bar(screen):
    bar, other = screen.of(0), screen.of(1)
    bar.take(b"\r1/8")
    other.take(b"whole\n")
    bar.take(b"\r2/8")
    output.say(screen.target, "ballast-run: says")
    assert screen() == b"[0] 1/8\n[1] whole\n[0] 2/8\nballast-run: says\n"


def test_a_line_waits_for_its_end_and_does_not_wait_for_ever(screen):
    writer, other = screen.of(0), screen.of(1)
    assert writer.unfinished_for_s() is None
    writer.take(b"loading")
    assert screen() == b""
    assert 0.0 <= writer.unfinished_for_s() <= output.UNFINISHED_S
    writer.show()
    assert (screen(), writer.unfinished_for_s()) == (b"[0] loading", None)
    writer.take(b" done\n")
    assert screen() == b"[0] loading done\n"
    writer.take(b"a")
    writer.show()
    other.take(b"b\n")
    writer.take(b"c\r\n\n")
    writer.end()
    assert screen() == b"[0] loading done\n[0] a\n[1] b\n[0] ac\n[0] \n"


def test_the_end_of_a_stream_ends_its_line(screen):
    read, write = os.pipe()
    with open(read, "rb") as source, open(write, "wb", buffering=0) as pipe:
        thread = output.forward(source, screen.target, b"[0] ")
        pipe.write(b"\rdrawn")
        while not screen():
            threading.Event().wait(0.005)
        assert screen() == b"[0] drawn"
        pipe.write(b"\rlast")
        pipe.close()
        thread.join(30)
    assert screen() == b"[0] drawn\r[0] last \n"
