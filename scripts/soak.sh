#!/usr/bin/env bash
# A job with TLS under kills, new certificates and floods, on loopback only: tests/e2e/soak.py.
#   scripts/soak.sh [--minutes 30] [--leak BYTES] [--json]
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/python tests/e2e/soak.py "$@"
