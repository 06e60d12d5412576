#!/usr/bin/env bash
# Strangers' load on one server of this machine, on loopback only: tests/e2e/load.py says what.
#   scripts/load.sh [--connections 10000] [--jobs 10] [--json]     # idle and garbage, plaintext
#   scripts/load.sh --minutes N [--shape NAME] [--jobs 10] [--json]   # shapes with TLS
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/python tests/e2e/load.py "$@"
