"""Optimizers of DeepSpeed outside of initialize(): fp32 state, Lion and LAMB; initialize()."""

from __future__ import annotations

import ballast.deepspeed as deepspeed
import ballast.torch as bt
import pytest
import torch
from ballast.deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from ballast.deepspeed.ops.adam import DeepSpeedCPUAdam
from ballast.deepspeed.ops.lamb import FusedLamb
from ballast.deepspeed.ops.lion import DeepSpeedCPULion, FusedLion
from ballast.errors import Unsupported


def ran(make, dtype, closure=False, rounds=3):
    """The parameter and the optimizer after some steps."""
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.randn(8).to(dtype))
    optimizer = make([p])
    for i in range(rounds):
        grad = torch.randn(8).to(dtype)

        def set_grad(grad=grad, i=i):
            p.grad = grad.clone()
            return i

        if closure:
            assert optimizer.step(set_grad) == i
        else:
            set_grad()
            optimizer.step()
    return p, optimizer


@pytest.mark.parametrize("of", [DeepSpeedCPUAdam, DeepSpeedCPUAdagrad])
@pytest.mark.parametrize("closure", [False, True])
def test_16_bit_parameters_have_fp32_state(of, closure):
    p, optimizer = ran(lambda ps: of(ps, lr=0.1), torch.bfloat16, closure)
    state = {k: v.dtype for k, v in optimizer.state[p].items() if k != "step"}
    assert state and set(state.values()) == {torch.float32}
    assert optimizer.param_groups[0]["params"] == [p] and list(optimizer.state) == [p]
    # The same in fp32, rounded after each step.
    torch.manual_seed(0)
    twin = torch.nn.Parameter(torch.randn(8).bfloat16().float())
    other = of([twin], lr=0.1)
    for _ in range(3):
        twin.grad = torch.randn(8).bfloat16().float()
        other.step()
        twin.data = twin.data.bfloat16().float()
    assert torch.equal(p.float(), twin)


def test_a_step_that_fails_leaves_the_parameters():
    p, optimizer = ran(DeepSpeedCPUAdam, torch.bfloat16, rounds=1)
    optimizer.param_groups[0]["lr"] = "0.1"
    with pytest.raises(TypeError):
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.1
    before = p.detach().clone()
    optimizer.step()
    assert optimizer.param_groups[0]["params"][0] is p and not torch.equal(p, before)
    optimizer.load_state_dict(optimizer.state_dict())  # torch casts the state to bf16
    optimizer.step()
    assert optimizer.state[p]["exp_avg"].dtype == torch.float32


def test_lion_and_lamb_step_as_their_formulas_say():
    p, _ = ran(lambda ps: FusedLion(ps, lr=0.5, weight_decay=0.1), torch.float32, rounds=1)
    torch.manual_seed(0)
    old, grad = torch.randn(8), torch.randn(8)
    assert torch.allclose(p, old * (1 - 0.05) - 0.5 * grad.sign())
    p, optimizer = ran(lambda ps: FusedLamb(ps, lr=0.5), torch.float32, True, rounds=1)
    update = grad / (grad.abs() + 1e-8)
    assert torch.allclose(p, old - 0.5 * old.norm() / update.norm() * update, atol=1e-6)
    assert optimizer.state[p]["step"] == 1
    for wrong in ({"amsgrad": True}, {"eps_inside_sqrt": True}, {"max_grad_norm": 1.0}):
        with pytest.raises(Unsupported, match="gradient_clipping of the ds_config clips"):
            FusedLamb([p], **wrong)


def test_initialize_takes_them_over_with_their_state(shared_servers, monkeypatch):
    monkeypatch.setenv("BALLAST_ENDPOINTS", shared_servers(1)[0])
    for of, ours in ((DeepSpeedCPULion, bt.Lion), (FusedLion, bt.Lion), (FusedLamb, bt.LAMB)):
        module = torch.nn.Linear(4, 2)
        given = of(module.parameters(), lr=0.25)
        module(torch.ones(1, 4)).sum().backward()
        given.step()
        given.zero_grad()
        moment = given.state[module.weight]["exp_avg"].clone()
        engine, optimizer, *_ = deepspeed.initialize(
            model=module, optimizer=given, config={"train_micro_batch_size_per_gpu": 1})
        assert type(optimizer) is ours and optimizer.param_groups[0]["lr"] == 0.25
        optimizer.attach()
        assert torch.equal(optimizer.export_state()["state"][0]["exp_avg"], moment)
        engine.destroy()
