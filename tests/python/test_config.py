"""ballast.config: argument > BALLAST_* > torchrun > default, and errors that say what to do."""

import math

import pytest

import ballast
from ballast.config import resolve

SERVER = {"BALLAST_ENDPOINTS": "a:1"}


def test_an_argument_beats_every_variable():
    env = {**SERVER, "BALLAST_JOB": "env", "BALLAST_WORLD_SIZE": "4", "BALLAST_RANK": "3",
           "WORLD_SIZE": "8", "RANK": "7"}  # fmt: skip
    c = resolve(endpoints=["b:2", "b:2"], job="arg", world_size=2, rank=1, environ=env)
    assert (c.endpoints, c.job, c.world_size, c.rank) == (("b:2",), "arg", 2, 1)


def test_ballast_variables_beat_those_of_torchrun():
    env = {**SERVER, "BALLAST_JOB": "mine", "BALLAST_WORLD_SIZE": "4", "BALLAST_SLOT": "3",
           "WORLD_SIZE": "8", "RANK": "7", "TORCHELASTIC_RUN_ID": "run"}  # fmt: skip
    c = resolve(environ=env)
    assert (c.job, c.world_size, c.rank) == ("mine", 4, 3)


def test_torchrun_alone_is_enough():
    env = {**SERVER, "WORLD_SIZE": "2", "RANK": "1", "TORCHELASTIC_RUN_ID": "run-7",
           "TORCHELASTIC_RESTART_COUNT": "2"}  # fmt: skip
    c = resolve(environ=env)
    assert (c.job, c.world_size, c.rank) == ("run-7.r2", 2, 1)


def test_alone_and_unnamed_a_trainer_gets_a_fresh_job_name():
    first, second = resolve(environ=SERVER), resolve(environ=SERVER)
    assert (first.world_size, first.rank) == (1, 0)
    assert first.job != second.job


def test_the_second_optimizer_of_a_script_gets_its_own_job():
    env = {**SERVER, "BALLAST_JOB": "gan"}
    assert [resolve(environ=env).job for _ in range(3)] == ["gan", "gan.2", "gan.3"]


@pytest.mark.parametrize("text", ["a:1,b:2", " a:1  b:2 ", "a:1,\nb:2,"])
def test_endpoints_are_separated_by_commas_or_space(text):
    assert resolve(environ={"BALLAST_ENDPOINTS": text}).endpoints == ("a:1", "b:2")


def test_ipv6_endpoints_are_understood():
    assert resolve(endpoints="[::1]:7000", environ={}).endpoints == ("[::1]:7000",)


def test_without_a_server_the_error_says_how_to_get_one():
    with pytest.raises(ballast.BadArgument, match="(?s)ballast-run.*ballastd --dev"):
        resolve(environ={})


def test_times_come_from_variables():
    c = resolve(environ={**SERVER, "BALLAST_ATTACH_TIMEOUT": "5", "BALLAST_TIME_SCALE": "4"})
    assert (c.attach_timeout, c.time_scale) == (5.0, 4.0)


@pytest.mark.parametrize("value", [None, 0, 0.0, math.inf])
def test_no_clipping_can_be_said_in_every_usual_way(value):
    assert resolve(max_grad_norm=value, environ=SERVER).max_grad_norm == 0.0


def test_small_extents_bring_their_tiles_along():
    c = resolve(extent_elements=128, environ=SERVER)
    assert (c.tile_elements, c.extent_elements) == (128, 128)


@pytest.mark.parametrize(
    "arguments, extra, match",
    [
        ({"endpoints": ["nonsense"]}, {}, "'nonsense' is not host:port"),
        ({}, {"BALLAST_ENDPOINTS": "a:99999"}, "BALLAST_ENDPOINTS: 'a:99999'"),
        ({"job": "has space"}, {}, "job='has space'"),
        ({"job": "x" * 129}, {}, "1 to 128"),
        ({}, {"BALLAST_JOB": "../up"}, "BALLAST_JOB"),
        ({"world_size": 0}, {}, "world_size=0"),
        ({}, {"WORLD_SIZE": "two"}, "WORLD_SIZE='two'"),
        ({"world_size": 2, "job": "j"}, {}, "rank is not known"),
        ({"world_size": 2, "rank": 2, "job": "j"}, {}, r"rank=2: must be in 0\.\.1"),
        ({"world_size": 2, "rank": 0}, {}, "no name that all trainers share"),
        ({"world_size": 2, "rank": 0}, {"TORCHELASTIC_RUN_ID": "none"}, "no name"),
        ({"init": "guess"}, {}, "init='guess'"),
        ({"max_grad_norm": -1}, {}, "max_grad_norm=-1"),
        ({"max_grad_norm": math.nan}, {}, "max_grad_norm=nan"),
        ({"loss_scale": 0}, {}, "loss_scale=0"),
        ({"tile_elements": 100}, {}, "tile_elements=100"),
        ({"tile_elements": 128, "extent_elements": 192}, {}, "extent_elements=192"),
        ({"attach_timeout": 0}, {}, "attach_timeout"),
        ({}, {"BALLAST_ATTACH_TIMEOUT": "soon"}, "BALLAST_ATTACH_TIMEOUT='soon'"),
        ({}, {"BALLAST_TIME_SCALE": "-1"}, "BALLAST_TIME_SCALE='-1'"),
    ],
)
def test_wrong_settings_are_named_with_their_source(arguments, extra, match):
    with pytest.raises(ballast.BadArgument, match=match):
        resolve(**arguments, environ={**SERVER, **extra})
