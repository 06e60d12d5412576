"""A tiny GPT-2 with random weights, its data, and the cases in which scripts train it.

Comes from: the scripts in scripts/, which run in DeepSpeed, Trainer and Accelerate, and the tests
of GPT-2. Knows none of them, and nothing of Ballast: the recording script runs where Ballast is
not. Element counts are multiples of 8: there torch's fused AdamW is an exact oracle.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
import transformers

MICRO = 2  # samples of a micro-batch
LR, DECAY = 1e-2, 0.1
TOTAL, WARMUP = 12, 3  # rounds of the schedule
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclasses.dataclass(frozen=True)
class Case:
    """A script's model and length of training; as JSON between processes.

    passes: micro-batches of an epoch at each trainer; where accumulation does not divide it, the
    last window is shorter. own_length: the loss of a short window is divided by its own length, as
    Trainer does; otherwise by accumulation, as DeepSpeed and Accelerate do by themselves.
    bad_passes: micro-batches, counted from 0, whose loss is infinite. power: of the first loss
    scale of fp16. profile: of the section `ballast`, which DeepSpeed does not read. saves: a
    checkpoint after each so many rounds, in `folder`. strikes: after so many rounds it has the
    servers killed. dies: after so many rounds trainer 0 kills itself. resume: it continues.
    """

    dtype: str = "fp32"
    accumulation: int = 1
    clip: float = 0.0
    epochs: int = 2
    passes: int = 3
    own_length: bool = True
    bad_passes: tuple[int, ...] = ()
    schedule: bool = False
    power: int = 8
    profile: str | None = None
    folder: str = ""
    saves: int = 0
    dies: int = 0
    strikes: tuple[int, ...] = ()
    resume: bool = False

    @property
    def rounds(self) -> int:
        return self.epochs * math.ceil(self.passes / self.accumulation)

    def window(self, place: int) -> int:
        """Micro-batches of the window with number `place` of an epoch."""
        first = place - place % self.accumulation
        return min(self.accumulation, self.passes - first)

    def ends(self, place: int) -> bool:
        """Whether the micro-batch is the last one of its window."""
        return (place + 1) % self.accumulation == 0 or place + 1 == self.passes

    @staticmethod
    def of(values: dict[str, Any]) -> Case:
        """From what JSON has made of dataclasses.asdict()."""
        return Case(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


class Net(transformers.GPT2LMHeadModel):
    """Counts its forward passes; the loss of those in bad_passes is infinite."""

    bad_passes: tuple[int, ...] = ()
    passes = 0

    def forward(self, input_ids: Any = None, labels: Any = None, **named: Any) -> Any:
        output = super().forward(input_ids=input_ids, labels=labels, **named)
        if self.passes in self.bad_passes:
            output["loss"] = output.loss * math.inf
        self.passes += 1
        return output


def model(case: Case) -> Net:
    """In fp32, the same in all processes."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=128, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    made = Net(config)
    made.bad_passes = case.bad_passes
    return made


def groups(module: torch.nn.Module) -> list[dict[str, Any]]:
    """Trainer's: matrices decay, biases and norms do not."""
    named = list(module.named_parameters())
    return [
        {"params": [(n, p) for n, p in named if (p.dim() > 1) == decays], "weight_decay": decay}
        for decays, decay in ((True, DECAY), (False, 0.0))
    ]


class Data(torch.utils.data.Dataset):
    """Micro-batch i of trainer r is MICRO samples from (i * world + r) * MICRO on."""

    def __init__(self, case: Case, world: int) -> None:
        self._count = case.passes * world * MICRO

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(128, (12,), generator=torch.Generator().manual_seed(i))
        labels = ids.clone()
        labels[0] = -100  # Trainer counts it in the divisor of the loss, if it is a label.
        return {"input_ids": ids, "labels": labels}


def batches(case: Case, rank: int, world: int) -> list[dict[str, torch.Tensor]]:
    """The micro-batches of one trainer, as Accelerate deals them out."""
    data = Data(case, world)
    first = [(i * world + rank) * MICRO for i in range(case.passes)]
    return [torch.utils.data.default_collate([data[f + k] for k in range(MICRO)]) for f in first]


def ds_config(case: Case) -> dict[str, Any]:
    params = {"lr": LR, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": DECAY}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": MICRO,
        "gradient_accumulation_steps": case.accumulation,
        "gradient_clipping": case.clip,
        "optimizer": {"type": "AdamW", "params": {**params, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
    }
    if case.dtype == "bf16":
        config["bf16"] = {"enabled": True}
    if case.dtype == "fp16":
        config["fp16"] = {"enabled": True, "initial_scale_power": case.power, "hysteresis": 1,
                          "loss_scale_window": 3}  # fmt: skip
    if case.schedule:
        warmup = {"warmup_min_lr": 0.0, "warmup_max_lr": LR, "warmup_num_steps": WARMUP,
                  "warmup_type": "linear", "total_num_steps": TOTAL}  # fmt: skip
        config["scheduler"] = {"type": "WarmupDecayLR", "params": warmup}
    if case.profile is not None:
        config["ballast"] = {"profile": case.profile}
    return config
