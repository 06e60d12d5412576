#!/usr/bin/env bash
# Runs C++ tests under sanitizers, by hand: CI has no time for these builds.
#   ./scripts/sanitize.sh asan [TARGET...]   memory errors, undefined behaviour, leaks
#   ./scripts/sanitize.sh tsan [TARGET...]   data races on our own threads
# TARGET: a test program, such as net_test; several are built one after the other and run alone.
# Without a target: for asan the tests of input from strangers and other servers, for tsan those
# of rooms with threads of their own. `cmake --build --preset asan && ctest --preset asan` is the
# whole tree, and takes hours on two cores.
#   JOBS=N       compilers at once, 2 unless said otherwise; each takes up to 2 GB
#   GTEST_FILTER as googletest reads it
# The build is build/asan or build/tsan and is kept; the options of the sanitizers are those of the
# test preset in CMakePresets.json. Prints a line for each program, and the end of its output where
# it failed; whole outputs are in build/<preset>/sanitize. Exit status 0: all of them passed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
}

preset=${1:-}
case $preset in
  asan)
    targets=(base_test text_test bytes_test threads_test faults_test system_test
             security_test net_test tls_test wire_scan_test frame_codec_test
             tls_channel_test quota_test rendezvous_test config_test snapshot_test exchange_test
             durability_test admin_test gate_test gate_services_test other_tenant_test
             services_test rpc_test stream_test peer_test
             trainer_stream_test tenants_test home_test job_directory_test server_parts_test
             host_test
             collective_conformance_test nccl_test reconnect_test wire_abuse_test
             fuzz_targets_test)
    ;;
  tsan)
    targets=(base_test bytes_test threads_test faults_test system_test io_engine_test net_test
             tls_test quota_test gate_test metrics_test
             collective_conformance_test nccl_test session_core_test round_engine_test
             recovery_lanes_test job_directory_test tenants_test)
    ;;
  -h | --help)
    usage
    exit 0
    ;;
  *)
    usage >&2
    exit 2
    ;;
esac
shift
if [ $# -gt 0 ]; then targets=("$@"); fi

# The test preset's environment, a NAME=value for each line.
mapfile -t options < <(python3 - "$preset" <<'PYTHON'
import json
import os
import sys

presets = json.load(open("CMakePresets.json", encoding="utf-8"))["testPresets"]
[preset] = [preset for preset in presets if preset["name"] == sys.argv[1]]
for name, value in preset["environment"].items():
    print(f"{name}={value.replace('${sourceDir}', os.getcwd())}")
PYTHON
)

logs=$PWD/build/$preset/sanitize
mkdir -p "$logs"
# Batches of files (docs/decisions/051-cold-builds.md): the build is whole and seldom.
cmake --preset "$preset" -DBALLAST_COLD_BUILD=ON > "$logs/configure.log"
failed=0
for target in "${targets[@]}"; do
  log=$logs/$target.log
  begin=$SECONDS
  build=(cmake --build --preset "$preset" --parallel "${JOBS:-2}" --target "$target")
  if ! "${build[@]}" > "$log" 2>&1; then
    printf 'FAILED %s: it does not build; %s\n' "$target" "$log"
    tail -n 20 "$log"
    failed=1
    continue
  fi
  built=$SECONDS
  if (cd "build/$preset" && env "${options[@]}" "tests/$target" > "$log" 2>&1); then
    tests=$(sed -n 's/^\[  PASSED  \] \([0-9]* tests\{0,1\}\)\.$/\1/p' "$log" | tail -n 1)
    printf 'ok     %s: %s, built in %d s, ran for %d s\n' \
      "$target" "${tests:-no line of googletest}" $((built - begin)) $((SECONDS - built))
  else
    printf 'FAILED %s: %s\n' "$target" "$log"
    grep -m 1 -A 40 -E 'ERROR: |WARNING: ThreadSanitizer|runtime error:' "$log" || tail -n 40 "$log"
    failed=1
  fi
done
exit $failed
