"""Stage "bits": weights, masters and moments of jobs on the GPU have the bits of the host's.

Comes from: the runner. Goes to: the device tests, and jobs over real servers, each alongside a
reference on the host that gets the same gradients (twins.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import time
from pathlib import Path

# The oracle's bits are those of torch's kernels for AVX2 (docs/numerics.md).
os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")

import torch  # noqa: E402
from ballast.loss_scale import DynamicLossScale  # noqa: E402

from gpu_kit import checks, faults, models, place  # noqa: E402
from gpu_kit.twins import Twins  # noqa: E402

MIB = 1 << 20
ROUNDS, REHEARSED, ROUNDS_MIN = 100, 8, 8  # the first ones also wait for torch to warm up
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
# Long frames need longer buffers: 4 of them are the fewest.
LONG_FRAMES = {
    "BALLAST_ROUNDS_CHUNK_BYTES": "4MiB", "BALLAST_LIMITS_MAX_FRAME_BYTES": "8MiB",
}  # fmt: skip
TESTS_S = 60


@dataclasses.dataclass(frozen=True)
class Case:
    """One run. micro: backward passes of a round, added up as `adds` says: by accumulation_steps
    ("steps"), no_sync() or torch itself ("plain"). apart: some parameters stay on the host.
    norms: dtype of the layer norms, where it is another. pinned: MiB, of four buffers at least."""

    name: str
    dtype: torch.dtype
    servers: int
    long: bool = False
    micro: int = 1
    adds: str = "steps"
    clip: float | None = None
    apart: bool = False
    pinned: int = 64
    overflows: bool = False
    norms: torch.dtype | None = None


# In the order of their value: a short run leaves out the last.
CASES = (
    Case("fp32", F32, 1),
    Case("bf16, clip, two servers", BF16, 2, clip=0.5, pinned=4),
    Case("fp16, dynamic scale, an overflow", F16, 1, overflows=True, clip=0.5),
    Case("fp32, frames of 4 MiB, two servers", F32, 2, long=True, pinned=16, clip=0.5),
    Case("fp32, host tensors beside, plain accumulation", F32, 2, micro=2, adds="plain",
         apart=True, pinned=4),
    Case("bf16, accumulation_steps, host tensors beside", BF16, 1, micro=3, apart=True),
    Case("fp16, dynamic scale, accumulation_steps, host tensors beside", F16, 2, micro=2,
         overflows=True, apart=True, pinned=4),
    Case("bf16, frames of 4 MiB", BF16, 2, long=True, micro=2, adds="no_sync"),
    Case("fp32 norms in bf16, two servers", BF16, 2, norms=F32, clip=0.5),
    Case("fp32, accumulation_steps, clip", F32, 1, micro=3, clip=0.5, pinned=4),
    Case("fp16, frames of 4 MiB, dynamic scale", F16, 2, long=True, overflows=True, pinned=16),
    Case("fp16 norms in fp32, no_sync, host tensors beside", F32, 2, micro=2, adds="no_sync",
         norms=F16, apart=True),
)  # fmt: skip


def model_of(case: Case) -> torch.nn.Module:
    model = models.seeded(models.LONG if case.long else models.SMALL, case.dtype)
    if case.norms is not None:
        for module in model.modules():
            if isinstance(module, models.Norm):
                module.to(case.norms)
    return model


def options_of(case: Case) -> dict[str, object]:
    options: dict[str, object] = {"pinned_bytes": case.pinned * MIB, "max_grad_norm": case.clip}
    if not case.long:
        options |= {"extent_elements": 4096, "tile_elements": 64}
    if case.adds == "steps":
        options["accumulation_steps"] = case.micro
    if case.overflows:
        options["loss_scale"] = DynamicLossScale(
            initial_scale_power=10, loss_scale_window=8, hysteresis=1
        )
    return options


def one_round(case: Case, twins: Twins, number: int) -> None:
    model = twins.there
    for micro in range(case.micro):
        batch = models.tokens(model.size, number * case.micro + micro).to(twins.place.device)
        twins.backward(model(batch, with_spare=(number + micro) % 4 == 1))
        last = micro + 1 == case.micro
        if last and case.overflows and number % 11 == 5:
            model.blocks[0].hidden.weight.grad[1, 7] = float("inf")
        if last or case.adds == "steps":
            twins.step()
        elif case.adds == "no_sync":
            twins.no_sync()
    twins.ours.zero_grad(set_to_none=number % 4 != 3)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Differing bits after the given rounds: from the reference on the host, and from torch's
    own."""

    rounds: int
    weights: int
    state: int
    fused: int
    skipped: int
    copied: int  # gradients not sent from their own memory


def outcome(
    where: place.RealGpu | place.Standin, case: Case, endpoints: list[str], wanted: int,
    until: float,
) -> Outcome:  # fmt: skip
    """Of up to `wanted` rounds, fewer when time.monotonic() is past `until`."""
    twins = Twins(where, endpoints, model_of(case), apart=case.apart, **options_of(case))
    weights = done = 0
    least = ROUNDS_MIN if case is CASES[0] else 1
    while done < wanted and (done < least or time.monotonic() < until):
        one_round(case, twins, done)
        done += 1
        if done % 5 == 1:
            weights += twins.weight_bits()
    found = Outcome(
        done, weights + twins.weight_bits(), twins.state_bits(), twins.fused_bits(),
        twins.ours.skipped_steps, twins.ours.counters["copied_up_bytes"],
    )  # fmt: skip
    twins.close()
    return found


def check_case(stage: checks.Stage, case: Case, found: Outcome) -> None:
    overflowed = not case.overflows or found.skipped > 0 or found.rounds < 6
    stage.check(
        f"bits of the host: {case.name}", found.weights == found.state == 0 and overflowed,
        f"{found.weights} bits of weights and {found.state} of masters and moments differ after "
        f"{found.rounds} rounds, of which {found.skipped} were skipped",
        rounds=found.rounds, differing_bits=found.weights + found.state, skipped=found.skipped,
        copied_up_bytes=found.copied,
    )  # fmt: skip
    if torch.backends.cpu.get_cpu_capability() != "AVX2":
        stage.not_run(f"bits of torch's AdamW: {case.name}", "torch does not run its AVX2 kernels")
        return
    stage.check(
        f"bits of torch's AdamW: {case.name}", found.fused == 0,
        f"{found.fused} bits of masters and moments differ from those of "
        f"torch.optim.AdamW(fused=True) on the host after {found.rounds} rounds",
        rounds=found.rounds, differing_bits=found.fused,
    )  # fmt: skip


def check_fault(stage: checks.Stage, where: place.RealGpu | place.Standin,
                endpoints: list[str]) -> None:  # fmt: skip
    """One unpack of many that does nothing makes bits differ."""
    name = "an unpack that is lost is noticed"
    if not faults.built():
        stage.not_run(name, "libballast_cuda_faulty.so is not there")
        return
    with stage.trial(name), faults.planted("lost_unpack=3"):
        found = outcome(where, CASES[0], endpoints, 1, time.monotonic())
        stage.check(name, found.weights > 0, f"{found.weights} bits of weights differ",
                    differing_bits=found.weights)  # fmt: skip


def device_tests(stage: checks.Stage, folder: Path, fault: str = "") -> tuple[int, int, int]:
    """Passed, skipped and failed of the tests that every device has to pass, on this run's."""
    program = Path(os.environ["BALLAST_KIT_BIN"]) / "device_conformance_test"
    which = "*/cuda_over_a_standin" if stage.cpu else "*/cuda:Gpu.*"
    said = folder / f"device-tests{'-faulty' if fault else ''}.json"
    ended = subprocess.run(
        [program, f"--gtest_filter={which}", f"--gtest_output=json:{said}"],
        env={**os.environ, **(faults.environment(folder, stage.cpu, fault) if fault else {})},
        timeout=TESTS_S, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    print(ended.stdout[-4000:], flush=True)
    report = json.loads(said.read_text())
    each = [test for suite in report["testsuites"] for test in suite["testsuite"]]
    failed = sum(bool(test.get("failures")) for test in each)
    skipped = sum(test["result"] in ("SKIPPED", "SUPPRESSED") for test in each)
    if ended.returncode != bool(failed):
        raise RuntimeError(f"{program.name} ended with {ended.returncode}")
    return len(each) - failed - skipped, skipped, failed


def run_device_tests(stage: checks.Stage) -> None:
    """The device tests, and that they notice an unpack that does nothing."""
    name = "device tests on the stand-in" if stage.cpu else "device tests on the GPU"
    with stage.trial(name):
        passed, skipped, failed = device_tests(stage, stage.folder)
        stage.check(
            name, passed > 0 and skipped == failed == 0,
            f"{passed} passed, {skipped} skipped, {failed} failed",
            ran=passed, skipped=skipped, failures=failed,
        )  # fmt: skip
    name = "device tests notice a lost unpack"
    if not faults.built():
        stage.not_run(name, "libballast_cuda_faulty.so is not there")
        return
    with stage.trial(name):
        passed, _, failed = device_tests(stage, stage.folder, "lost_unpack=1")
        stage.check(name, passed > 0 and failed > 0,
                    f"{failed} tests failed with the fault, {passed} passed",
                    failures=failed)  # fmt: skip


class Running:
    """Servers for the cases, started when the first of them needs them."""

    def __init__(self, folder: Path, until_end: contextlib.ExitStack) -> None:
        self._folder, self._until_end = folder, until_end
        self._endpoints: dict[tuple[int, bool], list[str]] = {}

    def endpoints(self, count: int, long: bool) -> list[str]:
        if (count, long) not in self._endpoints:
            environ = {"BALLAST_TIMING_JOB_TTL": "1s", **(LONG_FRAMES if long else {})}
            folder = self._folder / f"servers-{count}{'-long' if long else ''}"
            servers = self._until_end.enter_context(place.servers(folder, count, environ))
            self._endpoints[count, long] = servers.addresses
        return self._endpoints[count, long]


def run(stage: checks.Stage) -> None:
    torch.set_num_threads(1)  # More would wait for each other, with tensors as small as these.
    where = place.chosen(stage.cpu)
    run_device_tests(stage)
    wanted = ROUNDS if where.real else REHEARSED
    with contextlib.ExitStack() as until_end:
        running = Running(stage.folder, until_end)
        for i, case in enumerate(CASES):
            name = f"bits of the host: {case.name}"
            # The first cases may take more than their share, since others then take less.
            share = 2 * (stage.left() - 5) / (len(CASES) - i)
            if share < 2:
                stage.not_run(name, f"{stage.left():.0f} s were left")
                continue
            with stage.trial(name):
                endpoints = running.endpoints(case.servers, case.long)
                until = time.monotonic() + min(share, stage.left() - 5)
                check_case(stage, case, outcome(where, case, endpoints, wanted, until))
                if i == 0:
                    check_fault(stage, where, endpoints)


if __name__ == "__main__":
    checks.main("bits", run)
