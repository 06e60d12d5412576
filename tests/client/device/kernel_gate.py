"""What the compiler made of the kernels: no spilled register, no float operation that may differ.

Comes from: nvcc, run over kernels.cu with the flags of the build; the PTX and what ptxas reports.
Goes to: ctest (cuda_kernel_gate). Needs no GPU. `--self-test` shows that each rule can fail.

usage: kernel_gate.py NVCC SOURCE FLAG... | kernel_gate.py --self-test
"""

import re
import subprocess
import sys
import tempfile

REGISTERS_MAX = 64
FUNCTION = re.compile(r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?(\w+)")
# A float operation without a rounding mode may be contracted; .ftz drops denormals.
UNROUNDED = re.compile(r"\b(add|sub|mul|div|mad|sqrt|rcp|fma)\.f(32|64)\b")
FORBIDDEN = re.compile(r"\.ftz\b|\.approx\b|\b(?:atom|red)\.[\w.]*\.f(?:16|32|64)\b")
FUSED = re.compile(r"\b(fma|mad)\.rn\.f(32|64)\b")
# The sum of squares is defined with fma.
FUSED_IN = re.compile(r"MeasureKernel")


def ptx_findings(ptx):
    """Returns one text for each operation of the PTX that may have other bits than the host's."""
    found = []
    function = "?"
    for number, line in enumerate(ptx.splitlines(), 1):
        line = line.split("//")[0]
        named = FUNCTION.search(line)
        if named:
            function = named.group(1)
        for rule, why in ((UNROUNDED, "has no rounding mode"), (FORBIDDEN, "changes bits")):
            match = rule.search(line)
            if match:
                found.append(f"line {number}: {match.group(0)} in {function} {why}")
        if FUSED.search(line) and not FUSED_IN.search(function):
            found.append(f"line {number}: a fused operation in {function}")
    return found


def report_findings(report):
    """Returns one text for each kernel that spills or takes too many registers, and how many
    kernels the report of ptxas has."""
    found = []
    kernels = re.findall(r"Used (\d+) registers", report)
    for registers in kernels:
        if int(registers) > REGISTERS_MAX:
            found.append(f"{registers} registers in one kernel; at most {REGISTERS_MAX}")
    for spilled in re.findall(r"(\d+) bytes spill (?:stores|loads)", report):
        if int(spilled) > 0:
            found.append(f"{spilled} bytes of registers are spilled")
    return found, len(kernels)


def compile_kernels(nvcc, source, flags):
    """Returns the kernels' PTX and the report of ptxas on all architectures."""
    with tempfile.TemporaryDirectory() as folder:
        report = subprocess.run(
            [nvcc, "-c", *flags, "-Xptxas=-v", "-o", f"{folder}/kernels.o", source],
            check=True, capture_output=True, text=True).stderr
        plain = [flag for flag in flags if not flag.startswith("--generate-code")]
        subprocess.run([nvcc, "-ptx", *plain, "-arch=compute_80", "-o", f"{folder}/kernels.ptx",
                        source], check=True, capture_output=True, text=True)
        with open(f"{folder}/kernels.ptx", encoding="utf-8") as ptx:
            return ptx.read(), report


def self_test():
    """Fails when a rule finds nothing in a text that breaks it."""
    pack = ".visible .entry PackKernel(\n"
    for operation in ("mul.f32 %f1", "add.rn.ftz.f32 %f1", "fma.rn.f32 %f1",
                      "atom.global.add.f32 %f1", "rcp.approx.f32 %f1"):
        assert ptx_findings(pack + operation), operation
    assert not ptx_findings(pack + "mul.rn.f32 %f1\nadd.rn.f32 %f2\nsetp.neu.f32 %p1")
    assert not ptx_findings(".visible .entry _Z13MeasureKernelI(\nfma.rn.f32 %f1")
    assert report_findings("Used 65 registers")[0]
    assert report_findings("0 bytes stack frame, 8 bytes spill stores, 0 bytes spill loads")[0]
    assert report_findings("Used 64 registers\n0 bytes spill stores") == ([], 1)


def main(arguments):
    self_test()
    if arguments == ["--self-test"]:
        return 0
    nvcc, source, *flags = arguments
    ptx, report = compile_kernels(nvcc, source, flags)
    found, kernels = report_findings(report)
    found += ptx_findings(ptx)
    if kernels == 0 or "MeasureKernel" not in ptx:
        found.append("nvcc reports no kernel")
    print("\n".join(found) or f"{kernels} kernels, of all architectures: nothing found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
