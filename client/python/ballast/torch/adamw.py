"""AdamW whose master weights and moments live in Ballast servers.

Comes from: user code. Goes to: ballast.session. The class is a torch.optim.Optimizer: schedulers,
hooks, closures, gradient accumulation and add_param_group work as they do in torch.
Thread safety: used by one thread at a time; several optimizers may be used by several threads.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ballast import config as job_config
from ballast import lifetime, user_state
from ballast.errors import (
    BadArgument,
    BadSpec,
    Closed,
    NonfiniteGradient,
    Unsupported,
    at_border,
    warn,
)
from ballast.session import Session, TensorSpec
from ballast.torch import buffers, export, files, handle, hyper, load
from ballast.torch.local_clip import LocalClipWatch
from ballast.torch.manifest import Entry, Manifest, warn_of_order
from ballast.torch.naming import Naming

KEEP_MAX = 2**32 - 1  # of snapshot(), as SnapshotRequest has it


class AdamW(torch.optim.Optimizer):
    """torch.optim.AdamW, stepped by a sharded service; same formula, same hyper-parameters.

    params: as torch's: tensors, (name, tensor) pairs or group dicts. fp32, bf16 and fp16 CPU
        parameters; for 16-bit ones the service keeps fp32 masters.
    lr, betas, eps, weight_decay: as torch's; read from param_groups at every step().
    amsgrad, maximize, capturable, differentiable: refused unless False. foreach, fused: no effect.
    endpoints: "host:port" of any subset of the servers (list, or string with commas).
    job: the job's name, equal on all trainers and never used before. From the environment, the
        second optimizer of a script gets the name with ".2" appended, and so on.
    world_size, rank: number of trainers and this one's seat. Gradients of all trainers are averaged
        by the service: do not average them before.
        Each of these comes from: argument > BALLAST_* variable > torchrun's variable > default.
    max_grad_norm: clips the averaged gradient by its global 2-norm, over all tensors and servers.
        torch.nn.utils.clip_grad_norm_ before step() is exact for one trainer; with several it
        clips each trainer's own gradient before the average, which is something else, and is warned
        of, once, when the first rounds look like it.
    loss_scale: static factor by which the loss was multiplied; the service divides it out.
    nonfinite: what happens when a gradient, or the sum over the trainers, is NaN or Inf anywhere.
        Nothing of that round is applied on any server. "skip": training goes on
        (`step_was_skipped`, `last_report["nonfinite_place"]`). "halt": step() raises
        NonfiniteGradient on all trainers, naming tensor, index and slot.
    max_consecutive_skips: rounds in a row that may be skipped; one more is halted. None: no limit.
    init: "equal" (every trainer holds equal initial weights, which is checked) or "broadcast"
        (rank 0's are given to the others).
    model: a module that gives names to parameters passed without.
    extent_elements, tile_elements: advanced; how the state is cut (see docs/ARCHITECTURE.md).
    attach_timeout: seconds to wait for the other trainers at the first step().
    durability: what a finished round survives: "power" (power loss of every host; the default),
        "process" (kill -9 of every server) or "none" (nothing: a lost server ends the job).
        With the first two, which need servers with a storage.data_dir, calls wait while a server is
        away, say so on stderr, and go on with the same bits when it is back.
    reconnect_timeout: seconds a server of a durable job may be away before the call that waits for
        it raises ServerLost.
    resume: what it means that a job of this name exists: "never" (an error), "auto" (take this
        rank's seat in it, or start it when there is none) or "must" (an error when there is none).
        Needs durability, and attach() before the first forward pass. Warns when parameters have no
        name: their order then says which of the job's tensors is which.
    variable_world: trainers may join and leave while the job runs. It starts with world_size
        trainers; one with a higher rank, or a free one, joins with resume="auto", and those that
        are there go on without one that closes or is lost. Gradients are averaged over those that
        take part in the round. Needs durability.
    min_world: of a variable_world, the fewest trainers that training goes on with (1); as
        torchrun's --nnodes=MIN:MAX with world_size as the other end, or BALLAST_MIN_WORLD_SIZE. A
        job that is started again waits for world_size trainers, and after the servers'
        timing.lease begins with those that are there, if they are so many. When fewer would be
        left, a trainer that is lost is waited for, and one that closes while others go on ends
        the job with TrainerLeft.
    device: where the servers keep the state, as in ds_config's offload_optimizer.device; no bit
        depends on it. "cpu": in memory, or OverBudget is raised. "nvme": on their disks, with as
        much of it in memory as storage.dram_budget allows (docs/nvme.md); needs durability.
        "auto", the default: in memory if it fits, else on disk if the job has durability.

    The first step(), or attach(), attaches and uploads the weights; from then on the service owns
    them, and in-place edits of parameters raise WeightsEdited at the next step() unless
    upload_weights() has sent them. Edits through p.data leave no trace that torch shows: they are
    lost at the next step() without a word, so send these with upload_weights(), too.
    load_export() brings moments and step counts in, export_state() takes them out again.
    Raises BadArgument, BadHyperparam (ValueErrors) and Unsupported at construction.
    """

    @at_border
    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        endpoints: str | Sequence[str] | None = None,
        job: str | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        max_grad_norm: float | None = None,
        loss_scale: float = 1.0,
        nonfinite: str = "skip",
        max_consecutive_skips: int | None = 100,
        init: str = "equal",
        model: torch.nn.Module | None = None,
        extent_elements: int | None = None,
        tile_elements: int | None = None,
        attach_timeout: float | None = None,
        durability: str | None = None,
        reconnect_timeout: float | None = None,
        resume: str | None = None,
        variable_world: bool = False,
        min_world: int | None = None,
        device: str | None = None,
    ) -> None:
        _check_params(params)
        hyper.check_defaults(lr, betas, eps, weight_decay)
        defaults = {
            "lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay,
            "amsgrad": amsgrad, "maximize": maximize, "foreach": foreach, "fused": fused,
            "capturable": capturable, "differentiable": differentiable,
        }  # fmt: skip
        self._naming, self._manifest = Naming(model), Manifest()
        self._session: Session | None = None
        self._report: dict[str, Any] | None = None
        self._clip_watch = LocalClipWatch()
        self._closed = False
        self._user_state: Any = None
        self._carried: dict[str, Any] | None = None  # the wrapped optimizer's state, until attached
        self._loading: user_state.Loading | None = None  # how far this seat's last process came
        super().__init__(params, defaults)
        self._config = job_config.resolve(
            endpoints=endpoints,
            job=job,
            world_size=world_size,
            rank=rank,
            max_grad_norm=max_grad_norm,
            loss_scale=loss_scale,
            nonfinite=nonfinite,
            max_consecutive_skips=max_consecutive_skips,
            tile_elements=tile_elements,
            extent_elements=extent_elements,
            init=init,
            attach_timeout=attach_timeout,
            durability=durability,
            reconnect_timeout=reconnect_timeout,
            resume=resume,
            variable_world=variable_world,
            min_world=min_world,
            device=device,
        )

    # ---- the torch contract

    @at_border
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group; after the first step() its tensors join the job at the next one.

        All trainers must add the same groups between the same two steps. Raises as torch does, and
        Unsupported for options of the group that this version lacks. When the servers have no room
        for it, that step() raises OverBudget on all trainers, and the job stays as it was.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        group = self._naming.normalise(param_group)
        where = f"param_groups[{len(self.param_groups)}]"
        hyper.refuse_options({**self.defaults, **group}, where)
        super().add_param_group(group)

    @at_border
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One round: pushes all gradients, waits for the service, receives the stepped weights.

        closure: re-evaluates the model with gradients enabled and returns the loss, which step()
        returns; called once. The first call attaches (see the class). A parameter whose gradient is
        None on all trainers is left untouched and its step count does not advance; where only some
        trainers have one, the others count as zeros. A gradient that is not finite anywhere skips
        or halts the round on all trainers (see `nonfinite` above).
        Errors: subclasses of ballast.BallastError. After one during the round the parameters may
        hold a mix of old and new values; after NonfiniteGradient they are unchanged, and step()
        may be called again.
        """
        self._refuse_late_attach()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._refuse_scaler()
        with torch.no_grad():
            self._join()
            self._run_round()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """A small handle: {"state": {}, "param_groups", "ballast": {job, job_id, round, ...}}.

        Local and cheap; it holds no tensors of the service. See export_state() for those.
        """
        packed = super().state_dict()
        packed["ballast"] = handle.make(
            job=self.job,
            job_id=self.job_id,
            round=self.round,
            opt_step=self.opt_step,
            world_size=self._config.world_size,
        )
        return packed

    @at_border
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the hyper-parameters of all groups, after checking the handle.

        Loading the optimizer's own present state changes nothing. Raises Unsupported for moments of
        a torch optimizer and for handles to another job or round; ValueError as torch does when the
        groups do not fit.
        """
        handle.check(state_dict, job_id=self.job_id, round=self.round)
        for i, group in enumerate(state_dict["param_groups"]):
            hyper.refuse_options(group, f"param_groups[{i}] of the state dict")
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a Ballast optimizer cannot be pickled or copied: it holds this process's seat in a "
            "job. Save opt.state_dict() (a handle) or opt.export_state() (tensors)"
        )

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # torch.amp.GradScaler asks this. With one trainer it unscales and skips by itself; with
        # several it must hand over, so that step() can refuse: ranks would skip different rounds.
        return not self._alone

    # ---- the service

    @at_border
    def attach(self) -> bool:
        """Attaches now instead of at the first step(), and returns `resumed`. Idempotent.

        To be called when the model has its final dtype, and with resume= before the first forward
        pass: in a job that was there the parameters then hold its weights, `round` says how many
        rounds it has finished and `user_state` is what this rank left with the last of them. Waits
        for the other trainers. Errors: subclasses of ballast.BallastError.
        """
        with torch.no_grad():
            self._join()
        return self.resumed

    @at_border
    def close(self) -> None:
        """Says that this trainer takes no further round. Idempotent; also done at normal exit."""
        self._closed = True
        if self._session is not None:
            self._session.leave()

    @at_border
    def export_state(self) -> dict[str, Any]:
        """fp32 masters, moments and step counts as new CPU tensors; see ballast.torch.export.

        Between rounds; downloads 12 bytes per parameter. Raises BadArgument before the first
        step().
        """
        return export.export(self._attached("export_state"), self._manifest, self.param_groups)

    @at_border
    def snapshot(self, name: str, keep: int = 0) -> int:
        """Keeps the state after this step on the servers' disk, under a name.

        One rank calls it, between steps: `if rank == 0: opt.snapshot("warm")`. Returns when all of
        it survives, with the number of rounds it has; the other ranks go on until they need this
        one. keep: so many snapshots of the job stay, the oldest are removed; 0: all. Needs a
        durable job and, with several servers, their `storage.snapshot_dir`. Raises BadArgument for
        a name that is none, NameInUse, OverBudget, Unsupported; then nothing is left of it.
        """
        if not isinstance(name, str):
            raise BadArgument(f"snapshot(): name={name!r} must be a str")
        whole = isinstance(keep, int) and not isinstance(keep, bool)
        if not whole or not 0 <= keep <= KEEP_MAX:
            raise BadArgument(f"snapshot(): keep={keep!r} must be an int in 0..{KEEP_MAX}")
        return self._attached("snapshot").snapshot(name, keep)

    @at_border
    def fetch_weights(self) -> None:
        """Receives all weights from the service again, dropping edits made to the parameters."""
        session = self._attached("fetch_weights")
        entries = self._manifest.entries
        with torch.no_grad():
            addresses = [buffers.weight_address(e) for e in entries]
            session.fetch_weights(addresses, keep=entries)
            for entry in entries:
                buffers.copy_back(entry)
            buffers.written(entries)

    @at_border
    def upload_weights(self) -> None:
        """Makes the parameters' present values the service's; moments and step counts stay.

        All trainers call it between the same two steps, as they do step(). It is a round of its
        own: `round` grows by one, `opt_step` does not, user_state is committed with it, and
        last_report stays that of the last step(). With init="equal" all trainers must have made the
        same edits; else all get InitMismatch, which names the first tensor, and the job ends. With
        init="broadcast" the lowest rank's values are given to the others. 16-bit values become fp32
        masters exactly. When a server dies meanwhile, either all of them or none has the new
        weights, and the call goes on as step() does. A script that may be resumed decides by
        `round` or user_state whether to upload, so that a rank that is started again does as the
        others do. Before the first step(), or attach(), there is nothing to do: that uploads.
        """
        self._check_open()
        if self._session is None:
            return
        with torch.no_grad():
            self._join(edited=True)
            entries = self._manifest.entries
            state = user_state.encode(self._user_state)
            self._loading = None
            weights = [buffers.edited_weight_address(e) for e in entries]
            try:
                self._session.upload(weights, state, keep=entries)
            finally:
                self._received(entries)

    @at_border
    def load_export(self, source: dict[str, Any] | str | os.PathLike[str]) -> None:
        """Makes `source` the service's state: masters, both moments and step counts, bit for bit.

        source: what export_state() gives, or a torch.optim.AdamW's state_dict(), or a path on this
        machine: a directory that `ballastctl export` has written, or safetensors weights (one file,
        or a directory, with or without an index), with which moments and steps begin at 0. In files
        parameters are found by name, frozen ones, too. In dicts, per parameter: a step, exp_avg,
        exp_avg_sq and optionally master, without which its present value counts.
        Parameters are found by "names" where the source has them, else by position, as in torch.
        Those without state there start anew, with moments of 0; frozen ones are left alone. The
        hyper-parameters of its groups become those of param_groups.

        All trainers call it, with equal sources, between the same two steps; it attaches if that
        has not been done. It takes a round per plane, 3, or 6 where parameters have 16 bits, so
        `round` grows by as many; user_state is committed with each. `opt_step` becomes the largest
        step with the last of them. So a script that is started again with resume, on one rank or
        all, and finds opt_step 0 calls it again: it goes on with the plane that the others are at.
        A server that dies meanwhile costs a pause. Afterwards the parameters hold the job's
        weights. last_report stays.
        Raises BadArgument, BadHyperparam or Unsupported, naming parameter or group, for a source
        that does not fit; then nothing was sent or changed. InitMismatch ends the job for all when
        the sources differ or another trainer does something else in that round.
        """
        self._check_open()
        with torch.no_grad():
            state, fingerprint = self._state_of(source)
            self._carried = None  # This is loaded in its place.
            if self._session is None and self._config.resume == "never":
                state.put_weights(self._all_entries())
            self._join(edited=True)
            self._load(state, fingerprint)
            state.apply_groups(self.param_groups)
            state.put_frozen()

    # ---- what the last round said

    @property
    def last_report(self) -> dict[str, Any] | None:
        """All fields of the last round's RoundReport (client/cpp/ballast/client.h); None before.

        "paused_ms" has the part of the round during which a server was away, "reconnects" how often
        one came back since the round before.
        """
        return None if self._report is None else dict(self._report)

    @property
    def grad_norm(self) -> float | None:
        """Global 2-norm of the last round's unscaled mean gradient, before clipping."""
        return None if self._report is None else self._report["grad_norm"]

    @property
    def clip_coef(self) -> float | None:
        """Factor by which max_grad_norm scaled the last round's gradient; 1.0 when it did not."""
        return None if self._report is None else self._report["clip_coef"]

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last round was skipped on all trainers because of non-finite gradients."""
        return self._report is not None and not self._report["applied"]

    @property
    def round(self) -> int:
        """Rounds finished so far, skipped ones included."""
        return 0 if self._session is None else self._session.round

    @property
    def opt_step(self) -> int:
        """Rounds applied so far."""
        return 0 if self._session is None else self._session.opt_step

    @property
    def resumed(self) -> bool:
        """Whether attach() took a seat in a job that was there; False before."""
        return self._session is not None and self._session.resumed

    @property
    def user_state(self) -> Any:
        """What this rank's script needs to go on: data position, random_state(), scheduler state.

        Bytes, or what JSON can hold; at most 64 KiB. step() commits its value at that moment with
        the round, and after attach() in a resumed job it is the value of the newest finished round
        (None when there was none). A step() with a value that is too large, or that JSON cannot
        hold, raises BadArgument before anything is sent.
        """
        return self._user_state

    @user_state.setter
    def user_state(self, value: Any) -> None:
        self._user_state = value

    @property
    def counters(self) -> dict[str, int]:
        """Bytes moved and copied since attach; {} before the first step().

        payload_up_bytes, payload_down_bytes: of gradients and weights on the wire. copied_up_bytes,
        copied_down_bytes: those that were copied in this process on their way: none up and each
        once down, and once more, both ways, where a tensor is not contiguous.
        """
        if self._session is None:
            return {}
        counts = dict(self._session.counters())
        counts["copied_up_bytes"] += sum(e.copied_up for e in self._manifest.entries)
        counts["copied_down_bytes"] += sum(e.copied_down for e in self._manifest.entries)
        return counts

    @property
    def job(self) -> str:
        return self._config.job

    @property
    def job_id(self) -> int:
        """The servers' number of the job; 0 before the first step()."""
        return 0 if self._session is None else self._session.job_id

    @property
    def durability(self) -> str:
        """What a finished round survives: "power", "process" or "none"."""
        return self._config.durability

    @property
    def world_size(self) -> int:
        """Trainers of the job; with variable_world, and once attached, those of the next round."""
        if self._session is None or not self._config.variable_world:
            return self._config.world_size
        return self._session.world

    @property
    def rank(self) -> int:
        return self._config.rank

    # ---- inside

    def _attached(self, what: str) -> Session:
        self._check_open()
        if self._session is None:
            raise BadArgument(
                f"{what}() needs a running job: the optimizer attaches at its first step()",
                job=self.job,
            )
        return self._session

    def _check_open(self) -> None:
        if self._session is not None:
            self._session.check_open()
        elif self._closed:
            raise Closed("the optimizer was closed", job=self.job, slot=self.rank)

    @property
    def _alone(self) -> bool:
        # In a variable world others may join between any two rounds.
        return self._config.world_size == 1 and not self._config.variable_world

    def _refuse_late_attach(self) -> None:
        # The gradients there are now were made with other weights than those the job has.
        if self._closed:
            return
        if self._session is None and self._config.resume != "never":
            raise BadArgument(
                f"resume={self._config.resume!r} needs opt.attach() before the first forward pass: "
                "it brings a resumed job's weights into the model, and opt.round and "
                "opt.user_state say where to go on",
                job=self.job,
            )
        if self._config.init != "broadcast" or self._alone:
            return
        if self._session is None or self._manifest.pending(self.param_groups, self._naming):
            raise BadArgument(
                'init="broadcast" needs opt.attach() before the first forward pass, and again '
                "after add_param_group(): it brings the lowest rank's weights into the model; "
                "gradients made with others would be wrong",
                job=self.job,
            )

    def _refuse_scaler(self) -> None:
        if not hasattr(self, "found_inf") and not hasattr(self, "grad_scale"):
            return
        for name in ("found_inf", "grad_scale"):
            self.__dict__.pop(name, None)
        raise Unsupported(
            f"torch.amp.GradScaler with world_size={self._config.world_size} is not supported: "
            "each trainer would skip other rounds. Pass loss_scale= to ballast.torch.AdamW and "
            "multiply the loss by it; non-finite rounds are then skipped on all trainers together",
            job=self.job,
        )

    def _join(self, edited: bool = False) -> None:
        # Attaches at the first step; later brings in groups and parameters that are new. edited:
        # changes that were made to the others are about to be uploaded.
        self._check_open()
        self._manifest.refuse_removals(self.param_groups, self.job)
        entries = self._manifest.pending(self.param_groups, self._naming)
        if self._session is not None and not entries:
            return
        if not entries:
            raise BadSpec("none of the optimizer's parameters requires a gradient", job=self.job)
        carried = None if self._carried is None else self._state_of(self._carried)
        weights = [buffers.weight_address(e) for e in entries]
        specs = [e.spec() for e in entries]
        received = self._config.init == "broadcast" and self._config.rank != 0
        attaches = self._session is None
        if attaches:
            self._take_seat(specs, weights, entries)
            received = received or self._session.resumed
        else:
            if not edited:
                buffers.refuse_edits(self._manifest.entries, self.job)
            self._session.extend(specs, weights, self._config.init, keep=entries)
        self._manifest.add(entries)
        if received:
            self._received(entries)
        if carried is not None:
            self._carried = None
            # With steps taken the job is past its beginning; without, a load may have been cut off.
            # The groups' hyper-parameters were taken along, and may have been changed since.
            if self._session.opt_step == 0:
                self._load(*carried)
        if attaches and self._session.resumed:
            # The last thing here: it raises if that is asked.
            warn_of_order(
                entries,
                "says which of the resumed job's tensors each of them is",
                "the optimizer of the next job",
            )

    def _take_seat(self, specs: list[TensorSpec], weights: list[int], entries: list[Entry]) -> None:
        self._session = Session.attach(self._config, specs, weights, keep=entries)
        weakref.finalize(self, lifetime.end, self._session).atexit = False
        if self._session.resumed:
            self._user_state = user_state.decode(self._session.user_state)
            self._loading = user_state.loading_of(self._session.user_state)

    def _carry(self, source: dict[str, Any]) -> None:
        """For wrap(): `source` is loaded once attached, unless the job has taken steps already.

        Raises as load_export() for one that does not fit.
        """
        self._state_of(source)
        self._carried = source

    def _state_of(self, source: Any) -> tuple[load.State, bytes]:
        # Also for parameters that join at the next call. With what tells it from other sources.
        entries = self._all_entries()
        path = os.fspath(source) if isinstance(source, (str, os.PathLike)) else None
        if isinstance(source, bytes) or isinstance(path, bytes):
            raise BadArgument(
                f"load_export() got the path {path or source!r} as bytes; give it as str: "
                "os.fsdecode(path)"
            )
        if path is not None:
            state = files.state_of_files(path, self.param_groups, entries, self._naming)
        else:
            state = load.state_of(source, self.param_groups, entries, self._naming)
        fingerprint = state.fingerprint(entries)
        state.keep_weights(entries)
        return state, fingerprint

    def _all_entries(self) -> list[Entry]:
        return self._manifest.entries + self._manifest.pending(self.param_groups, self._naming)

    def _load(self, state: load.State, fingerprint: bytes) -> None:
        # One round per plane; the last brings the step counts. A process that takes the seat of one
        # that was cut off goes on behind its planes, as the others do.
        entries = self._manifest.entries
        user = user_state.encode(self._user_state)
        before, self._loading = self._loading, None
        done = before.planes if before is not None and before.fingerprint == fingerprint else 0
        weights = [buffers.weight_address(e) for e in entries]
        steps = [state.of(e).step for e in entries]
        try:
            for i, (plane, bits, last) in enumerate(load.planes(state, entries)):
                if i < done:
                    continue
                so_far = user_state.Loading(fingerprint, i + 1)
                self._session.upload_state(
                    plane,
                    [buffers.plane_address(b) for b in bits],
                    weights,
                    steps if last else [],
                    max(steps) if last else 0,
                    user if last else user_state.encode_loading(user, so_far),
                    keep=(entries, state, bits),
                )
        finally:
            self._received(entries)

    def _run_round(self) -> None:
        entries = self._manifest.entries
        buffers.refuse_edits(entries, self.job)
        state = user_state.encode(self._user_state)
        self._loading = None
        scalars = [hyper.read(self.param_groups[g], g) for g in self._manifest.service_groups]
        lent = [buffers.gradient(e) for e in entries]
        self._look_for_local_clips()
        weights = [buffers.weight_address(e) for e in entries]
        stepped = [e for e, (address, _) in zip(entries, lent) if address]
        # Other trainers' gradients may step a tensor for which this one has none; only the weights
        # that come back tell.
        silent = [e for e, (address, _) in zip(entries, lent) if not address]
        if self._alone:
            silent = []
        before = [buffers.weight_bits(e) for e in silent]
        applied = True
        try:
            addresses = [address for address, _ in lent]
            report = self._session.step(scalars, addresses, weights, state, keep=(entries, lent))
            self._report = report
            applied = report["applied"]
        except NonfiniteGradient:
            applied = False
            raise
        finally:
            if applied:
                changed = [
                    e
                    for e, bits in zip(silent, before)
                    if not torch.equal(bits, buffers.weight_bits(e))
                ]
                self._received(stepped + changed)

    def _look_for_local_clips(self) -> None:
        if self._clip_watch.over or self._alone or self._config.max_grad_norm > 0:
            return
        gradients = [e.param.grad for e in self._manifest.entries if e.param.grad is not None]
        if self._clip_watch.saw(gradients):
            warn(
                "all gradients of this trainer have one norm, as clip_grad_norm_ before step() "
                "leaves them. With several trainers that clips each one's own gradient, not their "
                "mean; for that pass max_grad_norm= to the optimizer instead"
            )

    def _received(self, entries: list[Entry]) -> None:
        for entry in entries:
            buffers.copy_back(entry)
        buffers.written(entries)


def _check_params(params: Any) -> None:
    is_module = isinstance(params, torch.nn.Module)
    if is_module or not hasattr(params, "__iter__"):
        raise TypeError(
            f"params is a {type(params).__name__}; it must be an iterable of tensors, of "
            "(name, tensor) pairs or of group dicts"
            + ("; pass model.parameters()" if is_module else "")
        )
