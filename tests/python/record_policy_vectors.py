"""Records what DeepSpeed 0.19.8's schedules and loss scaler answer to policy_cases.py.

DeepSpeed is no dependency of this repository: it would add a build from source and 36 MB to every
set-up, for classes that a pinned version never changes. To record, or to see what differs:

    DS_BUILD_OPS=0 .venv/bin/python -m pip install --target DIR --no-build-isolation --no-deps \\
        deepspeed==0.19.8 hjson==3.1.0 py-cpuinfo==9.0.0 einops==0.8.2 msgpack==1.2.4 \\
        psutil==7.2.2 pydantic==2.14.3 pydantic-core==2.50.4 annotated-types==0.8.0 \\
        typing-inspection==0.4.5 typing-extensions==4.16.0 tqdm==4.70.1
    .venv/bin/python tests/python/record_policy_vectors.py DIR           # compares every double
    .venv/bin/python tests/python/record_policy_vectors.py DIR --write   # writes policy_vectors.txt

Logarithm and cosine are the host's: the vectors are those of glibc 2.36 on x86 with FMA.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "client" / "python")]

from policy_cases import SCALE_SHOWN_MAX, VECTORS, Case, cases, digest, our_answers  # noqa: E402

VERSION = "0.19.8"
SHOWN_MAX = 10


def load_deepspeed(folder: str) -> tuple[Any, Any]:
    """The modules of its schedules and of its loss scaler, from `folder`."""
    os.environ.update(DS_ACCELERATOR="cpu", DS_BUILD_OPS="0")
    sys.path.append(folder)
    import deepspeed
    from deepspeed.runtime import lr_schedules
    from deepspeed.runtime.fp16 import loss_scaler

    if deepspeed.__version__.split("+")[0] != VERSION:
        sys.exit(f"DeepSpeed {deepspeed.__version__} is installed there, not {VERSION}")
    logging.disable(logging.CRITICAL)
    loss_scaler.dist.get_rank = lambda *_: 1  # only rank 0 asks for a process group, to log
    return lr_schedules, loss_scaler


def run_scaler(module: Any, case: Case) -> list[float]:
    given = case.arguments
    scaler = module.DynamicLossScaler(
        init_scale=2.0 ** given["initial_scale_power"],
        scale_window=given["loss_scale_window"],
        min_scale=given["min_loss_scale"],
        delayed_shift=given["hysteresis"],
        consecutive_hysteresis=given["consecutive_hysteresis"],
    )
    values: list[float] = []
    skipped = 0
    for flag in case.flags:
        try:
            scaler.update_scale(flag == "1")
        except Exception:  # its class: the scale is at its minimum
            return [*values, -1.0]
        skipped += flag == "1"
        left = (scaler.cur_iter, scaler.last_overflow_iter, scaler.cur_hysteresis, skipped)
        values += [float(scaler.cur_scale), *map(float, left)]
        if scaler.cur_scale > SCALE_SHOWN_MAX:
            break
    return values


def run_schedule(module: Any, case: Case) -> list[float] | None:
    import torch

    groups = [
        {"params": [torch.zeros(1, requires_grad=True)], "lr": lr, "betas": (beta1, beta2)}
        for lr, beta1, beta2 in case.groups
    ]
    optimizer = torch.optim.Optimizer(groups, {"lr": 1.0, "betas": (0.9, 0.999)})
    try:
        schedule = getattr(module, case.kind)(optimizer, **case.arguments)
    except ValueError:
        return None
    values: list[float] = []
    for step in range(case.steps + 1):
        if step > 0:
            schedule.step()
        for group in optimizer.param_groups:
            values += [float(group["lr"]), *map(float, group["betas"])]
    return values


def deepspeeds_answers(folder: str, asked: list[Case]) -> Iterator[list[float] | None]:
    schedules, scalers = load_deepspeed(folder)
    for case in asked:
        if case.kind == "DynamicLossScaler":
            yield run_scaler(scalers, case)
        else:
            yield run_schedule(schedules, case)


def first_difference(theirs: list[float] | None, ours: list[float] | None) -> str:
    if theirs is None or ours is None:
        return f"DeepSpeed {'refuses' if theirs is None else 'accepts'} it, we do not"
    for place, (a, b) in enumerate(zip(theirs, ours)):
        if a != b:
            return f"value {place} of {len(theirs)}: {a!r} from DeepSpeed, {b!r} from us"
    return f"{len(theirs)} values from DeepSpeed, {len(ours)} from us"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="where DeepSpeed is installed")
    parser.add_argument("--write", action="store_true", help="write policy_vectors.txt")
    options = parser.parse_args()
    asked = list(cases())
    digests, differing, count = [], 0, 0
    answers = zip(asked, deepspeeds_answers(options.folder, asked), our_answers(asked))
    for number, (case, theirs, ours) in enumerate(answers):
        digests.append(digest(theirs))
        count += len(theirs or ())
        if digests[-1] != digest(ours):
            differing += 1
            if differing <= SHOWN_MAX:
                print(f"{number}: {case.line()[:300]}\n  {first_difference(theirs, ours)}")
    refused = sum(theirs == "refused" for theirs in digests)
    print(f"{len(asked)} cases, {refused} refused, {count} doubles, {differing} cases differ")
    if options.write:
        head = f"# DeepSpeed {VERSION}'s answers to policy_cases.py: record_policy_vectors.py\n"
        VECTORS.write_text(head + "\n".join(digests) + "\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
