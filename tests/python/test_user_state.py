"""A script's state of each round, to bytes and back; and states of random generators."""

import json
import random

import numpy as np
import pytest
import torch

import ballast
import ballast.torch as bt
from ballast import user_state


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\0\1\xff",
        {"position": 17, "seen": [1, 2.5, None, True], "where": "ä"},
        [],
        0,
        "text",
        {1: "int", 2.5: "float", True: "bool", None: "none", "a": {3: {4: 5}}},
        {"__pairs__": 1},
        {"__counter__": {"a": 1}},
        [{"__pairs__": []}, {0: {"__pairs__": {1: 2}}}],
        {"tiny": 5e-324, "third": 1 / 3, "huge": 2**100},
    ],
)
def test_what_was_kept_comes_back(value):
    assert user_state.decode(user_state.encode(value)) == value


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [3, 5]),
        lambda o: torch.optim.lr_scheduler.StepLR(o, 2),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 9),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.5, total_steps=20),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [
                torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=2),
                torch.optim.lr_scheduler.MultiStepLR(o, [2, 4]),
            ],
            [3],
        ),
    ],
)
def test_schedulers_go_on_where_they_were(make):
    def begin():
        sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
        return sgd, make(sgd)

    def rates(sgd, scheduler, count):
        out = []
        for _ in range(count):
            sgd.step()
            scheduler.step()
            out.append(sgd.param_groups[0]["lr"])
        return out

    calm = rates(*begin(), 8)
    sgd, scheduler = begin()
    assert rates(sgd, scheduler, 2) == calm[:2]
    kept = user_state.decode(user_state.encode(scheduler.state_dict()))
    other, resumed = begin()
    resumed.load_state_dict(kept)
    for key in ("lr", "momentum"):
        other.param_groups[0][key] = sgd.param_groups[0][key]
    assert rates(other, resumed, 6) == calm[2:]


def test_bytes_may_be_of_any_kind():
    for value in (bytearray(b"ab"), memoryview(b"ab")):
        assert user_state.decode(user_state.encode(value)) == b"ab"


@pytest.mark.parametrize(
    "value", [torch.ones(1), {"x": {1, 2}}, np.float32(1), object(), {(1, 2): 3}]
)
def test_what_json_cannot_hold_is_refused(value):
    with pytest.raises(ballast.BadArgument, match=r"opt.user_state cannot be kept: .*Give bytes"):
        user_state.encode(value)


def test_the_limit_and_the_size_are_named():
    user_state.encode(bytes(65535))
    with pytest.raises(ballast.BadArgument, match="takes 65537 bytes, the limit is 65536"):
        user_state.encode(bytes(65536))


@pytest.mark.parametrize("data", [b"\1{", b"\1\xff", b"\2x", b"cposix\nsystem\n"])
def test_bytes_of_another_program_are_refused(data):
    with pytest.raises(ballast.BadArgument, match="written by another program"):
        user_state.decode(data)


def draw(*generators):
    """The next numbers of the global generators, or of those given."""
    if not generators:
        return [torch.rand(3).tolist(), random.random(), random.gauss(0, 1),
                np.random.rand(3).tolist(), np.random.randn()]  # fmt: skip
    numbers = []
    for g in generators:
        if isinstance(g, torch.Generator):
            numbers.append(torch.rand(3, generator=g).tolist())
        elif isinstance(g, random.Random):
            numbers.append([g.random(), g.gauss(0, 1)])
        elif isinstance(g, np.random.Generator):
            numbers.append([g.random(), g.standard_normal(), int(g.integers(9, dtype=np.uint32))])
        else:
            numbers.append([g.rand(), g.randn()])
    return numbers


def test_the_global_generators_go_on_where_they_were():
    draw()  # gauss and randn keep a second number back
    state = json.loads(json.dumps(bt.random_state()))
    expected = draw()
    draw()
    bt.set_random_state(state)
    assert draw() == expected
    assert len(user_state.encode(state)) < 16384


def generators(seed):
    torchs = torch.Generator().manual_seed(seed)
    bits = (np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64)
    numpys = [np.random.Generator(kind(seed)) for kind in bits]
    return [torchs, random.Random(seed), np.random.RandomState(seed), *numpys]


def test_given_generators_go_on_where_they_were():
    ours = generators(1)
    draw(*ours)
    state = json.loads(json.dumps(bt.random_state(*ours)))
    others = generators(2)
    bt.set_random_state(state, *others)
    assert draw(*others) == draw(*ours)


def test_a_state_fits_only_generators_of_its_kinds():
    state = bt.random_state(random.Random(1))
    with pytest.raises(ballast.BadArgument, match=r"of \['random.Random'\], the generators are"):
        bt.set_random_state(state, torch.Generator())
    with pytest.raises(ballast.BadArgument, match="a int is no generator"):
        bt.random_state(3)
    pcg = bt.random_state(np.random.Generator(np.random.PCG64(1)))
    with pytest.raises(ballast.BadArgument, match="is damaged"):
        bt.set_random_state(pcg, np.random.Generator(np.random.SFC64(1)))
    for damage in ({"words": "!!"}, {"words": ""}, {"version": 9}):
        with pytest.raises(ballast.BadArgument, match="is damaged"):
            bt.set_random_state([{**state[0], **damage}], random.Random(1))
    with pytest.raises(ballast.BadArgument, match="is damaged"):
        bt.set_random_state([{"kind": "torch.Generator", "state": "AAAA"}], torch.Generator())


@pytest.mark.parametrize("value", [None, b"\2", {"position": 3}])
def test_how_far_a_load_has_come_stands_in_front_of_the_value(value):
    encoded, loading = user_state.encode(value), user_state.Loading(bytes(range(16)), 5)
    during = user_state.encode_loading(encoded, loading)
    assert user_state.loading_of(during) == loading
    assert user_state.decode(during) == value
    assert user_state.loading_of(encoded) is None
    with pytest.raises(ballast.BadArgument, match="first byte is 2"):
        user_state.decode(during[:17])


def test_the_limit_is_lower_during_a_load():
    loading = user_state.Loading(bytes(16), 1)
    largest = user_state.encode(b"x" * (user_state.BYTES_MAX - 19))
    assert len(user_state.encode_loading(largest, loading)) == user_state.BYTES_MAX
    with pytest.raises(ballast.BadArgument, match="during load_export"):
        user_state.encode_loading(largest + b"x", loading)


@pytest.mark.parametrize("value", [None, b"\3", b"\2" * 40, {"position": 3}])
def test_the_place_of_training_data_stands_in_front_of_the_value(value):
    place = user_state.Place(2**63, 17, -1)
    encoded = user_state.encode(value)
    assert user_state.place_of(encoded) is None
    beside = user_state.encode_place(encoded, place)
    assert (user_state.place_of(beside), user_state.decode(beside)) == (place, value)
    during = user_state.encode_loading(beside, user_state.Loading(bytes(16), 1))
    assert (user_state.place_of(during), user_state.decode(during)) == (place, value)
    with pytest.raises(ballast.BadArgument, match="first byte is 3"):
        user_state.decode(beside[:24])


def test_the_limit_is_lower_with_a_position():
    largest = user_state.encode(b"x" * (user_state.BYTES_MAX - 26))
    place = user_state.Place(0, 0, 0)
    assert len(user_state.encode_place(largest, place)) == user_state.BYTES_MAX
    with pytest.raises(ballast.BadArgument, match="next to the position of training_data is 65511"):
        user_state.encode_place(largest + b"x", place)
