"""AdamW whose master weights and moments live in Ballast servers.

Comes from: user code. Goes to: ballast.torch.service_optimizer.
Thread safety: used by one thread at a time; several optimizers may be used by several threads.
"""

from __future__ import annotations

from typing import Any

import torch
from typing_extensions import Unpack  # which torch needs

from ballast.config import JobOptions, spelled_out
from ballast.errors import at_border
from ballast.torch.adam_kind import AdamKind
from ballast.torch.service_optimizer import ServiceOptimizer


class AdamW(ServiceOptimizer):
    """torch.optim.AdamW, stepped by a sharded service; same formula, same hyper-parameters.

    params: as torch's: tensors, (name, tensor) pairs or group dicts. fp32, bf16 and fp16 CPU
        parameters; for 16-bit ones the service keeps fp32 masters.
    lr, betas, eps, weight_decay: as torch's; read from param_groups at every step().
    amsgrad, maximize: as torch's, and equal in all groups. amsgrad takes 4 bytes more per
        parameter.
    capturable, differentiable: refused unless False. foreach, fused: no effect.
    endpoints: "host:port" of any subset of the servers (list, or string with commas).
    tls_ca, tls_cert, tls_key: PEM files for servers with TLS: their authorities, and this trainer's
        certificate and key. token_file: one line with a bearer token, over TLS. Each is also a
        variable: BALLAST_TLS_CA, BALLAST_TLS_CERT, BALLAST_TLS_KEY, BALLAST_TOKEN_FILE
        (docs/security.md).
    job: the job's name, equal on all trainers and never used before. From the environment, the
        second optimizer of a script gets the name with ".2" appended, and so on.
    world_size, rank: number of trainers and this one's seat.
        Each of these comes from: argument > BALLAST_* variable > torchrun's variable > default.
    gradients: "local": each trainer has its own gradients, and the service averages them; the
        script does not. "reduced": they are equal on all trainers already, as in DDP; the lowest
        rank pushes them for all, and the servers compare checksums of them in the first rounds
        (GradientMismatch). "auto": the attach looks whether the model is in DDP by then, and says
        so (docs/decisions/031-reduced-gradients.md). Fixed for the job.
    collective: "none", or a process group of torch.distributed with exactly this job's trainers, in
        the order of their ranks (gloo; others are not tested). The gradients are then
        reduce-scattered in it, each rank pushes and receives 1/world_size of the bytes, and the
        weights are all-gathered (docs/collectives.md). A lost rank is TrainerLost on the others.
    max_grad_norm: clips the averaged gradient by its global 2-norm, over all tensors and servers.
        torch.nn.utils.clip_grad_norm_ before step() is exact for one trainer without a loss scale;
        with several it clips each trainer's own gradient before the average, and with a loss scale
        a still scaled gradient. Neither is the same as max_grad_norm; a warning appears once when
        the first rounds look like either.
    loss_scale: factor by which the loss was multiplied; the service divides it out. A number, or
        "dynamic" or a bt.DynamicLossScale: the service moves it, and the script calls
        opt.scale(loss).backward() (docs/schedules.md).
    lr_schedule: one of ballast.schedules, which the service evaluates from each group's lr and
        betas; param_groups show the last round's values. Not together with a scheduler of torch.
    profile: "exact", or "deepspeed" with DeepSpeed's quirks in both (docs/schedules.md).
    nonfinite: the reaction to NaN or Inf anywhere in a gradient or in the sum over the trainers.
        Nothing of that round is applied on any server. "skip": training continues
        (`step_was_skipped`, `last_report["nonfinite_element"]`). "halt": step() raises
        NonfiniteGradient on all trainers, naming tensor, index and slot.
    max_consecutive_skips: rounds in a row that may be skipped; one more is halted. None: no limit.
    init: "equal" (every trainer holds equal initial weights, which is checked) or "broadcast"
        (rank 0's are given to the others).
    model: a module that gives names to parameters passed without.
    extent_elements, tile_elements: advanced; how the state is cut (see docs/ARCHITECTURE.md).
    attach_timeout: seconds to wait for the other trainers at the first step().
    durability: the failures that a finished round survives: "power" (power loss of every host; the
        default), "process" (kill -9 of every server) or "none" (nothing: a lost server ends the
        job). With the first two, which need servers with a storage.data_dir, calls wait while a
        server is away, say so on stderr, and continue with the same bits when it is back.
    reconnect_timeout: seconds a server of a durable job may be away before the call that waits for
        it raises ServerLost.
    resume: the treatment of an existing job of this name: "never" (an error), "auto" (take this
        rank's seat in it, or start it when there is none) or "must" (an error when there is none).
        Needs durability, and attach() before the first forward pass. Warns when parameters have no
        name: their order then says which of the job's tensors is which.
    variable_world: trainers may join and leave while the job runs. It starts with world_size
        trainers; one with a higher rank, or a free one, joins with resume="auto", and the others
        continue without one that closes or is lost. Gradients are averaged over the round's
        participants. Needs durability.
    min_world: of a variable_world, the fewest trainers that training continues with (1); as
        torchrun's --nnodes=MIN:MAX with world_size as the other end, or BALLAST_MIN_WORLD_SIZE. A
        restarted job waits for world_size trainers, and after the servers' timing.lease begins with
        those present, if there are at least min_world. When fewer would be left, the job waits for
        a lost trainer, and a trainer that closes while others continue ends it with TrainerLeft.
    pinned_bytes: with parameters on a GPU, host memory pinned at attach for data in transit (32
        MiB); at least 4 MiB.
    device: where the servers keep the state, as in ds_config's offload_optimizer.device; no bit
        depends on it. "cpu": in memory, or OverBudget is raised. "nvme": on their disks, with as
        much of it in memory as storage.dram_budget allows (docs/nvme.md); needs durability.
        "auto", the default: in memory if it fits, else on disk if the job has durability.
    accumulation_steps: micro-batches of a round. Each step() but the last of a round adds .grad to
        a sum in fp32, sends nothing and leaves .grad None; the last one rounds the sum once to the
        parameter's dtype and pushes it. The sum is not divided: divide each loss, as in torch
        (docs/optimizers.md). no_sync() decides micro-batch by micro-batch.

    The first step(), or attach(), attaches and uploads the weights; from then on the service owns
    them. A script that changes them calls upload_weights(). Other changes are noticed, if the bits
    differ then: with one trainer, fp32 and resume="never" they are uploaded, else the next step()
    raises WeightsEdited. Changes through p.data, numpy or C++ leave no trace that torch shows; they
    are looked for in the first 10 rounds and in every hundredth
    (docs/optimizers.md#weights-that-a-script-changes).
    load_export() brings moments and step counts in, export_state() takes them out again: per
    parameter step, exp_avg, exp_avg_sq and master, 12 bytes (with amsgrad max_exp_avg_sq, 16).
    load_export() takes a round per array, two where parameters have 16 bits, and also the
    state_dict() of a torch.optim.AdamW.
    Raises BadArgument, BadHyperparam (ValueErrors) and Unsupported at construction.
    """

    _kind = AdamKind("AdamW")

    @at_border
    @spelled_out
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
        model: torch.nn.Module | None = None,
        **job_options: Unpack[JobOptions],
    ) -> None:
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "amsgrad": amsgrad, "maximize": maximize, "foreach": foreach, "fused": fused,
            "capturable": capturable, "differentiable": differentiable,
            "decoupled_weight_decay": True,  # torch's has it, too: no argument, but a key of groups
        }  # fmt: skip
        super().__init__(params, defaults, model, job_options)
