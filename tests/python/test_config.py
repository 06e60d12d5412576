"""ballast.config: argument > BALLAST_* > torchrun > default, and errors that say what to do."""

import math

import pytest
import torch

import ballast
from ballast import config
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


@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "8",
         "SLURM_STEP_ID": "0"},
        {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEPID": "3"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
        {"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "2"},
        {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"},
        {"PALS_RANKID": "0", "PMI_SIZE": "2"},
        {"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "2"},
        {"JSM_NAMESPACE_RANK": "0", "JSM_NAMESPACE_SIZE": "2"},
        {"PMIX_RANK": "1"},
        # mpirun in a script of sbatch, whose own variables say nothing of its tasks
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "SLURM_PROCID": "0",
         "SLURM_NTASKS": "2"},
    ],
)  # fmt: skip
def test_a_task_of_several_does_not_train_alone(variables):
    rank, size = next(iter(variables)), [*variables, "="][1]
    with pytest.raises(ballast.BadArgument) as caught:
        resolve(environ={**SERVER, **variables})
    assert f"{rank}={variables[rank]}" in caught.value.message
    assert size in caught.value.message and f"RANK=${rank}" in caught.value.message
    for own in ({"BALLAST_WORLD_SIZE": "1"}, {"RANK": "0", "WORLD_SIZE": "1"}):
        assert resolve(environ={**SERVER, **variables, **own}).world_size == 1
    launched = {"RANK": "1", "WORLD_SIZE": "2", "BALLAST_JOB": "j"}
    assert resolve(environ={**SERVER, **variables, **launched}).rank == 1


@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"},
        # a shell of salloc, a script of sbatch, and the interactive step that salloc starts
        {"SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "batch"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_ID": str(2**32 - 6)},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1",
         "SLURM_STEP_ID": "2"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"PMI_RANK": "", "PMI_SIZE": "2"},
    ],
)  # fmt: skip
def test_a_process_that_no_launcher_started_with_others_trains_alone(variables):
    assert resolve(environ={**SERVER, **variables}).world_size == 1


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
    env = {**SERVER, "BALLAST_ATTACH_TIMEOUT": "5", "BALLAST_TIME_SCALE": "4",
           "BALLAST_RECONNECT_TIMEOUT": "6"}  # fmt: skip
    c = resolve(environ=env)
    assert (c.attach_timeout, c.time_scale, c.reconnect_timeout) == (5.0, 4.0, 6.0)
    c = resolve(environ=SERVER)
    assert (c.attach_timeout, c.time_scale, c.reconnect_timeout) == (600.0, 1.0, 600.0)
    assert resolve(environ=env, reconnect_timeout=7).reconnect_timeout == 7.0


def test_a_variable_world_needs_durability():
    assert resolve(environ=SERVER, durability="power", variable_world=True).variable_world
    assert not resolve(environ=SERVER).variable_world
    with pytest.raises(ballast.BadArgument, match='durability="process"'):
        resolve(environ=SERVER, durability="none", variable_world=True)
    with pytest.raises(ballast.BadArgument, match="must be True or False"):
        resolve(environ=SERVER, durability="power", variable_world="yes")


def test_the_least_world_comes_from_the_argument_then_the_variable_then_the_default():
    env = {**SERVER, "BALLAST_MIN_WORLD_SIZE": "2"}
    seat = {"world_size": 3, "rank": 0, "job": "j", "variable_world": True}
    assert resolve(environ=env, **seat).min_world == 2
    assert resolve(environ=env, **seat, min_world=3).min_world == 3
    assert resolve(environ=SERVER, **seat).min_world == 1
    assert resolve(environ=env).min_world == 1  # a fixed world of the same script
    for least in (0, 4):
        with pytest.raises(ballast.BadArgument, match=rf"min_world={least}: must be in 1\.\.3"):
            resolve(environ=SERVER, **seat, min_world=least)
    with pytest.raises(ballast.BadArgument, match="BALLAST_MIN_WORLD_SIZE='x': must be a whole"):
        resolve(environ={**SERVER, "BALLAST_MIN_WORLD_SIZE": "x"}, **seat)
    with pytest.raises(ballast.BadArgument, match="only a variable_world"):
        resolve(environ=SERVER, min_world=1)


def test_the_device_comes_from_the_argument_then_the_variable_then_the_default():
    env = {**SERVER, "BALLAST_DEVICE": "nvme"}
    assert resolve(environ=env, device="cpu").device == "cpu"
    assert resolve(environ=env).device == "nvme"
    assert resolve(environ=SERVER).device == "auto"
    with pytest.raises(ballast.BadArgument, match="device='disk': must be one of"):
        resolve(environ=SERVER, device="disk")


def test_a_job_that_keeps_nothing_has_no_disk_to_live_on():
    env = {**SERVER, "BALLAST_DEVICE": "nvme"}
    assert resolve(environ=env, durability="none").device == "auto"
    with pytest.raises(ballast.BadArgument, match='durability="process"'):
        resolve(environ=SERVER, durability="none", device="nvme")


def test_durability_comes_from_the_argument_then_the_variable_then_the_default():
    env = {**SERVER, "BALLAST_DURABILITY": "power"}
    assert resolve(environ=env, durability="process").durability == "process"
    assert resolve(environ=env).durability == "power"
    assert resolve(environ=SERVER).durability == "power"


@pytest.mark.parametrize("value", [None, 0, 0.0, math.inf])
def test_no_clipping_can_be_said_in_every_usual_way(value):
    assert resolve(max_grad_norm=value, environ=SERVER).max_grad_norm == 0.0


def test_small_extents_bring_their_tiles_along():
    c = resolve(extent_elements=128, environ=SERVER)
    assert (c.tile_elements, c.extent_elements) == (128, 128)


def test_numbers_may_come_as_texts_and_as_other_types_numbers():
    c = resolve(
        world_size="2", rank=torch.tensor(1), job="j", tile_elements="128", extent_elements=256,
        loss_scale=torch.tensor(2.0), max_grad_norm="1.5", attach_timeout="7", environ=SERVER,
    )  # fmt: skip
    assert (c.world_size, c.rank, c.tile_elements, c.extent_elements) == (2, 1, 128, 256)
    assert (c.loss_scale, c.max_grad_norm, c.attach_timeout) == (2.0, 1.5, 7.0)
    assert all(type(n) is int for n in (c.world_size, c.rank, c.tile_elements, c.extent_elements))


@pytest.mark.parametrize(
    "arguments, extra, match",
    [
        ({"endpoints": ["nonsense"]}, {}, "'nonsense' is not host:port"),
        ({}, {"BALLAST_ENDPOINTS": "a:99999"}, "BALLAST_ENDPOINTS: 'a:99999'"),
        ({"endpoints": 5}, {}, "endpoints=5: must be"),
        ({"endpoints": [7000]}, {}, "endpoints: 7000 is not host:port"),
        ({"endpoints": "\ud800:1"}, {}, "is not host:port"),
        ({"endpoints": "a:0"}, {}, "ports 1 to 65535"),
        ({"job": "has space"}, {}, "job='has space'"),
        ({"job": 5}, {}, "job=5"),
        ({"job": "x" * 129}, {}, "1 to 128"),
        ({}, {"BALLAST_JOB": "../up"}, "BALLAST_JOB"),
        ({"world_size": 0}, {}, r"world_size=0: must be in 1\.\.65536"),
        ({"world_size": 2**40}, {}, r"world_size=1099511627776: must be in 1\.\.65536"),
        ({"world_size": 2.0}, {}, r"world_size=2\.0: must be a whole number"),
        ({"world_size": True}, {}, "world_size=True: must be a whole number"),
        ({"rank": [0]}, {}, r"rank=\[0\]: must be a whole number"),
        ({}, {"WORLD_SIZE": "two"}, "WORLD_SIZE='two'"),
        ({"world_size": 2, "job": "j"}, {}, "rank is not known"),
        ({"world_size": 2, "rank": 2, "job": "j"}, {}, r"rank=2: must be in 0\.\.1"),
        ({"world_size": 2, "rank": 0}, {}, "no name that all trainers share"),
        ({"world_size": 2, "rank": 0}, {"TORCHELASTIC_RUN_ID": "none"}, "no name"),
        ({"init": "guess"}, {}, "init='guess'"),
        ({"nonfinite": "raise"}, {}, "nonfinite='raise': must be one of 'skip', 'halt'"),
        ({"max_consecutive_skips": 0}, {}, r"must be in 1\.\.4294967295, or None for no limit"),
        ({"max_consecutive_skips": 1.5}, {}, r"max_consecutive_skips=1\.5: must be a whole number"),
        ({"max_grad_norm": -1}, {}, "max_grad_norm=-1"),
        ({"max_grad_norm": math.nan}, {}, "max_grad_norm=nan"),
        ({"max_grad_norm": "much"}, {}, "max_grad_norm='much': must be a positive number"),
        ({"loss_scale": 0}, {}, "loss_scale=0"),
        ({"loss_scale": None}, {}, "loss_scale=None: must be a positive, finite number"),
        ({"loss_scale": 10**400}, {}, "loss_scale=1000.*must be a positive, finite number"),
        ({"tile_elements": 100}, {}, "tile_elements=100"),
        ({"tile_elements": "big"}, {}, "tile_elements='big': must be a whole number"),
        ({"tile_elements": 2**40}, {}, "tile_elements=1099511627776: .* at most 16777216"),
        ({"tile_elements": 192}, {}, "tile_elements=192, extent_elements=1048576: the second"),
        ({"extent_elements": 2**25}, {}, "extent_elements=33554432: .* at most 16777216"),
        ({"extent_elements": 0}, {}, "extent_elements=0: must be a multiple of 64"),
        ({"tile_elements": 128, "extent_elements": 192}, {}, "extent_elements=192"),
        ({"attach_timeout": 0}, {}, "attach_timeout=0: must be seconds"),
        ({"attach_timeout": "soon"}, {}, "attach_timeout='soon': must be seconds"),
        ({"attach_timeout": 86401}, {}, "attach_timeout=86401: .* at most 86400"),
        ({}, {"BALLAST_ATTACH_TIMEOUT": "soon"}, "BALLAST_ATTACH_TIMEOUT='soon'"),
        ({"reconnect_timeout": 0}, {}, "reconnect_timeout=0: must be seconds"),
        ({}, {"BALLAST_RECONNECT_TIMEOUT": "x"}, "BALLAST_RECONNECT_TIMEOUT='x': must be seconds"),
        ({"durability": "disk"}, {}, "='disk': must be one of 'power', 'process', 'none'"),
        ({"durability": 1}, {}, "durability=1: must be one of"),
        ({}, {"BALLAST_DURABILITY": "Power"}, "BALLAST_DURABILITY='Power': must be one of"),
        ({}, {"BALLAST_TIME_SCALE": "-1"}, "BALLAST_TIME_SCALE='-1'"),
        ({}, {"BALLAST_TIME_SCALE": "x"}, "BALLAST_TIME_SCALE='x': .* at most 1000"),
    ],
)
def test_wrong_settings_are_named_with_their_source(arguments, extra, match):
    with pytest.raises(ballast.BadArgument, match=match):
        resolve(**arguments, environ={**SERVER, **extra})
