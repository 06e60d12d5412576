"""DeepSpeed's engine over an optimizer in the service: forward, backward, step, and its counters.

Comes from: ballast.deepspeed.initialize. Goes to: ballast.torch, ballast.monitor. Thread safety:
used by one thread at a time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch

from ballast.deepspeed import checkpoint, universal, utils
from ballast.deepspeed.boundary import Boundary
from ballast.deepspeed.loader import Loader
from ballast.deepspeed.names import engine_advice
from ballast.deepspeed.progress import Progress
from ballast.deepspeed.transfers import Transfers
from ballast.errors import BadArgument, Unsupported, at_border
from ballast.monitor import Monitor, round_events, timer_events
from ballast.torch.service_optimizer import ServiceOptimizer
from ballast.user_state import Place


class DeepSpeedEngine:
    """What deepspeed.initialize() returns first. Names that it lacks are the module's.

    module: the model. optimizer: a ballast.torch optimizer. lr_scheduler, training_dataloader: or
    None. micro_steps, global_steps, global_samples, skipped_steps: as in DeepSpeed.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer: ServiceOptimizer,
        lr_scheduler: Any,
        training_dataloader: Any,
        boundary: Boundary,
        monitor: Monitor,
        stage: int,
        sums_in_fp32: bool = False,
        progress: Progress | None = None,
        transfers: Transfers | None = None,
        loads_universal: bool = False,
    ) -> None:
        """stage: zero_optimization.stage, which scripts ask for. sums_in_fp32: gradients of 16 bits
        add up in fp32 over the micro-batches of a round. progress: prints. transfers: comms_logger,
        or None when it is off. loads_universal: checkpoint.load_universal."""
        self.module = module
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.training_dataloader = training_dataloader
        self.monitor = monitor
        self._boundary = boundary
        self._stage = stage
        self._sums_in_fp32 = sums_in_fp32
        self._scales = optimizer._membership.config.loss_scale != 1.0
        self._applied = False
        self._no_sync = False
        self._progress = progress or Progress(None, False, 0)
        self._transfers = transfers
        self._loads_universal = loads_universal
        utils.know(optimizer)
        if isinstance(training_dataloader, Loader):
            training_dataloader.follow(self._found_place)
        self.commit_place()

    def __getattr__(self, name: str) -> Any:
        module = self.__dict__.get("module")
        if module is not None and not name.startswith("__") and hasattr(module, name):
            return getattr(module, name)
        raise AttributeError(engine_advice(name))

    # ---- the loop

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        self._enter()
        with self._progress.timed("fwd"):
            return self.module(*inputs, **named)

    forward = __call__

    def _enter(self) -> None:
        """Before a forward pass: weights of the job that a resumed run continues, or the lowest
        rank's, come into the model. In the first one, and of the latter also in the first one with
        parameters that can be trained from now on."""
        membership = self.optimizer._membership
        brought = membership.config.init == "broadcast" and not membership.alone
        if membership.session is None:
            if brought or membership.config.resume != "never":
                self.optimizer.attach()
        elif brought and membership.may_grow(self.optimizer.param_groups):
            self.optimizer.attach()

    def _found_place(self) -> Place | None:
        """Where the job's last round has left training_data; attaches, if it may be resumed."""
        membership = self.optimizer._membership
        if membership.config.resume != "never":
            self.optimizer.attach()
        return membership.place

    def commit_place(self) -> None:
        """The rounds of the optimizer's present job commit where training_data stands."""
        if isinstance(self.training_dataloader, Loader):
            self.optimizer._membership.place_now = self.training_dataloader.commit

    @at_border
    def backward(
        self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True
    ) -> torch.Tensor:
        """Adds the gradients of loss / gradient_accumulation_steps, and returns that loss.

        scale_wrt_gas=False: the caller has divided. The loss scale of fp16 is multiplied in and
        divided out by the service. Gradients add up in the parameter's dtype, or in fp32 with
        data_types.grad_accum_dtype.
        """
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise BadArgument("backward() takes a loss of one element")
        divides = scale_wrt_gas and self._boundary.accumulation > 1
        scaled = loss / self._boundary.accumulation if divides else loss
        with self._progress.timed("bwd"):
            if self._sums_in_fp32 and self._boundary.backwards:
                with self.optimizer.no_sync():
                    self.optimizer.step()  # adds the micro-batch before
            self._boundary.backward()
            grown = self.optimizer.scale(scaled) if self._scales else scaled
            grown.backward(retain_graph=retain_graph)
        return scaled

    @at_border
    def step(self, lr_kwargs: dict[str, Any] | None = None) -> None:
        """At the end of a round: the optimizer's step, then the schedule's, and gradients are gone.

        Elsewhere it counts the micro-batch only. A round that was skipped on all trainers moves
        global_steps and skipped_steps, and the schedule stays. lr_kwargs: of lr_scheduler.step().
        """
        if self._no_sync:
            raise BadArgument("step() inside no_sync(); leave it first")
        ends = self._boundary.is_boundary()
        self._applied = False
        with self._progress.timed("step"):
            if ends:
                self._round(lr_kwargs or {})
        self._boundary.step_ended()
        self._progress.micro_batch_ended(ends)
        if ends:
            self._report()

    def _report(self) -> None:
        """Prints and writes what there is to say of the round that has just ended."""
        if self._progress.due(self.global_steps):
            self._progress.step_ended(
                self.global_steps, self.skipped_steps, self.get_lr(), self.get_mom()
            )
        times: dict[str, float] = {}
        if self._transfers is not None or self._progress.breakdown:
            report = self.optimizer.last_report or {}
            if self._transfers is not None:
                self._transfers.add(report)
            times = self._progress.round_ended(report)
        if self.monitor.enabled:
            scale = self.loss_scale() if self._scales else None
            events = round_events(self.global_samples, self.get_lr()[0], scale)
            self.monitor.write_events(events + timer_events(self.global_samples, times))

    def _round(self, lr_kwargs: dict[str, Any]) -> None:
        self._boundary.check_round()
        self.optimizer.step()
        self.zero_grad()
        self._applied = not self.optimizer.step_was_skipped
        self._boundary.round_ended(self._applied)
        if self._applied and self.lr_scheduler is not None:
            self.lr_scheduler.step(**lr_kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Micro-batches whose gradients add up here; step() is refused inside."""
        self._no_sync = True
        try:
            yield
        finally:
            self._no_sync = False

    def zero_grad(self) -> None:
        """No parameter of the module, or of the optimizer, has a gradient then."""
        _clear(self.module)
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def train(self, mode: bool = True) -> None:
        self.module.train(mode)

    def eval(self) -> None:
        self.module.eval()

    # ---- where a round ends

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether a step() now would end a round."""
        return self._boundary.is_boundary()

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Whether the next steps end a round, in place of counting."""
        self._boundary.set(is_boundary)

    def was_step_applied(self) -> bool:
        """Whether the last round changed the weights; False before the first."""
        return self._applied

    @property
    def micro_steps(self) -> int:
        return self._boundary.micro_steps

    @property
    def global_steps(self) -> int:
        return self._boundary.global_steps

    @property
    def global_samples(self) -> int:
        return self._boundary.global_samples

    @property
    def skipped_steps(self) -> int:
        return self._boundary.skipped_steps

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

    def zero_optimization_stage(self) -> int:
        return self._stage

    # ---- what the optimizer says

    def get_lr(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def get_mom(self) -> list[Any]:
        """betas of each group, or its momentum; 0.0 where its optimizer has neither."""
        groups = self.optimizer.param_groups
        return [group.get("betas", group.get("momentum", 0.0)) for group in groups]

    def get_global_grad_norm(self) -> float | None:
        """2-norm of the last round's mean gradient before clipping; None before the first."""
        return self.optimizer.grad_norm

    def loss_scale(self) -> float:
        """What the next backward() multiplies the loss by; attaches where the service moves it."""
        return self.optimizer.loss_scale

    # ---- this trainer

    @property
    def global_rank(self) -> int:
        return self.optimizer.rank

    @property
    def world_size(self) -> int:
        return self.optimizer.world_size

    @property
    def local_rank(self) -> int:
        return int(os.environ.get("LOCAL_RANK", "0"))

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    # ---- weights and the end

    def module_state_dict(self, exclude_frozen_parameters: bool = False) -> dict[str, Any]:
        """The module's state dict, without parameters that are not trained if so asked."""
        state = self.module.state_dict()
        if exclude_frozen_parameters:
            frozen = {n for n, p in self.module.named_parameters() if not p.requires_grad}
            return {name: value for name, value in state.items() if name not in frozen}
        return state

    def save_16bit_model(
        self,
        save_dir: str,
        save_filename: str = "pytorch_model.bin",
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Rank 0 writes the weights in their present dtype; True on all.

        A name that ends with .safetensors gives such a file, another one what torch.save() writes.
        The file takes its place as a whole. Raises StorageFailed when the disk refuses.
        """
        if self.global_rank == 0:
            state = self.module_state_dict(exclude_frozen_parameters)
            checkpoint.write_weights(os.path.join(save_dir, save_filename), state)
        return True

    @at_border
    def save_checkpoint(
        self,
        save_dir: str,
        tag: Any = None,
        client_state: Mapping[str, Any] = MappingProxyType({}),
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Keeps the state under a tag, as a snapshot on the servers and a small directory DIR/TAG.

        All trainers call it between rounds, after the same step(); rank 0 writes, and the others
        continue until they need it. tag: global_step<n> by default; a tag that is there is
        replaced. client_state: what load_checkpoint() returns: numbers, text, lists, dicts,
        tensors; rank 0's counts. save_latest: whether DIR/latest names it, written last. Buffers
        and, unless excluded, frozen parameters are in the directory. Needs a durable job.
        Returns True. Raises BadArgument, which names the value that cannot be held, and as
        optimizer.snapshot(); then the last checkpoint is as it was.
        """
        self.monitor.flush()
        checkpoint.save(
            self, save_dir, tag, client_state, save_latest, exclude_frozen_parameters
        )
        return True

    @at_border
    def load_checkpoint(
        self,
        load_dir: str,
        tag: Any = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Any = None,
    ) -> tuple[str | None, Any]:
        """Goes back to the state of a tag; returns (its directory, client_state).

        All trainers call it, of any number, before the next forward pass. The state becomes a job
        of its own, which begins with the snapshot's bits; jobs that earlier loads have made, and
        that no trainer is in, are deleted, and their snapshots stay. tag: that of DIR/latest by
        default; without such a file nothing is loaded, and the result is (None, None). With
        checkpoint.load_universal the directory is a universal checkpoint, the file is
        DIR/latest_universal, and the state goes into the present job.
        Raises BadArgument for a tag that is missing, with those that are there, and for a
        checkpoint that does not fit; Unsupported for loading parts of the state.
        """
        if load_module_only or not load_optimizer_states or custom_load_fn is not None:
            raise Unsupported(
                "load_checkpoint() loads weights and optimizer state together; for weights alone "
                "call save_16bit_model(dir, 'model.safetensors') and optimizer.load_export(dir)"
            )
        load = universal.load if self._loads_universal else checkpoint.load
        return load(self, load_dir, tag, load_module_strict, load_lr_scheduler_states)

    def load_universal_checkpoint(self) -> bool:
        """Whether load_checkpoint() reads universal checkpoints (checkpoint.load_universal)."""
        return self._loads_universal

    def destroy(self) -> None:
        """This trainer takes no further round; files of monitors are closed."""
        self.optimizer.close()
        self.monitor.close()


def _clear(module: torch.nn.Module) -> None:
    # module.zero_grad() takes six times as long: it makes names, and keeps what it has seen.
    for parameter in module._parameters.values():
        if parameter is not None:
            parameter.grad = None
    for child in module._modules.values():
        if child is not None:
            _clear(child)
