#!/usr/bin/env bash
# Where an NVIDIA GPU is: runs every test that is labelled gpu, and prints a report to paste into an
# issue. Without one: says so in one line, exit code 0. Build first (scripts/setup.sh).
# The exit code is 1 when a test failed, 2 when nothing is built.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${BALLAST_BUILD:-build/release}
python=${BALLAST_PYTHON:-.venv/bin/python}

gpus=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null) ||
  gpus=""
if [[ -z $gpus ]]; then
  echo "gpu_check: no NVIDIA GPU on this host (nvidia-smi shows none); nothing was run"
  exit 0
fi
if [[ ! -d $build ]]; then
  echo "gpu_check: $build is not there; run scripts/setup.sh first" >&2
  exit 2
fi

said=$(mktemp)
trap 'rm -f "$said"' EXIT
run() {  # name, command: its last lines, and whether it passed
  local name=$1 code=0
  shift
  "$@" >"$said" 2>&1 || code=$?
  # Where all were skipped, nothing was shown.
  if [[ $code == 0 ]] && ! grep -qi passed "$said"; then code="nothing ran"; fi
  printf '\n### %s: %s\n\n' "$name" "$([[ $code == 0 ]] && echo passed || echo "FAILED ($code)")"
  sed 's/^/    /' "$said" | tail -n 40
  [[ $code == 0 ]] || failed=1
}

failed=0
echo "## Ballast on a GPU"
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' client/python/ballast/version.py)
printf '\n'
printf '    %s\n' "Ballast $version" \
  "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)" \
  "torch $("$python" -c 'import torch; print(torch.__version__, "CUDA", torch.version.cuda)' \
    2>/dev/null || echo missing)"
while read -r gpu; do printf '    GPU %s\n' "$gpu"; done <<<"$gpus"
run "ctest -L gpu" ctest --test-dir "$build" -L gpu --no-tests=error --output-on-failure
run "pytest -m gpu" "$python" -m pytest -q -m gpu tests/python
if command -v compute-sanitizer >/dev/null; then
  run "compute-sanitizer" compute-sanitizer --error-exitcode 9 \
    "$build/tests/client/device/device_conformance_test" '--gtest_filter=*/cuda:Gpu.*'
else
  printf '\n### compute-sanitizer: not installed, nothing was run\n'
fi
run "copies and steps" "$python" bench/gpu_bench.py
exit "$failed"
