"""A pure-Python stand-in for ballast._core with one trainer: torch steps fp32 masters in place.

It has the extension's interface (client/python/binding/module.cc) and reads and writes the same raw
addresses, so that everything above it is tested without servers.
"""

from __future__ import annotations

import ctypes
import functools
import json
import types

import torch

from ballast.errors import BallastError, LossScaleMismatch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def on_cpu(call):
    """Servers know nothing of torch.set_default_device() in the trainer."""

    @functools.wraps(call)
    def there(*args, **named):
        with torch.device("cpu"):
            return call(*args, **named)

    return there


@on_cpu
def at(address: int, shape, dtype: str) -> torch.Tensor:
    """The memory at `address` as a contiguous tensor."""
    count = 1
    for n in shape:
        count *= n
    if count == 0:
        return torch.empty(tuple(shape), dtype=DTYPES[dtype])
    assert address, "no memory was lent"
    size = count * DTYPES[dtype].itemsize
    raw = (ctypes.c_char * size).from_address(address)
    return torch.frombuffer(raw, dtype=DTYPES[dtype]).reshape(tuple(shape))


class FakeOperation:
    """Ends after `polls` unsuccessful waits; then raises `error` or gives `result`."""

    def __init__(self, result=None, error=None, polls=0):
        self._result, self._error, self._polls = result, error, polls

    def wait(self, timeout_s):
        if self._polls:
            self._polls -= 1
            return False
        if self._error is not None:
            raise self._error
        return True

    def result(self):
        return self._result


class FakePauseQueue:
    """An entry that a test puts into `news` is taken once."""

    def __init__(self):
        self.news = []

    def take(self):
        taken, self.news = self.news, []
        return taken


def _adam(values):
    lr, beta1, beta2, eps, decay = values
    return {"lr": lr, "betas": (beta1, beta2), "eps": eps, "weight_decay": decay}


def _named(*names):
    return lambda values: dict(zip(names, values, strict=True))


# torch's class, its group of the wire's numbers, and the arrays after the master.
KINDS = {
    "AdamW": (torch.optim.AdamW, _adam, ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")),
    "Adam": (torch.optim.Adam, _adam, ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")),
    "SGD": (
        torch.optim.SGD,
        _named("lr", "momentum", "dampening", "weight_decay"),
        ("momentum_buffer",),
    ),
    "Adagrad": (
        torch.optim.Adagrad, _named("lr", "lr_decay", "weight_decay", "eps"), ("sum",),
    ),  # fmt: skip
}


class FakeSafetensorsFile:
    """A file that the library itself has written; it checks nothing."""

    def __init__(self, path):
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
            self._data = file.read()
        self.metadata = header.pop("__metadata__", {})
        self.tensors = [(name, each["dtype"], each["shape"]) for name, each in header.items()]
        self._places = [each["data_offsets"] for each in header.values()]

    def read(self, i, address):
        begin, end = self._places[i]
        ctypes.memmove(address, self._data[begin:end], end - begin)


class FakeConnection:
    def __init__(self, core, options, tensors, weights):
        self.core = core
        self.options = options
        self.tensors = []
        self.masters = []
        self.optimizer = None
        self.kind, self.group_of, self.arrays = KINDS[options["optimizer"]]
        self.steps = {}  # by id of a master
        self.round = 1
        self.job_id = 2**64 - 1  # the largest an uint64 holds
        self.server_count = 1
        self.opt_step = 0
        self.world = options["world_size"]
        self.epoch = 1
        self.resumed = False
        self.user_state = b""
        self.calls = []
        self.aborted = False
        self.leave_error = None
        self.on_wait = None
        self.polls = 0
        self.doing = (0, 0, 0)
        self.roll_call_error = None
        self.wait_error = None
        self.said = self._first_policy(options)
        self._append(tensors, weights)
        if core.resumes is not None:
            self._resume(weights, *core.resumes)
            self.said.update(core.policy_said)

    def _resume(self, weights, rounds, value, state):
        self.resumed, self.round, self.opt_step = True, rounds + 1, rounds
        self.user_state = state
        for (_, shape, dtype, *_), master, weight in zip(self.tensors, self.masters, weights):
            master.fill_(value)
            at(weight, shape, dtype).fill_(value)

    @on_cpu
    def _append(self, tensors, weights):
        if self.options["init"] == "broadcast" and self.options["rank"] > 0:
            for tensor, weight in zip(tensors, weights):
                at(weight, tensor[1], tensor[2]).fill_(0.5)  # "rank 0's weights"
        masters = [at(w, t[1], t[2]).float().clone() for t, w in zip(tensors, weights)]
        self.tensors += tensors
        self.masters += masters
        for group in sorted({t[3] for t in tensors}):
            params = [m for t, m in zip(tensors, masters) if t[3] == group]
            if self.optimizer is None:
                given = dict(self.options["optimizer_options"])
                momentum = given.pop("momentum", 0)
                given = {k: value if "value" in k else bool(value) for k, value in given.items()}
                if momentum:
                    given["momentum"] = 0.5  # The next step says it.
                self.optimizer = self.kind(params, foreach=False, **given)
            else:
                self.optimizer.add_param_group({"params": params})

    @staticmethod
    def _first_policy(options):
        scale = options["loss_scale"]
        scale = 2.0 ** scale[0] if isinstance(scale, tuple) else scale
        return {
            "loss_scale": scale, "schedule_index": -1, "skipped_rounds": 0, "rates": [],
            "last_skipped": False, "why_skipped": "",
        }  # fmt: skip

    def dealt(self):
        """One extent per tensor, the last one first, dealt in turn within group and dtype."""
        turns, extents = {}, []
        for number in reversed(range(len(self.tensors))):
            _, shape, dtype, group, _ = self.tensors[number]
            turn = turns.setdefault((group, dtype), 0)
            turns[group, dtype] += 1
            elements = torch.Size(shape).numel()
            extents.append((group, turn % self.world, [(number, 0, elements)]))
        return extents

    def policy(self):
        return dict(self.said)

    def _scheduled(self, hyper):
        """The stand-in for a schedule: a group's own lr times 1, 2, 3, ... and half its beta1."""
        if not self.options["schedule"]:
            return hyper
        times = self.said["schedule_index"] + 2
        cycles = self.options["schedule"][0] == "OneCycle"
        scheduled = [(h[0] * times, h[1] / 2 if cycles else h[1], *h[2:]) for h in hyper]
        self.said["rates"] = [h[:3] for h in scheduled]
        return scheduled

    def _move_policy(self, applied):
        self.said["last_skipped"] = not applied
        self.said["schedule_index"] += applied
        self.said["skipped_rounds"] += not applied
        if isinstance(self.options["loss_scale"], tuple) and not applied:
            self.said["loss_scale"] /= 2

    @on_cpu
    def begin_step(self, hyper, grads, weights, user_state, loss_scale, sums_of):
        if sums_of not in (0, self.epoch):
            raise BallastError(f"went from epoch {sums_of} to {self.epoch}", reason="STALE_EPOCH")
        self.calls.append(("step", hyper, grads))
        if loss_scale not in (0, self.said["loss_scale"]):
            raise LossScaleMismatch(f"slot 0 sent {loss_scale:g}", slot=0)
        self.user_state = user_state
        hyper = self._scheduled(hyper)
        assert len(hyper) == len(self.optimizer.param_groups)
        assert len(grads) == len(weights) == len(self.tensors)
        for group, values in zip(self.optimizer.param_groups, hyper):
            group.update(self.group_of(values))
        total = torch.zeros((), dtype=torch.float64)
        for (_, shape, dtype, *_), master, grad in zip(self.tensors, self.masters, grads):
            master.grad = None
            if grad:
                master.grad = at(grad, shape, dtype).float() / self.said["loss_scale"]
                total += master.grad.double().square().sum()
        norm = float(total.sqrt())
        clip = self.options["max_grad_norm"]
        coef = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
        applied = bool(torch.isfinite(total))
        if applied:
            self.opt_step += 1
            self._apply(coef, grads, weights)
        self._move_policy(applied)
        self.report = {
            "round": self.round,
            "applied": applied,
            "grad_norm": norm,
            "clip_coef": coef,
            "opt_step": self.opt_step,
            "paused_ms": 0.0,
            "reconnects": 0,
        }

    def begin_upload(self, weights, user_state):
        self.calls.append(("upload", weights))
        self.user_state = user_state
        for (_, shape, dtype, *_), master, weight in zip(self.tensors, self.masters, weights):
            master.copy_(at(weight, shape, dtype))
        self.report = {"round": self.round, "applied": True, "opt_step": self.opt_step}

    @on_cpu
    def begin_state_upload(
        self, *, array, low, bits, weights, tensor_step, opt_step, schedule_index, user_state
    ):
        if schedule_index is not None:
            assert tensor_step and self.options["schedule"]
            self.said["schedule_index"] = schedule_index
        self.calls.append(("plane", 2 + 2 * array + low, tensor_step))
        self.user_state = user_state
        for i, (_, shape, dtype, *_) in enumerate(self.tensors):
            master = self.masters[i]
            state = self.optimizer.state[master]
            for key in self.arrays[:2]:
                state.setdefault(key, torch.zeros_like(master))
            target = master if array == 0 else state[self.arrays[array - 1]]
            if dtype != "float32":
                halves = target.view(-1).view(torch.int16).view(-1, 2)
                pushed = at(bits[i], (target.numel(),), "bfloat16").view(torch.int16)
                halves[:, 0 if low else 1] = pushed
            elif bits[i]:
                target.copy_(at(bits[i], shape, dtype))
            if tensor_step:
                state["step"] = torch.tensor(float(tensor_step[i]))
                self.steps[id(master)] = tensor_step[i]
                if tensor_step[i] == 0:  # The first step copies, as that of a new tensor.
                    state.pop("momentum_buffer", None)
            at(weights[i], shape, dtype).copy_(master)
        self.opt_step = opt_step if tensor_step else self.opt_step
        self.report = {"round": self.round, "applied": True, "opt_step": self.opt_step}

    def _apply(self, coef, grads, weights):
        if coef != 1.0:
            for master in self.masters:
                if master.grad is not None:
                    master.grad.mul_(coef)
        self.optimizer.step()
        for master in self.masters:
            if master.grad is not None:
                self.steps[id(master)] = self.steps.get(id(master), 0) + 1
        for (_, shape, dtype, *_), master, grad, weight in zip(
            self.tensors, self.masters, grads, weights
        ):
            if grad:
                at(weight, shape, dtype).copy_(master)

    def wait(self, timeout_s):
        if self.on_wait is not None:
            self.on_wait()
        if self.wait_error is not None:
            raise self.wait_error
        if self.polls:
            self.polls -= 1
            return None
        self.round += 1
        return self.report

    def set_doing(self, *doing):
        self.doing = doing

    def start_rendezvous(self, *, act, meeting, id, why):
        assert act == "roll_call"
        ranks = [(rank, True, 0.0, 0, *self.doing) for rank in range(self.world)]
        said = {"ranks": ranks, "generation": 0, "ended": "", "lease_s": 30.0}
        return FakeOperation(said, self.roll_call_error)

    def start_extend(self, tensors, weights, init, schedule_groups):
        self.calls.append(("extend", tensors, init))
        said = self.options["schedule"]
        self.schedule_groups = [*(said[2] if said else ()), *schedule_groups]
        self._append(tensors, weights)
        return FakeOperation()

    @on_cpu
    def start_fetch_state(self, arrays):
        steps = []
        for i, (_, shape, *_) in enumerate(self.tensors):
            state = self.optimizer.state.get(self.masters[i], {})
            for key, addresses in zip(("master", *self.arrays), arrays):
                value = self.masters[i] if key == "master" else state.get(key)
                value = torch.zeros(tuple(shape)) if value is None else value
                if addresses[i]:  # 0: left out
                    at(addresses[i], shape, "float32").copy_(value)
            steps.append(self.steps.get(id(self.masters[i]), 0))
        return FakeOperation(steps, polls=1)

    def start_fetch_weights(self, weights):
        for (_, shape, dtype, *_), master, weight in zip(self.tensors, self.masters, weights):
            at(weight, shape, dtype).copy_(master)
        return FakeOperation()

    def start_snapshot(self, name, keep):
        self.calls.append(("snapshot", name, keep))
        return FakeOperation(self.round)

    def start_leave(self):
        self.calls.append(("leave",))
        return FakeOperation(error=self.leave_error)

    def leave_at_exit(self, job, told, timeout_s):
        self.calls.append(("leave_at_exit", job, told))

    def abort(self):
        self.aborted = True

    def counters(self):
        return {"payload_up_bytes": 1}


class FakeCore:
    """`attached` holds every connection made; `attach_error` and `attach_polls` act on the next.

    `queue` is the pause queue of the last one. resumes: (rounds finished, value of every weight,
    user state) of an existing job; policy_said: the values of its policy that differ from the
    initial ones.
    """

    def __init__(self):
        self.attached = []
        self.attach_error = None
        self.attach_polls = 2
        self.queue = None
        self.resumes = None
        self.policy_said = {}

    SafetensorsFile = FakeSafetensorsFile

    def PauseQueue(self):
        self.queue = FakePauseQueue()
        return self.queue

    def JobOptions(self):
        return types.SimpleNamespace(schedule=None)

    def start_attach(self, *, options, pauses, tensors, weights, gpu):
        options = {**vars(options), "pauses": pauses, "gpu": gpu}
        if self.attach_error is not None:
            return FakeOperation(error=self.attach_error)
        self.attached.append(FakeConnection(self, options, tensors, weights))
        return FakeOperation(self.attached[-1], polls=self.attach_polls)

    @property
    def last(self):
        return self.attached[-1]
