#!/usr/bin/env bash
# Sets the tree up, then runs every test: ctest (C++, style, rooms) and pytest (Python, end to end).
# Both always run; the exit code is not 0 when either failed. Goes to: tools/run_tests.py, which
# knows the flags (--quick, --label L, --help). Called by .ci/run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Neither --help nor a wrong flag should cost a build.
if command -v python3 >/dev/null; then
  python3 -B tools/run_tests.py --verify-flags "$@"
  for argument in "$@"; do
    [[ $argument == -h || $argument == --help ]] && exit 0
  done
fi
./scripts/setup.sh --for test
exec python3 -B tools/run_tests.py "$@"
