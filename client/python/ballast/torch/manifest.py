"""Which torch parameters are tensors of the job, in which order, and what may not be one.

Comes from: ballast.torch.membership. Goes to: ballast.session (TensorSpec), ballast.torch.buffers.
The manifest only grows. Frozen parameters (requires_grad False, no gradient) are left out and join,
in a new service group, at the first step at which they can be trained. A service group maps to one
torch group, whose hyper-parameters it takes; torch groups without trainable tensors have none.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import torch

from ballast.errors import BadArgument, Unsupported, warn
from ballast.session import TensorSpec
from ballast.torch import gpu
from ballast.torch.naming import Naming, refuse_shard

_PAGE = "docs/optimizers.md#parameters-that-grow"
_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@dataclasses.dataclass
class Entry:
    """One tensor of the job, with its shape, dtype and device there.

    `address` and `version` are those of the parameter when it last held the service's value, and so
    is `checksum` (ballast.torch.edits), where one was formed. left: the script has taken it out of
    param_groups; the job has it still, without steps. job_name: its name in the job, where a
    departed one had `name`.
    """

    param: torch.Tensor
    name: str
    aliases: tuple[str, ...]
    named: bool
    torch_group: int
    service_group: int
    shape: torch.Size = torch.Size()
    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")
    address: int = 0
    version: int = 0
    checksum: int | None = None
    left: bool = False
    job_name: str = ""
    weight_copy: torch.Tensor | None = None  # contiguous twin of a strided parameter
    grad_copy: torch.Tensor | None = None
    copied_up: int = 0  # bytes that went through grad_copy, and through weight_copy
    copied_down: int = 0

    def spec(self) -> TensorSpec:
        dtype = _DTYPES[self.dtype]
        name = self.job_name or self.name
        return TensorSpec(name, tuple(self.shape), dtype, self.service_group, self.aliases)

    def agree(self) -> None:
        """Remembers the parameter's memory and version as those of the service's weights."""
        self.address = self.param.data_ptr()
        self.version = self.param._version
        self.checksum = None


class Manifest:
    """The job's tensors in manifest order (`entries`) and the torch group of each service group."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.service_groups: list[int] = []
        self._known: dict[int, Entry] = {}  # by id() of the parameter

    def pending(self, param_groups: list[dict[str, Any]], naming: Naming) -> list[Entry]:
        """Entries for trainable parameters not yet in the manifest, checked.

        Raises Unsupported or BadArgument naming the parameter. The manifest is unchanged.
        """
        found: list[Entry] = []
        next_group = len(self.service_groups)
        for g, group in enumerate(param_groups):
            before = len(found)
            for i, p in enumerate(group["params"]):
                if id(p) in self._known or not (p.requires_grad or p.grad is not None):
                    continue
                name, aliases, named = naming.of(group, g, i)
                check_tensor(p, name)
                of_torch = (p.shape, p.dtype, p.device)
                entry = Entry(p, name, aliases, named, g, next_group, *of_torch)
                self._make_unique(entry)
                found.append(entry)
            next_group += len(found) > before
        if found:
            _check_names(self.entries + found)
            _check_overlap(self.entries + found)
        return found

    def may_grow(self, param_groups: list[dict[str, Any]]) -> bool:
        """Whether pending() would find a parameter."""
        return any(
            id(p) not in self._known and (p.requires_grad or p.grad is not None)
            for group in param_groups
            for p in group["params"]
        )

    def see_removals(self, param_groups: list[dict[str, Any]], job: str, may_leave: bool) -> None:
        """Marks parameters of the job no longer in any group; warns of each once.

        BadArgument, naming the parameter, unless may_leave; and for one now in another group,
        without its group, or back again: the service knows its first group only.
        """
        place = {id(p): g for g, group in enumerate(param_groups) for p in group["params"]}
        leaving = []
        for entry in self.entries:
            g, now = entry.torch_group, place.get(id(entry.param))
            if now is None and (entry.left or (may_leave and g < len(param_groups))):
                leaving += [] if entry.left else [entry]
            elif now != g or entry.left:
                raise BadArgument(
                    f"parameter {entry.name!r} is not in opt.param_groups[{g}] any more, or is "
                    "there again, but the job has it and would keep stepping it. Put it back as it "
                    "was; to leave a parameter out of a step, set its .grad to None on all "
                    f"trainers, and to train others, start a new job ({_PAGE})",
                    job=job,
                )
        for entry in leaving:
            entry.left = True
            warn(_left_text(entry))

    def _make_unique(self, entry: Entry) -> None:
        # A departed one keeps its name in the job.
        gone = [name for e in self.entries if e.left for name in (e.name, *e.aliases)]
        if entry.name in gone:
            entry.job_name = f"{entry.name}#{1 + gone.count(entry.name)}"
        entry.aliases = tuple(alias for alias in entry.aliases if alias not in gone)

    def of(self, parameter: Any) -> Entry | None:
        """The job's tensor that this parameter is; None when it is none."""
        return self._known.get(id(parameter))

    def add(self, entries: list[Entry]) -> None:
        """Takes over entries of `pending` that the service has accepted."""
        for entry in entries:
            if entry.service_group == len(self.service_groups):
                self.service_groups.append(entry.torch_group)
            self._known[id(entry.param)] = entry
            entry.agree()
        self.entries += entries


def check_tensor(p: torch.Tensor, name: str) -> None:
    """Unsupported, naming the parameter, unless it is a plain strided tensor of 16 or 32 bits."""
    refuse_shard(p, name)
    problem = ""
    if torch.nn.parameter.is_lazy(p):
        problem = "is not initialized yet (a lazy module); run a forward pass before step()"
    elif type(p).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        problem = f"is a {type(p).__name__}, not a plain tensor; its data may lie elsewhere"
    elif p.layout is not torch.strided:
        problem = f"has layout {p.layout}; only dense (strided) tensors are supported"
    elif p.device.type != "cpu" and not gpu.on_gpu(p):
        problem = f"is on device {p.device}; parameters of CPUs and NVIDIA GPUs are supported"
    elif p.dtype not in _DTYPES:
        problem = f"has dtype {p.dtype}; float32, bfloat16 and float16 are supported"
    elif p.is_inference():
        problem = "was created under torch.inference_mode(), which cannot be trained"
    elif p.is_neg() or _overlaps_itself(p):
        problem = "is a view whose elements share memory or are negated; pass a contiguous tensor"
    if problem:
        raise Unsupported(f"parameter {name!r} {problem}")


def warn_of_order(entries: list[Entry], says: str, optimizer: str) -> None:
    """Warns, at the script's line, when some of `entries` have no name.

    says: what, for want of names, the order of parameters does. optimizer: which one should be
    built with names.
    """
    if not all(entry.named for entry in entries):
        warn(
            f"some parameters have no name: the order of parameters is what {says}. "
            f"Build {optimizer} from model.named_parameters() or pass model="
        )


def _left_text(entry: Entry) -> str:
    return (
        f"parameter {entry.name!r} is in no parameter group any more: it is not stepped from now "
        "on. One in its place begins with a new state; the job keeps the old one, about "
        f"{12 * entry.shape.numel()} bytes, until it ends ({_PAGE})"
    )


def _check_names(entries: list[Entry]) -> None:
    owner: dict[str, int] = {}
    for entry in entries:
        for name in (entry.job_name or entry.name, *entry.aliases):
            _check_name(name)
            if owner.setdefault(name, id(entry)) != id(entry):
                raise BadArgument(
                    f"two parameters are named {name!r}; names must be unique in a job"
                )


def _check_name(name: Any) -> None:
    try:
        name.encode()
    except (AttributeError, UnicodeEncodeError):
        raise BadArgument(f"a parameter is named {name!r}: must be Unicode text") from None


def _span(p: torch.Tensor) -> tuple[int, int]:
    if p.numel() == 0:
        return p.data_ptr(), p.data_ptr()
    last = sum((n - 1) * stride for n, stride in zip(p.shape, p.stride()))
    return p.data_ptr(), p.data_ptr() + (last + 1) * p.element_size()


def _granules(p: torch.Tensor) -> torch.Tensor:
    # Address / 2 of every two bytes of every element, for the rare exact comparison.
    width = p.element_size() // 2
    cells = torch.full((1,), p.data_ptr() // 2, dtype=torch.int64, device="cpu")
    for n, stride in zip(p.shape, p.stride()):
        steps = _counted(n) * (stride * width)
        cells = (cells[:, None] + steps).reshape(-1)
    return (cells[:, None] + _counted(width)).reshape(-1)


def _counted(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int64, device="cpu")


def _distinct(cells: torch.Tensor) -> bool:
    return torch.unique(cells).numel() == cells.numel()


def _overlaps_itself(p: torch.Tensor) -> bool:
    if p.is_contiguous() or p.numel() == 0:
        return False
    if any(n > 1 and stride == 0 for n, stride in zip(p.shape, p.stride())):
        return True
    return not _distinct(_granules(p))


def _check_overlap(entries: list[Entry]) -> None:
    # Only tensors whose spans touch need the exact answer: two columns of one matrix interleave
    # without sharing an element.
    spans = sorted((*_span(e.param), i) for i, e in enumerate(entries) if e.param.numel())
    cluster: list[Entry] = []
    reach = 0
    for start, end, i in spans:
        if start >= reach:
            _check_cluster(cluster)
            cluster = []
        cluster.append(entries[i])
        reach = max(reach, end)
    _check_cluster(cluster)


def _check_cluster(cluster: list[Entry]) -> None:
    if len(cluster) < 2 or _distinct(torch.cat([_granules(e.param) for e in cluster])):
        return
    for a, b in itertools.combinations(cluster, 2):
        if not _distinct(torch.cat([_granules(a.param), _granules(b.param)])):
            raise Unsupported(
                f"parameters {a.name!r} and {b.name!r} share memory but are different tensors; "
                "tie weights by using one Parameter object under both names"
            )
