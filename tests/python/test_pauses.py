"""A trainer's lines while a state server is away: which, when, and from which rank."""

import io
import sys

import pytest
import torch

import ballast
import ballast.torch as bt
from ballast.pauses import Pause, PauseReporter, reason_of
from fake_core import FakePauseQueue

WHERE = (1, "127.0.0.1:7001", 57)  # server, address, round
RESET = "state server 1 at 127.0.0.1:7001 is gone: recvmsg:Connection reset by peer"
REFUSED = (
    "state server 1 at 127.0.0.1:7001 is gone: failed to connect to all addresses; last error: "
    "UNKNOWN: ipv4:127.0.0.1:7001: Failed to connect to remote host: Connection refused"
)
NEWS = [
    ("lost", *WHERE, 0.0, RESET),
    ("waiting", *WHERE, 5.0, REFUSED),
    ("waiting", *WHERE, 10.0, REFUSED),
    ("back", *WHERE, 13.24, REFUSED),
]


def lines(rank, news, capsys, timeout_s=600.0):
    queue = FakePauseQueue()
    reporter = PauseReporter(queue, rank, timeout_s, 300.0)
    queue.news = list(news)
    reporter.tell()
    reporter.tell()  # reported news is not repeated
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_rank_0_tells_everything(capsys):
    still = "ballast: server 1 (127.0.0.1:7001) is still away after {} s (connection refused); "
    still += "training waits, for at most 600 s"
    assert lines(0, NEWS, capsys) == [
        "ballast: server 1 (127.0.0.1:7001) is away (connection reset); training waits",
        still.format(5),
        still.format(10),
        "ballast: server 1 is back after 13.2 s; round 57 continues",
    ]


def test_a_connection_that_ends_at_its_age_is_no_loss(capsys):
    aged = "the connection has reached listen.max_connection_age; connect again"
    trainer = "its connection has reached listen.max_connection_age"
    news = [
        ("lost", *WHERE, 0.0, aged),
        ("trainer_lost", *WHERE, 0.0, trainer, [1]),
        ("back", *WHERE, 0.1, aged),
        ("trainer_back", *WHERE, 0.1, "", [1]),
    ]
    assert lines(0, news, capsys) == []
    # A server unreachable afterwards counts as away, and so does one lost next.
    late = [("lost", *WHERE, 0.0, aged), ("waiting", *WHERE, 5.0, REFUSED), news[2]]
    told = lines(0, [*late, ("lost", *WHERE, 0.0, RESET), news[2]], capsys)
    assert [line.split(";")[0].split("(")[0].strip() for line in told] == [
        "ballast: server 1",
        "ballast: server 1 is back after 0.1 s",
        "ballast: server 1",
        "ballast: server 1 is back after 0.1 s",
    ]


def test_an_attach_that_waits_says_for_which_server(capsys):
    known, unknown = (1, "127.0.0.1:7001", 0), (-1, "127.0.0.1:7000", 0)
    news = [
        ("lost", *known, 3.0, "server 1 does not answer: it is stopped"),
        ("waiting", *known, 8.0, REFUSED),
        ("back", *known, 9.0, REFUSED),
        ("lost", 1, "", 0, 3.0, "server 1 does not answer"),
        ("lost", *unknown, 3.0, "failed to connect to all addresses; Connection refused"),
        ("back", *unknown, 4.0, ""),
    ]
    assert lines(0, news, capsys) == [
        "ballast: server 1 (127.0.0.1:7001) is away (server 1 does not answer: it is stopped); "
        "attaching waits",
        "ballast: server 1 (127.0.0.1:7001) is still away after 8 s (connection refused); "
        "attaching waits, for at most 300 s",
        "ballast: server 1 is back after 9.0 s; attaching continues",
        "ballast: server 1 is away (server 1 does not answer); attaching waits",
        "ballast: the server at 127.0.0.1:7000 is away (connection refused); attaching waits",
        "ballast: the server at 127.0.0.1:7000 is back after 4.0 s; attaching continues",
    ]


@pytest.mark.parametrize("rank", [0, 3])
def test_a_trainer_that_was_given_up_and_lives_says_so_itself(rank, capsys):
    error = "slot 3 of this job sent no heartbeat for 2500ms and was given up; was it stopped?"
    news = [
        ("lost", *WHERE, 0.0, error),
        ("waiting", *WHERE, 40.0, error),
        ("back", *WHERE, 41.26, error),
    ]
    mark = f"rank {rank}: " if rank else ""
    assert lines(rank, news, capsys) == [
        f"ballast: {mark}server 1 (127.0.0.1:7001) had heard nothing of this trainer for 2500ms "
        "and has hung up; was this process stopped, or its machine too busy? Connecting again",
        f"ballast: {mark}server 1 (127.0.0.1:7001) is still away after 40 s (it had heard nothing "
        "of this trainer for 2500ms); training waits, for at most 600 s",
        f"ballast: {mark}server 1 is back after 41.3 s; round 57 continues",
    ]


def test_other_ranks_are_silent_about_a_short_pause(capsys):
    assert lines(3, [NEWS[0], NEWS[1], NEWS[3]], capsys) == []


def test_other_ranks_tell_of_a_long_pause_now_and_then(capsys):
    waits = [("waiting", *WHERE, 5.0 * i, REFUSED) for i in range(1, 13)]
    told = lines(3, [NEWS[0], *waits, ("back", *WHERE, 61.0, REFUSED)], capsys)
    assert [line.partition(" (connection refused)")[0] for line in told] == [
        "ballast: rank 3: server 1 (127.0.0.1:7001) is still away after 10 s",
        "ballast: rank 3: server 1 (127.0.0.1:7001) is still away after 40 s",
        "ballast: rank 3: server 1 is back after 61.0 s; round 57 continues",
    ]
    # The next pause starts from the beginning.
    assert lines(3, [NEWS[0], NEWS[1], NEWS[3]], capsys) == []


@pytest.mark.parametrize(
    "slots, who, take",
    [([1], "trainer 1 was", "takes"), ([1, 3], "trainers 1, 3 were", "take")],
)
def test_a_trainer_that_was_replaced_is_told_of(capsys, slots, who, take):
    home = (0, "127.0.0.1:7000", 9)
    news = [
        ("replacing", *home, 0.0, "", [], 0),
        ("replacing", *home, 0.1, "", slots, 4),
        ("lost", *WHERE, 0.0, RESET, [], 0),
        ("replaced", *home, 1.26, "", slots, 4),
    ]
    assert lines(0, news, capsys) == [
        "ballast: the trainers change; who comes is not known yet (no reason was given)",
        f"ballast: {who} started again and {take} part from epoch 4 on; training waits",
        "ballast: server 1 (127.0.0.1:7001) is away (connection reset); training waits",
        f"ballast: {who} let in after 1.3 s; round 9 continues",
    ]
    assert lines(2, news, capsys) == []


@pytest.mark.parametrize(
    "slots, joined, text",
    [
        ([1], [1], "trainer 1 has joined and takes part"),
        ([1, 2], [1, 2], "trainers 1, 2 have joined and take part"),
        ([1, 2], [2], "trainer 1 was started again and trainer 2 has joined; they take part"),
    ],
)
def test_who_joins_for_the_first_time_was_not_started_again(capsys, slots, joined, text):
    home = (0, "127.0.0.1:7000", 9)
    news = [
        ("replacing", *home, 0.1, "", slots, 4, [], 3, joined),
        ("replaced", *home, 1.26, "", slots, 4, [], 3, joined),
    ]
    first, last = lines(0, news, capsys)
    assert first == f"ballast: {text} from epoch 4 on; training waits"
    assert last.endswith("let in after 1.3 s; round 9 continues")


def test_the_lowest_rank_that_is_there_tells_of_trainer_0(capsys):
    home = (0, "127.0.0.1:7000", 9)
    news = [
        ("trainer_lost", *home, 0.0, "no heartbeat for 2.5s", [0]),
        ("trainer_back", *home, 6.0, "", [0]),
    ]
    assert lines(1, news, capsys) == [
        "ballast: rank 1: trainer 0 is away (no heartbeat for 2.5s); training waits",
        "ballast: rank 1: trainer 0 is back after 6.0 s; round 9 continues",
    ]
    assert lines(2, news, capsys) == []
    both = [("trainer_lost", *home, 0.0, "no heartbeat for 2.5s", [0, 1])]
    assert lines(2, both, capsys) == [
        "ballast: rank 2: trainer 0, 1 is away (no heartbeat for 2.5s); training waits"
    ]


def test_the_home_of_a_replaced_trainer_is_not_away(capsys):
    """Its number is in that news, too: its own pause is distinguished from it."""
    home = (1, "127.0.0.1:7001", 9)
    news = [
        ("lost", *home, 0.0, RESET, [], 0),
        ("replacing", *home, 0.1, "", [2], 4),
        ("replaced", *home, 0.2, "", [2], 4),
        ("back", *home, 3.0, RESET, [], 0),
    ]
    assert [line.split(" (")[0] for line in lines(0, news, capsys)] == [
        "ballast: server 1",
        "ballast: trainer 2 was started again and takes part from epoch 4 on; training waits",
        "ballast: trainer 2 was let in after 0.2 s; round 9 continues",
        "ballast: server 1 is back after 3.0 s; round 9 continues",
    ]
    assert lines(1, news, capsys) == []
    late = [("lost", *home, 0.0, RESET, [], 0), ("waiting", *home, 11.0, RESET, [], 0), *news[1:]]
    assert [line.split(" (")[0] for line in lines(1, late, capsys)] == [
        "ballast: rank 1: server 1",
        "ballast: rank 1: server 1 is back after 3.0 s; round 9 continues",
    ]


def test_a_trainer_that_is_away_and_then_gone_on_without_is_told_of(capsys):
    home = (0, "127.0.0.1:7000", 9)
    news = [
        ("trainer_lost", *home, 0.0, "no heartbeat for 2.5s", [1]),
        ("trainer_back", *home, 3.04, "", [1]),
        ("trainer_lost", *home, 0.0, "its connection closed without a Leave", [1]),
        ("replacing", *home, 0.1, "", [], 4, [1], 1),
        ("replaced", *home, 0.26, "", [], 4, [1], 1),
    ]
    assert lines(0, news, capsys) == [
        "ballast: trainer 1 is away (no heartbeat for 2.5s); training waits",
        "ballast: trainer 1 is back after 3.0 s; round 9 continues",
        "ballast: trainer 1 is away (its connection closed without a Leave); training waits",
        "ballast: continuing without trainer 1; 1 in all",
        "ballast: continuing without trainer 1; 1 in all, after 0.3 s; round 9 continues",
    ]


@pytest.mark.parametrize(
    "error, text",
    [
        (RESET, "connection reset"),
        (REFUSED, "connection refused"),
        ("state server 1 at 127.0.0.1:7001 is gone: Socket closed", "connection closed"),
        ("state server 1 at 127.0.0.1:7001 is not responding", "is not responding"),
        ("server 1 is shutting down", "server 1 is shutting down"),
        ("", "no reason was given"),
    ],
)
def test_the_reason_is_short(error, text):
    assert reason_of(Pause("lost", *WHERE, 0.0, error)) == text


def trained(fake):
    p = torch.nn.Parameter(torch.ones(8))
    opt = bt.AdamW([("p", p)])
    p.grad = torch.ones(8)
    opt.step()
    return p, opt


def test_a_step_tells_while_it_waits_and_at_its_end(fake, capsys):
    _, opt = trained(fake)
    told = []
    news = iter(NEWS)

    def on_wait():
        told.append(capsys.readouterr().err.count("\n"))
        fake.queue.news = [next(news)]

    fake.last.on_wait, fake.last.polls = on_wait, 3
    opt.step()
    assert told == [0, 1, 1, 1]
    assert "back after" in capsys.readouterr().err


def test_a_step_that_fails_tells_before_it_raises(fake, capsys):
    _, opt = trained(fake)
    fake.queue.news = [NEWS[0]]
    fake.last.wait_error = ballast.ServerLost("state server 1 has been away for 600 s", server=1)
    with pytest.raises(ballast.ServerLost):
        opt.step()
    assert "server 1 (127.0.0.1:7001) is away" in capsys.readouterr().err


def test_attaching_and_fetching_tell_too(fake, capsys):
    _, opt = trained(fake)
    fake.queue.news = [NEWS[0]]
    opt.export_state()
    assert "is away" in capsys.readouterr().err
    make = fake.PauseQueue

    def with_news():
        queue = make()
        queue.news = [NEWS[3]]
        return queue

    fake.PauseQueue = with_news
    trained(fake)
    assert "is back" in capsys.readouterr().err


def test_a_stderr_that_is_closed_ends_no_round(fake, monkeypatch):
    _, opt = trained(fake)
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    fake.queue.news = [NEWS[0]]
    opt.step()
    assert opt.round == 2
    assert (opt.last_report["paused_ms"], opt.last_report["reconnects"]) == (0.0, 0)
