#!/usr/bin/env bash
# Sets the tree up and runs every test: ctest (C++, style, rooms), then pytest (Python, end to end).
# Both always run; the exit code is not 0 when either failed. Called by .ci/run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'TEXT'
usage: scripts/test.sh [--quick] [--label L] [--help]

  --quick      leaves out tests labelled (ctest) or marked (pytest) slow, bench or e2e
  --label L    only ctest tests with label L; L = python runs only pytest
  --help       this text
TEXT
}

fail() {
  echo "test: $*" >&2
  exit 2
}

run_ctest() {
  local arguments=(--test-dir build/release --output-on-failure --no-tests=error
    --parallel "$(nproc)")
  [[ -n $label ]] && arguments+=(--label-regex "^$label\$")
  ((quick)) && arguments+=(--label-exclude '^(slow|bench|e2e)$')
  ctest "${arguments[@]}" </dev/null
}

# The last lines of what each failed test of ctest wrote, which are where a reader looks first.
last_words() {
  awk '
    function tell(i) {
      for (i = lines > 8 ? lines - 8 : 0; i < lines; i++) print "    " said[i]
      lines = 0
    }
    /^ *(Start +[0-9]+:|[0-9]+\/[0-9]+ Test +#)/ || /^[0-9]+% tests passed/ { tell(); failed = 0 }
    failed && NF { said[lines++] = $0 }
    / Test +#.*\*\*\*/ && !/\*\*\*(Skipped|Not Run)/ { failed = 1; print $3, $4 }
  ' "$1"
}

run_pytest() {
  local arguments=(tests/python tests/e2e -ra --timeout=600)
  ((quick)) && arguments+=(-m 'not slow and not bench and not e2e')
  # torch chooses its kernels by CPU; the bit-for-bit comparisons are defined for this choice.
  ATEN_CPU_CAPABILITY=avx2 PATH="$PWD/build/release/bin:$PATH" \
    .venv/bin/python -m pytest "${arguments[@]}" </dev/null
}

quick=0
label=
while (($#)); do
  case $1 in
    --quick) quick=1 ;;
    --label)
      [[ -n ${2:-} ]] || fail "--label needs a value"
      label=$2
      shift
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *) fail "unknown argument '$1' (see --help)" ;;
  esac
  shift
done

./scripts/setup.sh
mkdir -p build/logs
ctest_code=0
pytest_code=0
ctest_ran=0
pytest_ran=0

if [[ $label != python ]]; then
  ctest_ran=1
  echo "== ctest =="
  run_ctest 2>&1 | tee build/logs/ctest.log || ctest_code=$?
fi
if [[ (-z $label || $label == python) && -d tests/python &&
  -n $(find tests/python -name 'test_*.py') ]]; then
  pytest_ran=1
  echo "== pytest =="
  run_pytest 2>&1 | tee build/logs/pytest.log || pytest_code=$?
fi
((ctest_ran || pytest_ran)) || fail "no test matches"

echo "== summary =="
if ((ctest_ran)); then
  grep -E 'tests passed|No tests were found' build/logs/ctest.log || true
  sed -n '/^The following tests FAILED:/,/^Errors while/p' build/logs/ctest.log
  last_words build/logs/ctest.log
  echo "ctest: exit code $ctest_code"
fi
if ((pytest_ran)); then
  tail -n 1 build/logs/pytest.log
  echo "pytest: exit code $pytest_code"
fi
((ctest_code == 0 && pytest_code == 0))
