"""One class for each compared way of training; a process has one of them.

Comes from: peer_step.py. Goes to: ballast.torch, torch.optim, torch.distributed.fsdp, deepspeed.
All train the same model in bf16 from the same first values on the same tokens, clip to norm 1 and
step AdamW with fp32 masters; differences in precision are in the docstrings.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from gpu_kit import peer_model

CLIP = 1.0
DECAY = 0.1
BETAS = (0.9, 0.95)
EPS = 1e-8


class Contestant:
    """forward_backward() and step() make one training step; both return before a GPU is done."""

    def __init__(self, spec: dict[str, Any]) -> None:
        """spec: of peer_turns.spec()."""
        self.spec = spec
        self.sizes = peer_model.Sizes(**spec["sizes"])
        self.device = torch.device(spec["device"])
        self.batches = peer_model.batches(self.sizes, self.device)
        self.taken = 0
        self.module: torch.nn.Module | None = None
        self.build()

    def build(self) -> None:
        raise NotImplementedError

    def forward_backward(self) -> torch.Tensor:
        """The loss, without its graph."""
        loss = self.module(self._next_batch())
        loss.backward()
        return loss.detach()

    def step(self) -> None:
        raise NotImplementedError

    def said(self) -> dict[str, Any]:
        """This contestant's own facts about its last step."""
        return {}

    def close(self) -> None:
        pass

    def _next_batch(self) -> torch.Tensor:
        self.taken += 1
        return self.batches[self.taken % len(self.batches)]

    def _model(self, dtype: torch.dtype = torch.bfloat16) -> torch.nn.Module:
        return peer_model.model(self.sizes, self.device, dtype)

    def _adamw(self) -> dict[str, Any]:
        return {"lr": self.spec["lr"], "betas": BETAS, "eps": EPS, "weight_decay": DECAY}


class Torch(Contestant):
    """torch.optim.AdamW(fused=True) with everything on the device, the ceiling of speed.

    bf16 parameters and gradients; gradients are widened one by one, clipped and stepped in fp32
    masters, which are rounded back: 2 + 4 + 4 + 8 bytes per parameter at the peak.
    """

    def build(self) -> None:
        self.module = self._model()
        self.parameters = list(self.module.parameters())
        self.masters = [p.detach().float() for p in self.parameters]
        self.optimizer = torch.optim.AdamW(self.masters, fused=True, **self._adamw())

    def step(self) -> None:
        for p, master in zip(self.parameters, self.masters):
            master.grad, p.grad = p.grad.float(), None
        torch.nn.utils.clip_grad_norm_(self.masters, CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.masters)


class Ballast(Contestant):
    """bt.AdamW: bf16 parameters and gradients here, fp32 masters and moments in the servers."""

    def build(self) -> None:
        import ballast.torch as bt

        module = self._model()
        if self.spec.get("standin"):
            from gpu_kit import place

            place.Standin(Path(self.spec["standin"])).put(module)
        self.module = module
        self.optimizer = bt.AdamW(
            module.named_parameters(), **self._adamw(), max_grad_norm=CLIP,
            endpoints=self.spec["endpoints"], job=self.spec["job"], world_size=1, rank=0,
            durability=self.spec["durability"],
        )  # fmt: skip
        self.optimizer.attach()

    def step(self) -> None:
        if self.spec.get("faulty"):
            for p in self.module.parameters():
                p.grad.zero_()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def said(self) -> dict[str, Any]:
        report = self.optimizer.last_report or {}
        parts = ("push_ns", "wait_ns", "pull_ns", "collect_ns", "vote_ns", "step_ns")
        return {
            "bytes_up": report.get("bytes_up"), "bytes_down": report.get("bytes_down"),
            **{name[:-3] + "_ms": round(report[name] / 1e6, 2) for name in parts if name in report},
        }  # fmt: skip

    def close(self) -> None:
        self.optimizer.close()


def alone(folder: str, backend: str) -> None:
    """A process group of torch with this process only."""
    seat = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29511", "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
    os.environ.update(seat)  # DeepSpeed wants them; nothing listens there.
    store = torch.distributed.FileStore(str(Path(folder) / "store"), 1)
    torch.distributed.init_process_group(backend, rank=0, world_size=1, store=store)


class Fsdp2(Contestant):
    """fully_shard with CPUOffloadPolicy: fp32 parameters, gradients and moments on the host.

    The blocks are gathered in bf16, gradients are widened on the device;
    torch.optim.AdamW(fused=True) steps on the host.
    """

    def build(self) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

        cuda = self.device.type == "cuda"
        alone(self.spec["folder"], "cpu:gloo,cuda:nccl" if cuda else "gloo")
        options = {
            "mesh": init_device_mesh(self.device.type, (1,)),
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32
            ),
            "offload_policy": CPUOffloadPolicy(pin_memory=cuda and self.spec["pinned"]),
        }
        module = self._model(torch.float32)
        for block in module.blocks:
            fully_shard(block, **options)
        self.module = fully_shard(module, **options)
        self.optimizer = torch.optim.AdamW(module.parameters(), fused=True, **self._adamw())

    def step(self) -> None:
        # On a GPU, with one rank and torch 2.11, losses were wrong from the second step on, which
        # on the CPU have torch's digits. That gradients were still on their way is one guess.
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def close(self) -> None:
        torch.distributed.destroy_process_group()


class DeepSpeed(Contestant):
    """ZeRO-Offload: stage 2, bf16, masters, moments and DeepSpeedCPUAdam on the host."""

    def build(self) -> None:
        import deepspeed

        cuda = self.device.type == "cuda"
        alone(self.spec["folder"], "nccl" if cuda else "gloo")
        params = {**self._adamw(), "betas": list(BETAS)}
        config = {
            "train_micro_batch_size_per_gpu": self.sizes.batch,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": CLIP,
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": params},
            "zero_optimization": {
                "stage": 2,
                "offload_optimizer": {"device": "cpu", "pin_memory": cuda},
                "contiguous_gradients": True,
                "overlap_comm": True,
            },
            "steps_per_print": 10**9,
        }
        made = self._model()
        self.engine, *_ = deepspeed.initialize(
            model=made, model_parameters=made.parameters(), config=config
        )
        self.module = self.engine
        self.adam = type(self.engine.optimizer.optimizer).__name__

    def forward_backward(self) -> torch.Tensor:
        loss = self.engine(self._next_batch())
        self.engine.backward(loss)
        return loss.detach()

    def step(self) -> None:
        self.engine.step()

    def said(self) -> dict[str, Any]:
        return {"adam": self.adam}


KINDS = {"torch": Torch, "ballast": Ballast, "fsdp2": Fsdp2, "deepspeed": DeepSpeed}


def prepare(spec: dict[str, Any]) -> str:
    """The long work before training: imports, and DeepSpeed's compiler; returns the version."""
    if spec["kind"] != "deepspeed":
        return torch.__version__
    import deepspeed
    from deepspeed.ops import op_builder

    load_operator(op_builder.CPUAdamBuilder())
    if spec["device"] == "cpu":
        load_operator(op_builder.cpu.ShareMemCommBuilder())  # Where there is no NCCL.
    return deepspeed.__version__


def load_operator(builder: Any) -> None:
    """Compiles an operator of DeepSpeed, which keeps it for all that ask for it later.

    Without debug information, which is 40 % of the compiler's time, and no instruction of the code.
    """
    arguments = builder.cxx_args()
    builder.cxx_args = lambda: [each for each in arguments if each != "-g"]
    builder.load(verbose=True)
