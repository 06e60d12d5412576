"""The compiler's result for the kernels: no spilled register, no float operation that may differ.

Comes from: nvcc, run over kernels.cu with the flags of the build; the PTX and the report of ptxas.
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
# GPUs from 10.0 on have operations on two floats, f32x2.
FLOATS = r"(?:f16|f32|f64|bf16)(?:x2)?"
UNROUNDED = re.compile(rf"\b(add|sub|mul|div|mad|sqrt|rcp|fma)\.{FLOATS}\b")
FORBIDDEN = re.compile(rf"\.ftz\b|\.approx\b|\b(?:atom|red)\.[\w.]*\.{FLOATS}\b")
FUSED = re.compile(rf"\b(fma|mad)\.rn\.{FLOATS}\b")
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


def architectures(flags):
    """Returns the virtual architectures (compute_80) that the flags generate code from, each once:
    ptxas makes machine code of their PTX, and the last one's is shipped for newer GPUs."""
    return sorted(set(re.findall(r"arch=(compute_\d+)", " ".join(flags))), key=lambda a: int(a[8:]))


def compile_kernels(nvcc, source, flags):
    """Returns the kernels' PTX by architecture, and the report of ptxas on all of them."""
    with tempfile.TemporaryDirectory() as folder:
        report = subprocess.run(
            [nvcc, "-c", *flags, "-Xptxas=-v", "-o", f"{folder}/kernels.o", source],
            check=True, capture_output=True, text=True).stderr
        plain = [flag for flag in flags if not flag.startswith("--generate-code")]
        texts = {}
        for architecture in architectures(flags):
            path = f"{folder}/{architecture}.ptx"
            subprocess.run([nvcc, "-ptx", *plain, f"-arch={architecture}", "-o", path, source],
                           check=True, capture_output=True, text=True)
            with open(path, encoding="utf-8") as ptx:
                texts[architecture] = ptx.read()
        return texts, report


def self_test():
    """Fails when a rule finds nothing in a text that breaks it."""
    pack = ".visible .entry PackKernel(\n"
    for operation in ("mul.f32 %f1", "add.rn.ftz.f32 %f1", "fma.rn.f32 %f1",
                      "atom.global.add.f32 %f1", "rcp.approx.f32 %f1", "fma.rn.f32x2 %rd1",
                      "add.f32x2 %rd1", "add.bf16 %h1"):
        assert ptx_findings(pack + operation), operation
    assert not ptx_findings(pack + "mul.rn.f32 %f1\nadd.rn.f32 %f2\nsetp.neu.f32 %p1")
    assert not ptx_findings(".visible .entry _Z13MeasureKernelI(\nfma.rn.f32 %f1")
    flags = ["-O3", "--generate-code=arch=compute_80,code=sm_80",
             "--generate-code=arch=compute_100,code=sm_100",
             "--generate-code=arch=compute_100,code=compute_100"]
    assert architectures(flags) == ["compute_80", "compute_100"]
    assert report_findings("Used 65 registers")[0]
    assert report_findings("0 bytes stack frame, 8 bytes spill stores, 0 bytes spill loads")[0]
    assert report_findings("Used 64 registers\n0 bytes spill stores") == ([], 1)


def main(arguments):
    self_test()
    if arguments == ["--self-test"]:
        return 0
    nvcc, source, *flags = arguments
    texts, report = compile_kernels(nvcc, source, flags)
    found, kernels = report_findings(report)
    for architecture, ptx in texts.items():
        found += [f"{architecture}: {text}" for text in ptx_findings(ptx)]
        if "MeasureKernel" not in ptx:
            found.append(f"{architecture}: there is no kernel")
    if kernels == 0 or not texts:
        found.append("nvcc reports no kernel")
    print("\n".join(found) or f"{kernels} kernels, PTX of {', '.join(texts)}: nothing found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
