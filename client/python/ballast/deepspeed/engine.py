"""DeepSpeed's engine over an optimizer in the service: forward, backward, step, and its counters.

Comes from: ballast.deepspeed.initialize. Goes to: ballast.torch, ballast.monitor. Thread safety:
used by one thread at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch

from ballast.deepspeed import backward, building, checkpoint, gradients, module_load, universal
from ballast.deepspeed.boundary import BadCall, Boundary
from ballast.deepspeed.folder import write_weights
from ballast.deepspeed.getters import Getters
from ballast.deepspeed.loader import Loader
from ballast.deepspeed.names import engine_advice
from ballast.deepspeed.progress import Progress
from ballast.deepspeed.schedule import ServiceSchedule
from ballast.deepspeed.settings import Settings
from ballast.deepspeed.transfers import Transfers
from ballast.errors import BadArgument, at_border
from ballast.monitor import Monitor, round_events, timer_events
from ballast.torch.service_optimizer import ServiceOptimizer
from ballast.user_state import Place


class DeepSpeedEngine(Getters, torch.nn.Module):
    """What deepspeed.initialize() returns first: a module around the model, as DeepSpeed's.

    Names that it lacks are the model's. module: the model. optimizer: a ballast.torch optimizer, or
    None, for evaluation. lr_scheduler, training_dataloader: or None. micro_steps, global_steps,
    global_samples, skipped_steps: as in DeepSpeed.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer: ServiceOptimizer | None,
        lr_scheduler: Any,
        training_dataloader: Any,
        boundary: Boundary,
        monitor: Monitor,
        settings: Settings,
        progress: Progress | None = None,
        transfers: Transfers | None = None,
    ) -> None:
        """progress: prints. transfers: comms_logger, or None when it is off."""
        super().__init__()
        self.module = module
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.training_dataloader = training_dataloader
        self.monitor = monitor
        self._boundary = boundary
        self._settings = settings
        self._sums_in_fp32 = building.sums_in_fp32(settings)
        self._pass = -1  # the newest one that the script began itself
        self._guard: backward.Guard | None = None
        self._applied = False
        self._no_sync = False
        self._progress = progress or Progress(None, False, 0)
        self._transfers = transfers
        if isinstance(training_dataloader, Loader):
            training_dataloader.follow(self._found_place)
        if optimizer is None:
            building.share_weights(module, self.world_size, self.global_rank)
        else:
            gradients.know(self)
            if optimizer._membership.config.loss_scale != 1.0:
                self._guard = backward.Guard()
            self._watch(optimizer)
            self.commit_place()
            self.show_rates()

    def __getattr__(self, name: str) -> Any:
        with contextlib.suppress(AttributeError):
            return super().__getattr__(name)
        module = self.__dict__.get("_modules", {}).get("module")
        if module is not None and not name.startswith("__") and hasattr(module, name):
            return getattr(module, name)
        raise AttributeError(engine_advice(name))

    # ---- the loop

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The model's result; loss.backward() through it is divided as backward() is."""
        self.enter()
        with self._progress.timed("fwd"):
            result = self.module(*inputs, **named)
        undivided = self._boundary.accumulation == 1 and not self._sums_in_fp32
        if undivided or self.optimizer is None or not torch.is_grad_enabled():
            return result
        divisor = self.gradient_accumulation_steps
        return backward.outputs(result, (inputs, named), divisor, self._other_backward)

    def enter(self) -> None:
        """Before forward passes: weights of the job that a resumed run continues, or the lowest
        rank's, come into the model. Once, and of the latter also with parameters that can be
        trained from now on."""
        if self.optimizer is None:
            return
        self._watch(self.optimizer)
        membership = self.optimizer._membership
        brought = membership.config.init == "broadcast" and not membership.alone
        if membership.session is None:
            if brought or membership.config.resume != "never":
                self._attach()
        elif brought and membership.may_grow(self.optimizer.param_groups):
            self._attach()

    def _attach(self) -> None:
        self.trained("attach").attach()
        self.show_rates()

    def show_rates(self) -> None:
        """Shows the next round's values in param_groups, if the service's schedule sets them."""
        if isinstance(self.lr_scheduler, ServiceSchedule):
            self.lr_scheduler.show()

    def _watch(self, optimizer: ServiceOptimizer) -> None:
        if self._guard is not None:
            self._guard.watch(p for group in optimizer.param_groups for p in group["params"])

    def trained(self, call: str) -> ServiceOptimizer:
        """The optimizer. BadCall, naming the call, for an engine without."""
        if self.optimizer is None:
            raise BadCall(
                f"{call}() needs an optimizer, and initialize() was given none: pass optimizer=, "
                "or write optimizer.type into the ds_config"
            )
        return self.optimizer

    def _found_place(self) -> Place | None:
        """Where the job's last round has left training_data; attaches, if it may be resumed."""
        if self.optimizer is None:
            return None
        if self.optimizer._membership.config.resume != "never":
            self._attach()
        return self.optimizer._membership.place

    def commit_place(self) -> None:
        """The rounds of the optimizer's present job commit the position in training_data."""
        if isinstance(self.training_dataloader, Loader) and self.optimizer is not None:
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
        optimizer = self.trained("backward")
        _check_loss(loss, "backward")
        divides = scale_wrt_gas and self._boundary.accumulation > 1
        divided = loss / self._boundary.accumulation if divides else loss
        with self._progress.timed("bwd"):
            self._sum_up()
            self._boundary.backward()
            grown = optimizer.scale(divided) if self._guard is not None else divided
            with backward.engines_own(grown):
                grown.backward(retain_graph=retain_graph)
        return divided

    @at_border
    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """A loss whose own backward() fits this engine: multiplied by the loss scale of fp16.

        engine.scale(loss).backward() is engine.backward(loss), where the loss comes from outputs of
        engine(...): these divide by gradient_accumulation_steps.
        """
        optimizer = self.trained("scale")
        _check_loss(loss, "scale")
        return loss if self._guard is None else backward.scaled(optimizer.scale(loss))

    def _other_backward(self) -> None:
        """Gradients of a pass that the script began itself come into an output of the engine."""
        number = torch._C._current_graph_task_id()
        if number != self._pass:
            self._pass = number
            self._sum_up()
            self._boundary.other_backward()

    def _sum_up(self) -> None:
        """Gradients of the earlier passes go into the sum, where its dtype differs."""
        if self._sums_in_fp32 and self._boundary.began:
            optimizer = self.trained("backward")
            with optimizer.no_sync():
                optimizer.step()

    @at_border
    def step(self, lr_kwargs: dict[str, Any] | None = None) -> None:
        """At the end of a round: the optimizer's step, then the schedule's, and gradients are gone.

        Elsewhere it counts the micro-batch only. A round skipped on all trainers moves global_steps
        and skipped_steps, and the schedule stays. lr_kwargs: of lr_scheduler.step().
        """
        self.trained("step")
        if self._no_sync:
            raise BadCall("It is illegal to call Engine.step() inside no_sync context manager")
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
        """Prints and writes the reports on the round just ended."""
        if self._progress.due(self.global_steps):
            self._progress.step_ended(
                self.global_steps, self.skipped_steps, self.get_lr(), self.get_mom()
            )
        times: dict[str, float] = {}
        if self._transfers is not None or self._progress.breakdown:
            report = self.trained("step").last_report or {}
            if self._transfers is not None:
                self._transfers.add(report)
            times = self._progress.round_ended(report)
        if self.monitor.enabled:
            scale = self.loss_scale() if self._guard is not None else None
            events = round_events(self.global_samples, self.get_lr()[0], scale)
            self.monitor.write_events(events + timer_events(self.global_samples, times))

    def _round(self, lr_kwargs: dict[str, Any]) -> None:
        optimizer = self.trained("step")
        if self._guard is not None:
            self._guard.check()
            if not self._boundary.began:
                self.loss_scale()  # Gradients that the script wrote have it, as in DeepSpeed.
        self._boundary.check_round(any(
            p.grad is not None for group in optimizer.param_groups for p in group["params"]
        ))  # fmt: skip
        optimizer.step()
        self.zero_grad()
        self._applied = not optimizer.step_was_skipped
        self._boundary.round_ended(self._applied)
        self.show_rates()
        if self._applied and self.lr_scheduler is not None:
            self.lr_scheduler.step(**lr_kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Micro-batches whose gradients add up here; inside, step() and another one are refused."""
        if self._no_sync:
            raise BadCall("no_sync context manager reentry is unsupported: nested ones mean one")
        self._no_sync = True
        try:
            yield
        finally:
            self._no_sync = False

    def coalesce_grad_reduction(self) -> contextlib.AbstractContextManager[None]:
        """As no_sync(): nothing goes out before step(). Where each step() ends a round: BadCall."""
        self._boundary.refuse_unmanaged("coalesce_grad_reduction")
        return self.no_sync()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """No parameter of the module, or of the optimizer, has a gradient then."""
        _clear(self.module)
        for group in self._groups():
            for parameter in group["params"]:
                parameter.grad = None
        if self._guard is not None:
            self._guard.unscaled = False

    def compile(self, backend: Any = "inductor", compile_kwargs: Any = None) -> None:
        """Compiles the model in place, as its own compile(backend=..., **compile_kwargs) does."""
        self.module.compile(backend=backend, **(compile_kwargs or {}))

    def was_step_applied(self) -> bool:
        """Whether the last round changed the weights; False before the first."""
        return self._applied

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    # ---- weights and the end

    def module_state_dict(self, exclude_frozen_parameters: bool = False) -> dict[str, Any]:
        """The module's state dict, without untrained parameters if so asked."""
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
            write_weights(save_dir, save_filename, state)
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
        """Keeps the state under a tag, as a snapshot on the servers and a directory DIR/TAG.

        All trainers call it between rounds, after the same step(); rank 0 writes, and the others
        continue until they need it. tag: global_step<n> by default; an existing tag is replaced.
        client_state: the value for load_checkpoint() to return: numbers, text, lists, dicts,
        tensors; rank 0's counts. save_latest: whether DIR/latest names it, written last. The
        module is in the directory, but for frozen parameters if excluded. Needs a durable job, or
        no optimizer; then there is the directory only.
        Returns True. Raises BadArgument, which names the value that cannot be held, and as
        optimizer.snapshot(); then the last checkpoint stays unchanged.
        """
        self.monitor.flush()
        checkpoint.save(
            self, save_dir, tag, client_state, save_latest, exclude_frozen_parameters
        )
        building.wait_for_rank_0(self.optimizer)
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
        default; without such a file nothing is loaded, and the result is (None, None).
        load_optimizer_states=False, and an engine without an optimizer: the module, counters and
        schedule alone. The present job gets the weights in a round of its own, and keeps its
        moments, step counts and hyper-parameters. load_module_only: the module alone.
        custom_load_fn(src, dst): puts the dict of tensors into the module in these two cases.
        load_module_strict: whether names that only one side (universal: the file) has are refused.
        With checkpoint.load_universal the directory is a universal checkpoint, the file is
        DIR/latest_universal, and all of the state goes into the present job.
        Raises BadArgument for a missing tag, listing the existing ones, and for a checkpoint that
        does not fit. Unsupported for the module of one that rank 0 may be writing.
        """
        parts = checkpoint.Parts(
            load_module_strict, load_optimizer_states, load_lr_scheduler_states, load_module_only,
            custom_load_fn)  # fmt: skip
        whole = load_optimizer_states and not load_module_only and self.optimizer is not None
        load = checkpoint.load if whole else module_load.load
        if self.load_universal_checkpoint():
            load = universal.load
        return load(self, load_dir, tag, parts)

    def destroy(self) -> None:
        """This trainer takes no further round; files of monitors are closed."""
        if self.optimizer is not None:
            self.optimizer.close()
        if self._guard is not None:
            self._guard.close()
        self.monitor.close()


def _check_loss(loss: Any, call: str) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise BadCall(f"{call}() takes a loss of one element, a scalar tensor")


def _clear(module: torch.nn.Module) -> None:
    # module.zero_grad() takes six times as long: it makes names and a set of all seen.
    for parameter in module._parameters.values():
        if parameter is not None:
            parameter.grad = None
    for child in module._modules.values():
        if child is not None:
            _clear(child)
