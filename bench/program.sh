# Runs a benchmark program of build/release in place of the script that sources this file.
# Comes from: the scripts of this folder. Thread safety: none needed.

# run_program PROGRAM TARGETS ARGUMENTS...: TARGETS names the targets to build, as one word.
run_program() {
  local root binary=$1 targets=$2
  shift 2
  root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
  binary="$root/build/release/bin/$binary"
  if [[ ! -x "$binary" ]]; then
    echo "$binary is missing: cmake --build build/release --target $targets" >&2
    exit 1
  fi
  exec "$binary" "$@"
}
