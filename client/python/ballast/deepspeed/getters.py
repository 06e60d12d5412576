"""Scripts' questions to an engine: its counters, its sizes, and values of its configuration.

Comes from: ballast.deepspeed.engine, which derives from it. Thread safety: as the engine.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from ballast import config as job_config
from ballast.deepspeed.boundary import Boundary
from ballast.deepspeed.schedule import ServiceSchedule
from ballast.deepspeed.settings import Settings
from ballast.errors import at_border
from ballast.torch.service_optimizer import ServiceOptimizer


class Getters:
    """Reads of DeepSpeed's engine; an engine without an optimizer answers what can be known."""

    optimizer: ServiceOptimizer | None
    lr_scheduler: Any
    _boundary: Boundary
    _settings: Settings

    # ---- counters

    @property
    def micro_steps(self) -> int:
        return self._boundary.micro_steps

    @property
    def global_steps(self) -> int:
        return self._boundary.global_steps

    def get_global_steps(self) -> int:
        return self._boundary.global_steps

    @property
    def global_samples(self) -> int:
        return self._boundary.global_samples

    @property
    def skipped_steps(self) -> int:
        return self._boundary.skipped_steps

    # ---- where a round ends

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether a step() now would end a round."""
        return self._boundary.is_boundary()

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Whether the next steps end a round, in place of counting."""
        self._boundary.set(is_boundary)

    # ---- sizes

    def train_batch_size(self) -> int:
        """Samples of a round over all trainers."""
        return self._boundary.train

    def train_micro_batch_size_per_gpu(self) -> int:
        return self._boundary.micro

    def gradient_accumulation_steps(self) -> int:
        return self._boundary.accumulation

    def get_batch_info(self) -> tuple[int, int, int]:
        """(train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps)."""
        return self._boundary.train, self._boundary.micro, self._boundary.accumulation

    @at_border
    def set_train_batch_size(self, train_batch_size: int) -> None:
        """Another size of rounds; gradient_accumulation_steps follows. BadArgument otherwise."""
        self._boundary.resize(train_batch_size)

    # ---- the optimizer's values

    def get_lr(self) -> list[float]:
        """The learning rate of each group, with which the next round steps."""
        if isinstance(self.lr_scheduler, ServiceSchedule):
            return self.lr_scheduler.get_lr()
        return [float(group["lr"]) for group in self._groups()]

    def get_mom(self) -> list[Any]:
        """betas of each group, or its momentum; 0.0 where its optimizer has neither."""
        if isinstance(self.lr_scheduler, ServiceSchedule):
            self.lr_scheduler.show()
        return [group.get("betas", group.get("momentum", 0.0)) for group in self._groups()]

    def _groups(self) -> list[dict[str, Any]]:
        return [] if self.optimizer is None else self.optimizer.param_groups

    def get_global_grad_norm(self) -> float | None:
        """2-norm of the last round's mean gradient before clipping; None before the first."""
        return None if self.optimizer is None else self.optimizer.grad_norm

    def loss_scale(self) -> float:
        """The factor of the next backward() on the loss; attaches where the service moves it."""
        return 1.0 if self.optimizer is None else self.optimizer.loss_scale

    # ---- this trainer

    @property
    def global_rank(self) -> int:
        return job_config.seat(os.environ)[1] if self.optimizer is None else self.optimizer.rank

    @property
    def world_size(self) -> int:
        if self.optimizer is None:
            return job_config.seat(os.environ)[0]
        return self.optimizer.world_size

    @property
    def local_rank(self) -> int:
        return int(os.environ.get("LOCAL_RANK", "0"))

    # ---- the configuration, by the names of DeepSpeed's engine

    def zero_optimization_stage(self) -> int:
        return int(self._settings["zero_optimization.stage"])

    def zero_optimization(self) -> bool:
        return self.zero_optimization_stage() > 0

    def zero_optimization_partition_gradients(self) -> bool:
        return self.zero_optimization_stage() > 1

    def zero_optimization_partition_weights(self) -> bool:
        """False: there is no stage 3."""
        return False

    def fp16_enabled(self) -> bool:
        return bool(self._settings["fp16.enabled"])

    def bfloat16_enabled(self) -> bool:
        return bool(self._settings["bf16.enabled"])

    def get_data_types(self) -> tuple[torch.dtype, torch.dtype]:
        """(of the parameters, in which gradients of micro-batches add up)."""
        model = torch.float32
        if self.fp16_enabled() or self.bfloat16_enabled():
            model = torch.float16 if self.fp16_enabled() else torch.bfloat16
        wide = self._settings["data_types.grad_accum_dtype"] == "fp32"
        return model, torch.float32 if wide else model

    @property
    def sparse_tensor_module_names(self) -> set[str]:
        """Empty: sparse_gradients is refused."""
        return set()

    def dynamic_loss_scale(self) -> bool:
        """Whether fp16.loss_scale is 0, which means a dynamic one with fp16."""
        return not self._settings["fp16.loss_scale"]

    def initial_dynamic_scale(self) -> float:
        return 2.0 ** int(self._settings["fp16.initial_scale_power"])

    def gradient_clipping(self) -> float:
        return float(self._settings["gradient_clipping"])

    def managed_gradient_accumulation(self) -> bool:
        return bool(self._settings["managed_gradient_accumulation"])

    def steps_per_print(self) -> float | None:
        return self._settings["steps_per_print"]

    def wall_clock_breakdown(self) -> bool:
        return bool(self._settings["wall_clock_breakdown"])

    def optimizer_name(self) -> str | None:
        """optimizer.type of the configuration, else the class of the optimizer."""
        made = None if self.optimizer is None else type(self.optimizer).__name__
        return self._settings["optimizer.type"] or made

    def scheduler_name(self) -> str | None:
        return self._settings["scheduler.type"]

    def load_universal_checkpoint(self) -> bool:
        """Whether load_checkpoint() reads universal checkpoints (checkpoint.load_universal)."""
        return bool(self._settings["checkpoint.load_universal"])
