"""The package over real servers. Skipped, with the reason, where they are not built."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import ballast
import ballast.torch as bt
from real_training import CLIENT, SMALL, fresh_job, in_threads
from serving import built_ballastd


def model(dtype=torch.float32):
    # Element counts are multiples of 8: there torch's fused AdamW is an exact oracle.
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 8)).to(dtype)


def backward(module, i, seed=0):
    generator = torch.Generator().manual_seed(1000 * seed + i)
    x = torch.randn(4, 16, generator=generator).to(module[0].weight.dtype)
    module(x).float().square().mean().backward()


def run(module, optimizer, steps, first=0):
    for i in range(first, first + steps):
        optimizer.zero_grad()
        backward(module, i)
        optimizer.step()


def fused(parameters, **hyper):
    return torch.optim.AdamW(parameters, fused=True, **hyper)


def assert_same_state(opt, oracle):
    mine, torchs = opt.export_state()["state"], oracle.state_dict()["state"]
    assert mine.keys() == torchs.keys()
    for i, state in torchs.items():
        for key in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(mine[i][key], state[key]), (i, key)


@pytest.mark.parametrize("servers", [1, 2])
def test_weights_and_moments_are_torchs_bit_for_bit(shared_servers, servers):
    module = model()
    twin = copy.deepcopy(module)
    opt = bt.AdamW(module.named_parameters(), lr=1e-2, endpoints=shared_servers(servers), **SMALL)
    oracle = fused(twin.parameters(), lr=1e-2)
    for m, o in ((module, opt), (twin, oracle)):
        schedule = torch.optim.lr_scheduler.OneCycleLR(o, max_lr=3e-2, total_steps=30)
        for i in range(25):
            run(m, o, 1, i)
            schedule.step()
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), twin.parameters()))
    assert_same_state(opt, oracle)
    report = opt.last_report
    assert (report["round"], report["opt_step"], report["applied"]) == (25, 25, True)
    size = 4 * sum(p.numel() for p in module.parameters())
    assert (report["bytes_up"], report["bytes_down"]) == (size, size)
    assert opt.counters["payload_up_bytes"] == 26 * size  # the initial weights, then 25 gradients
    assert opt.counters["copied_up_bytes"] == 0
    # 25 times the weights; masters and both moments for the comparison above.
    assert opt.counters["copied_down_bytes"] == opt.counters["payload_down_bytes"] == 28 * size
    opt.close()


def test_missing_gradients_frozen_parameters_and_late_groups(shared_servers):
    module = model()
    twin = copy.deepcopy(module)
    late = [nn.Parameter(torch.ones(24)), nn.Parameter(torch.ones(24))]
    opt = bt.AdamW(module.named_parameters(), lr=1e-2, endpoints=shared_servers(2), **SMALL)
    oracle = fused(twin.named_parameters(), lr=1e-2)
    for m, o, extra in ((module, opt, late[0]), (twin, oracle, late[1])):
        m[2].bias.requires_grad_(False)
        run(m, o, 3)
        o.zero_grad()
        m[0].weight.grad = torch.ones(64, 16)
        o.step()
        m[2].bias.requires_grad_(True)
        o.add_param_group({"params": [("late", extra)], "lr": 0.1})
        extra.grad = torch.full((24,), 0.5)
        o.step()
        run(m, o, 3)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), twin.parameters()))
    assert torch.equal(*late)
    assert_same_state(opt, oracle)
    opt.close()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_parameters_step_fp32_masters(shared_servers, dtype):
    module = model(dtype)
    masters = [nn.Parameter(p.detach().float()) for p in module.parameters()]
    opt = bt.AdamW(module.named_parameters(), lr=1e-3, endpoints=shared_servers(1), **SMALL)
    oracle = fused(masters, lr=1e-3)
    for i in range(10):
        opt.zero_grad()
        backward(module, i)
        for p, master in zip(module.parameters(), masters):
            master.grad = p.grad.float()
        opt.step()
        oracle.step()
    assert all(torch.equal(p, q.to(dtype)) for p, q in zip(module.parameters(), masters))
    assert_same_state(opt, oracle)
    opt.close()


def test_odd_tensors_travel_whole(shared_servers):
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "scalar": torch.tensor(2.0),
        "empty": torch.zeros(0, 3),
        "strided": torch.randn(24, 16, generator=generator).t(),
    }
    keep = torch.preserve_format
    mine = {k: nn.Parameter(v.clone(memory_format=keep)) for k, v in tensors.items()}
    opt = bt.AdamW(mine.items(), endpoints=shared_servers(1), **SMALL)
    contiguous = nn.Parameter(tensors["strided"].contiguous())
    oracle = fused([contiguous])
    for _ in range(3):
        for p in mine.values():
            p.grad = torch.full_like(p, 0.25)
        contiguous.grad = torch.full_like(contiguous, 0.25)
        opt.step()
        oracle.step()
    assert not mine["strided"].is_contiguous()
    # The strided tensor is copied once more: the initial weights and three gradients; three
    # weights.
    counts, strided_bytes = opt.counters, mine["strided"].nbytes
    assert counts["copied_up_bytes"] == 4 * strided_bytes
    assert counts["copied_down_bytes"] - counts["payload_down_bytes"] == 3 * strided_bytes
    assert torch.equal(mine["strided"], contiguous)
    state = opt.export_state()["state"]
    assert state[0]["master"].shape == () and state[1]["master"].shape == (0, 3)
    assert torch.equal(state[2]["exp_avg"], oracle.state[contiguous]["exp_avg"])
    with torch.no_grad():
        mine["strided"].zero_()
    opt.fetch_weights()
    assert torch.equal(mine["strided"], contiguous)
    opt.close()


@pytest.mark.parametrize("init", ["equal", "broadcast"])
def test_two_trainers_step_the_mean_of_their_gradients(shared_servers, init):
    endpoints, job = shared_servers(2), fresh_job("pair")
    modules = [model(), model()]
    twin = model()
    if init == "broadcast":
        with torch.no_grad():
            for p in modules[1].parameters():
                p.zero_()
    optimizers = [
        bt.AdamW(m.named_parameters(), lr=1e-2, endpoints=endpoints, job=job, world_size=2,
                 rank=rank, init=init, **SMALL)
        for rank, m in enumerate(modules)
    ]  # fmt: skip
    oracle = fused(twin.parameters(), lr=1e-2)

    def trainer(rank):
        if init == "broadcast":
            optimizers[rank].attach()
        for i in range(8):
            optimizers[rank].zero_grad()
            backward(modules[rank], i, seed=rank)
            optimizers[rank].step()

    in_threads(*(lambda r=r: trainer(r) for r in range(2)))
    for i in range(8):
        grads = []
        for rank in range(2):
            twin.zero_grad()
            backward(twin, i, seed=rank)
            grads.append([p.grad for p in twin.parameters()])
        for p, a, b in zip(twin.parameters(), *grads):
            p.grad = (a + b) * 0.5
        oracle.step()
    for m in modules:
        assert all(torch.equal(a, b) for a, b in zip(m.parameters(), twin.parameters()))
    in_threads(*(o.close for o in optimizers))


def pair_of(endpoints, attach_timeout=60, different=()):
    p = [nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))]
    for q in p:
        q.grad = torch.ones(8)
    options = {"endpoints": endpoints, "job": fresh_job("pair"), "world_size": 2, **SMALL,
               "attach_timeout": attach_timeout}  # fmt: skip
    first = bt.AdamW([("w", p[0])], rank=0, **options)
    second = bt.AdamW([("w", p[1])], rank=1, **options, **dict(different))
    return p, (first, second)


def attach_errors(optimizers):
    """The errors of a pair of trainers that cannot agree. The first one waits for its peer in vain,
    the second one hears why."""
    seen = []

    def attempt(optimizer):
        with pytest.raises(ballast.BallastError) as caught:
            optimizer.step()
        seen.append(caught.value)

    in_threads(*(lambda o=o: attempt(o) for o in optimizers))
    return {type(error): str(error) for error in seen}


def test_unequal_initial_weights_are_refused_with_the_tensors_name(shared_servers):
    p, optimizers = pair_of(shared_servers(1), attach_timeout=2)
    with torch.no_grad():
        p[1].mul_(2)
    assert '"w"' in attach_errors(optimizers)[ballast.InitMismatch]


def test_a_different_description_of_the_job_is_refused_with_the_fields_name(shared_servers):
    _, optimizers = pair_of(shared_servers(1), attach_timeout=2, different={"max_grad_norm": 1.0})
    assert "max_grad_norm" in attach_errors(optimizers)[ballast.SpecMismatch]


def test_unequal_hyperparameters_are_refused_on_all_trainers(shared_servers):
    p, optimizers = pair_of(shared_servers(1))
    in_threads(*(o.step for o in optimizers))
    before = p[0].detach().clone()
    optimizers[1].param_groups[0]["lr"] = 0.5
    seen = []

    def refused(optimizer):
        with pytest.raises(ballast.HyperparamMismatch, match="lr") as caught:
            optimizer.step()
        seen.append(caught.value.round)

    in_threads(*(lambda o=o: refused(o) for o in optimizers))
    assert seen == [2, 2]
    assert torch.equal(p[0], before)


def test_a_missing_trainer_is_named(shared_servers):
    p = nn.Parameter(torch.ones(8))
    opt = bt.AdamW([p], endpoints=shared_servers(1), job=fresh_job("missing"), world_size=2, rank=0,
                   **{**SMALL, "attach_timeout": 0.5})  # fmt: skip
    with pytest.raises(ballast.AttachTimeout, match="1"):
        opt.step()


def test_clipping_and_skipping_are_reported(shared_servers):
    module = model()
    opt = bt.AdamW(module.parameters(), max_grad_norm=1e-3, endpoints=shared_servers(2), **SMALL)
    run(module, opt, 1)
    norm = torch.cat([p.grad.flatten() for p in module.parameters()]).double().norm().item()
    # The service sums squares in fp32 lanes per tile, then in fp64 (server/reduce/reduce.h).
    assert opt.grad_norm == pytest.approx(norm, rel=1e-6)
    assert opt.clip_coef == pytest.approx(1e-3 / (opt.grad_norm + 1e-6), rel=1e-12)
    before = copy.deepcopy(module)
    module[0].weight.grad[0, 0] = float("inf")
    opt.step()
    assert opt.step_was_skipped and (opt.round, opt.opt_step) == (2, 1)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), before.parameters()))
    opt.close()


def test_data_loader_workers_after_the_first_step(shared_servers):
    module = model()
    opt = bt.AdamW(module.parameters(), endpoints=shared_servers(1), **SMALL)
    run(module, opt, 1)
    loader = torch.utils.data.DataLoader(torch.arange(8), batch_size=2, num_workers=2)
    for _ in range(2):
        assert sum(len(b) for b in loader) == 8
        run(module, opt, 1)
    assert opt.round == 3
    opt.close()


def test_without_a_server_the_error_is_unreachable():
    built_ballastd()
    opt = bt.AdamW([nn.Parameter(torch.ones(8))], endpoints="127.0.0.1:1", attach_timeout=2)
    with pytest.raises((ballast.Unreachable, ballast.AttachTimeout), match="127.0.0.1:1"):
        opt.step()


TRAIN = """
import hashlib, os, sys
import torch, ballast.torch as bt
torch.manual_seed(0)
module = torch.nn.Linear(32, 16)
opt = bt.AdamW(module.named_parameters(), lr=1e-2, extent_elements=128, tile_elements=64)
torch.manual_seed(int(os.environ["RANK"]))
for _ in range(5):
    opt.zero_grad()
    module(torch.randn(4, 32)).square().mean().backward()
    opt.step()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in module.parameters()))
print(opt.round, digest.hexdigest())
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("code", [0, 3])
def test_ballast_run_two_by_two(tmp_path, code):
    binary = built_ballastd()
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    env = {**os.environ, "PYTHONPATH": str(CLIENT), "BALLAST_BALLASTD": str(binary)}
    done = subprocess.run(
        [sys.executable, "-m", "ballast.run", "--servers", "2", "--nproc", "2", script, str(code)],
        env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert [line[:6] for line in lines] == ["[0] 5 ", "[1] 5 "]
    assert lines[0][4:] == lines[1][4:]
