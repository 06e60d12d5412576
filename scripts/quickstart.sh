#!/usr/bin/env bash
# Installs missing packages, builds, and trains a small GPT through two state servers alongside a
# shadow torch optimizer. Flags: --steps N --servers N --trainers N --dtype fp32|bf16|fp16 --json
# --durability power|process|none --chaos (kill -9 servers and a trainer while it trains)
# --tier auto|cpu|nvme --dram-budget SIZE (state that does not fit lives on disk)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Neither --help nor a wrong flag should cost a build.
if [[ -x .venv/bin/python ]] || command -v python3 >/dev/null; then
  python=$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python3)
  for arg in "$@"; do
    if [[ $arg == -h || $arg == --help ]]; then
      exec "$python" examples/quickstart/quickstart.py --help
    fi
  done
  "$python" examples/quickstart/quickstart.py --verify-flags "$@" || { (($? != 2)) || exit 2; }
fi
./scripts/setup.sh --for run >&2
# The shadow optimizer must run the same torch kernels on every machine (docs/numerics.md).
export ATEN_CPU_CAPABILITY=avx2
exec .venv/bin/python examples/quickstart/quickstart.py "$@"
