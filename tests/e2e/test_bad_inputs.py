"""A user's possible mistakes, row by row: the exact error, no state change, servers that continue.

Malformed frames are in wire_abuse_test.cc; unknown configuration keys in tests/server/config.
"""

from __future__ import annotations

import math
import os
import socket
import subprocess

import pytest
import torch

import ballast
import ballast.torch as bt
from e2e.cluster import (
    HANG_S,
    SMALL,
    Trainers,
    error_of,
    error_of_step,
    fresh_job,
    run_small_job,
    wait_for,
)
from e2e.oracle import differing_bits


@pytest.fixture
def cluster(prompt_clusters):
    """Two servers; after the test both must still run, and serve."""
    servers = prompt_clusters(2)
    yield servers
    assert servers.running() == [True, True]
    run_small_job(servers, world=2)


def named(**shapes) -> list[tuple[str, torch.nn.Parameter]]:
    """Parameters of ones with a gradient; {"w": 300} for one of 300 elements."""
    params = [(name, torch.nn.Parameter(torch.ones(shape))) for name, shape in shapes.items()]
    for _, p in params:
        p.grad = torch.full_like(p, 0.5)
    return params


def pair(cluster, **options) -> Trainers:
    return Trainers(cluster, [named(w=300, b=20) for _ in range(2)], **options)


def frozen_state(opt: bt.AdamW) -> list[torch.Tensor]:
    """Everything the service holds of a job, and the trainer's weights."""
    state = opt.export_state()["state"]
    held = [t for i in sorted(state) for _, t in sorted(state[i].items())]
    weights = [p.detach().clone() for group in opt.param_groups for p in group["params"]]
    return held + weights


def assert_same(before: list[torch.Tensor], after: list[torch.Tensor]) -> None:
    assert [differing_bits(a, b) for a, b in zip(before, after, strict=True)] == [0] * len(before)


# ---- hyper-parameters


@pytest.mark.parametrize(
    "key, value, text",
    [
        ("lr", math.nan, "lr"),
        ("lr", math.inf, "lr"),
        ("lr", -1.0, "lr"),
        ("betas", (1.0, 0.999), "beta1"),
        ("betas", (0.9, math.nan), "beta2"),
        ("eps", -1e-8, "eps"),
        ("weight_decay", math.nan, "weight_decay"),
    ],
)
def test_a_hyper_parameter_out_of_range_is_refused_and_nothing_changes(cluster, key, value, text):
    trainers = Trainers(cluster, [named(w=300, b=20)])
    trainers.step()
    (opt,) = trainers.optimizers
    before, good = frozen_state(opt), opt.param_groups[0][key]
    opt.param_groups[0][key] = value
    error = error_of_step(opt)
    assert isinstance(error, ballast.BadHyperparam), error
    assert "group 0" in str(error) and text in str(error)
    assert_same(before, frozen_state(opt))
    opt.param_groups[0][key] = good
    assert trainers.step()["opt_step"] == 2
    trainers.close()


@pytest.mark.parametrize("key, values", [("lr", (0.1, 0.2)), ("weight_decay", (0.0, -0.0))])
def test_hyper_parameters_that_differ_between_trainers_are_shown_to_all(cluster, key, values):
    groups = [[{"params": named(w=300)}, {"params": named(b=20)}] for _ in range(2)]
    trainers = Trainers(cluster, groups)
    trainers.step()
    weights = [g["params"][0].detach().clone() for g in trainers.optimizers[0].param_groups]
    for opt, value in zip(trainers.optimizers, values):
        opt.param_groups[1][key] = value
    for opt, error in zip(trainers.optimizers, trainers.errors()):
        assert isinstance(error, ballast.HyperparamMismatch), error
        assert error.code == "ABORTED" and error.round == 2
        assert f"group 1: {key}" in str(error)
        for part in ("slot 0", "slot 1", *(f"{v:.17g}" for v in values)):
            assert part in str(error)
        now = [g["params"][0].detach() for g in opt.param_groups]
        assert_same(weights, now)


# ---- attaching


def test_unequal_initial_weights_name_the_first_tensor_that_differs(cluster):
    trainers = pair(cluster)
    with torch.no_grad():
        trainers.optimizers[1].param_groups[0]["params"][1][7] += 1e-7
    for error in trainers.errors():
        assert isinstance(error, ballast.InitMismatch), error
        assert '"b"' in str(error) and "broadcast" in str(error)


def params_of(row: str) -> list:
    """Parameters in addition to those of pair(), by their difference."""
    if row == "dtype":
        return [(name, torch.nn.Parameter(p.detach().half())) for name, p in named(w=300, b=20)]
    if row == "groups":
        return [{"params": named(w=300)}, {"params": named(b=20)}]
    shapes = {"more": {"w": 300, "b": 20, "c": 1}, "name": {"w": 300, "c": 20}}
    shapes["shape"] = {"w": (3, 100), "b": 20}
    return named(**shapes.get(row, {"w": 300, "b": 20}))


@pytest.mark.parametrize(
    "row, options, text",
    [
        ("", {"world_size": 3}, "world is 3, the job has 2"),
        ("", {"max_grad_norm": 2.0}, "max_grad_norm is 2, the job has 0"),
        ("", {"loss_scale": 8.0}, "loss_scale is 8, the job has 1"),
        ("", {"extent_elements": 256}, "extent_elements is 256, the job has 128"),
        ("", {"tile_elements": 128}, "tile_elements is 128, the job has 64"),
        ("", {"init": "broadcast"}, "init modes"),
        ("", {"durability": "power"}, "durability is power, the job has none"),
        ("more", {}, "number of tensors is 3, the job has 2"),
        ("groups", {}, "number of groups is 2, the job has 1"),
        ("name", {}, 'tensor 1 ("b") is named "c" here'),
        ("shape", {}, 'tensor 0 ("w") has shape [3, 100], the job has [300]'),
        ("dtype", {}, 'tensor 0 ("w") has dtype fp16, the job has fp32'),
    ],
)
def test_a_difference_in_the_description_of_a_job_is_named_to_all(cluster, row, options, text):
    first = Trainers(cluster, {0: named(w=300, b=20)}, world=2)
    (waiting,) = first.start(error_of_step)
    cluster.wait_until_slot_waits(first.job, 0)
    arguments = {"endpoints": cluster.endpoints, "job": first.job, "world_size": 2, **SMALL}
    other = bt.AdamW(params_of(row), rank=1, **{**arguments, **options})
    for error in (error_of(other.attach), waiting.result(HANG_S)):
        assert isinstance(error, ballast.SpecMismatch), error
        assert error.code == "FAILED_PRECONDITION" and error.slot == 1
        assert text in str(error), error
    # Nothing is left of that job: its name is free.
    trainers = pair(cluster, job=first.job)
    trainers.step()
    trainers.close()


def test_a_seat_is_taken_once(cluster):
    trainers = pair(cluster)
    first, second = trainers.optimizers
    waiting = trainers.start(lambda opt: None if opt is second else error_of_step(opt))[0]
    cluster.wait_until_slot_waits(trainers.job, 0)
    thief = Trainers(cluster, {0: named(w=300, b=20)}, trainers.job, world=2)
    (error,) = thief.errors()
    assert isinstance(error, ballast.SlotTaken), error
    assert error.code == "ALREADY_EXISTS" and error.slot == 0
    second.step()
    assert waiting.result(HANG_S) is None
    trainers.close()


@pytest.mark.parametrize("finished", [False, True])
def test_the_name_of_a_job_is_used_once(start_cluster, finished):
    cluster = start_cluster(1, BALLAST_TIMING_JOB_TTL="1h")
    trainers = Trainers(cluster, [named(w=300)])
    trainers.step()
    if finished:
        trainers.close()
    again = Trainers(cluster, [named(w=300)], trainers.job)
    (error,) = again.errors()
    assert isinstance(error, ballast.NameInUse), error
    assert trainers.job in str(error)
    if not finished:
        assert trainers.step()["opt_step"] == 2
        trainers.close()
    run_small_job(cluster)


def test_a_finished_jobs_name_is_free_after_its_time_to_live(start_cluster):
    cluster = start_cluster(2, BALLAST_TIMING_JOB_TTL="100ms")
    job = fresh_job()
    for _ in range(2):
        trainers = Trainers(cluster, [named(w=300)], job)
        trainers.step()
        trainers.close()
        wait_for(lambda: job not in cluster.jobs(), "the job to be freed")


@pytest.mark.parametrize("name", ["", "a b", "-x", "a/b", "ü", "x" * 129])
def test_a_job_name_with_other_characters_is_refused_at_construction(name):
    with pytest.raises(ballast.BadArgument, match="job name"):
        bt.AdamW(named(w=8), endpoints="127.0.0.1:1", job=name)


def test_a_world_beyond_the_servers_limit_is_refused(cluster):
    trainers = Trainers(cluster, {0: named(w=300)}, world=2000)
    (error,) = trainers.errors()
    assert isinstance(error, ballast.BadSpec), error
    assert "world is 2000" in str(error) and "limits.max_slots" in str(error)


def test_two_parameters_of_one_name_are_refused(cluster):
    twice = [("w", p) for _, p in named(a=300, b=300)]
    (error,) = Trainers(cluster, [twice]).errors()
    assert isinstance(error, ballast.BadArgument), error
    assert "'w'" in str(error)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_a_dtype_the_service_lacks_is_refused_by_name(cluster, dtype):
    odd = torch.nn.Parameter(torch.ones(8, dtype=dtype))
    (error,) = Trainers(cluster, [named(w=300) + [("odd", odd)]]).errors()
    assert isinstance(error, ballast.Unsupported), error
    assert "'odd'" in str(error) and str(dtype) in str(error)


def test_a_job_beyond_the_memory_budget_is_refused_with_the_numbers(start_cluster):
    cluster = start_cluster(2, BALLAST_STORAGE_DRAM_BUDGET="16MiB")
    big = Trainers(cluster, [named(w=8_000_000)], extent_elements=1048576, tile_elements=65536)
    (error,) = big.errors()
    assert isinstance(error, ballast.OverBudget), error
    assert error.code == "RESOURCE_EXHAUSTED"
    assert "storage.dram_budget" in str(error)
    assert sum(c.isdigit() for c in str(error)) > 10, error
    run_small_job(cluster, world=2)


def test_without_a_server_the_endpoint_is_named():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets the port
        endpoint = f"127.0.0.1:{unused.getsockname()[1]}"
        opt = bt.AdamW(named(w=8), endpoints=endpoint, attach_timeout=1.0)
        error = error_of_step(opt)
    assert isinstance(error, ballast.Unreachable), error
    assert endpoint in str(error)


def test_the_admin_port_as_an_endpoint_is_told_apart(cluster):
    opt = bt.AdamW(named(w=8), endpoints=cluster.admin_addresses[0], attach_timeout=5.0)
    error = error_of_step(opt)
    assert isinstance(error, ballast.Unreachable), error
    assert "it does not speak gRPC, as the admin port does not" in str(error)


# ---- later groups


def test_a_late_group_on_one_trainer_only_is_refused_on_all(cluster):
    trainers = pair(cluster)
    trainers.step()
    weights = [p.detach().clone() for p in trainers.optimizers[0].param_groups[0]["params"]]
    trainers.optimizers[0].add_param_group({"params": named(late=64)})
    for opt, error in zip(trainers.optimizers, trainers.errors()):
        assert isinstance(error, ballast.LayoutMismatch), error
        assert_same(weights, [p.detach() for p in opt.param_groups[0]["params"]])


@pytest.mark.parametrize("late", [{"late": 65}, {"other": 64}])
def test_late_groups_that_differ_are_refused_on_all(cluster, late):
    trainers = pair(cluster)
    trainers.step()
    trainers.optimizers[0].add_param_group({"params": named(late=64)})
    trainers.optimizers[1].add_param_group({"params": named(**late)})
    for error in trainers.errors():
        assert isinstance(error, ballast.LayoutMismatch), error


def test_a_late_group_with_other_initial_weights_is_refused_on_all(cluster):
    trainers = pair(cluster)
    trainers.step()
    for slot, opt in enumerate(trainers.optimizers):
        late = named(late=64)
        with torch.no_grad():
            late[0][1].add_(slot)
        opt.add_param_group({"params": late})
    for error in trainers.errors():
        assert isinstance(error, ballast.InitMismatch), error
        assert '"late"' in str(error)


# ---- the server's own command line


def test_an_unknown_configuration_key_is_named_with_its_place(ballastd, tmp_path):
    config = tmp_path / "server.yaml"
    config.write_text("rounds:\n  chunk_byts: 1MiB\n")
    done = subprocess.run(
        [ballastd, "--config", config, "--check-config"],
        env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=HANG_S,
    )  # fmt: skip
    assert done.returncode == 2
    assert f'{config}:2:3: unknown field "chunk_byts"' in done.stderr
    assert 'did you mean "chunk_bytes"?' in done.stderr
