#!/usr/bin/env bash
# The kill storm: real servers and trainers, killed, stopped and starved, compared bit for bit with
# a reference. Needs build/release (scripts/test.sh makes it). docs/kill-storm.md says what happens.
#   ./scripts/kill_storm.sh --kills N | --minutes M | --failpoints   [--servers S] [--trainers W]
#                           [--seed X] [--durability power|process] [--tier dram|nvme]
#                           [--optimizer KIND] [--think-us N] [--snapshots] [--keep] [--json]
# Progress goes to stderr, the result to stdout. Exit status 0: no round lost, no bit differs,
# nobody needed a hand.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
build="$root/build/release"
if [[ ! -x "$build/tests/fault_trainer" || ! -x "$build/bin/ballastd" ]]; then
  echo "$build/tests/fault_trainer is missing: cmake --build build/release" >&2
  exit 2
fi
exec python3 -B "$root/tests/fault/kill_storm.py" --bin "$build" "$@"
