#!/usr/bin/env bash
# run.sh [--minutes N] [--out DIR] [--work DIR] [--cpu] [--stage NAME]...
# Starts the GPU kit: checks this host for its requirements, then runs its stages.
# Comes from: a user, in an unpacked archive of scripts/gpu_kit.sh. Goes to: python -m gpu_kit.
# A missing requirement is said in one line, with exit code 2. BALLAST_PYTHON names the Python to
# take.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# For the servers' data; a rehearsal has small models.
readonly WORK_MIB=8192 REHEARSAL_MIB=1024 OUT_MIB=64

fail() {
  echo "run.sh: $*" >&2
  exit 2
}

note() {
  echo "run.sh: $*" >&2
}

# arguments ARGUMENT...: those that this file needs to know; the runner judges all of them.
arguments() {
  cpu=0 out=gpu-report work=${TMPDIR:-/tmp}
  while (($#)); do
    case $1 in
      --cpu) cpu=1 ;;
      --out) out=${2:-$out} ;;
      --out=*) out=${1#*=} ;;
      --work) work=${2:-$work} ;;
      --work=*) work=${1#*=} ;;
    esac
    shift
  done
}

check_glibc() {
  local version
  version=$(getconf GNU_LIBC_VERSION 2>/dev/null) || fail "this system has no glibc; 2.36 is needed"
  version=${version#glibc }
  at_least "$version" 2.36 || fail "glibc is $version; 2.36 or newer is needed"
}

# at_least VERSION LEAST: both are numbers with points.
at_least() {
  [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]
}

# The first Python of 3.11 or newer with torch, or else the first of 3.11 or newer.
choose_python() {
  local name found=
  for name in ${BALLAST_PYTHON:-python3 python3.13 python3.12 python3.11}; do
    "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
    found=${found:-$name}
    "$name" -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("torch"))' || continue
    export BALLAST_PYTHON=$name
    return
  done
  [[ $found ]] || fail "no ${BALLAST_PYTHON:-python3} of version 3.11 or newer on PATH"
  fail "$found has no torch; install 2.6 or newer, or name another Python with BALLAST_PYTHON"
}

check_torch() {
  local said
  said=$("$BALLAST_PYTHON" - "$cpu" 2>&1 <<'PYTHON'
import re, resource, sys
import torch
version = tuple(map(int, re.match(r"(\d+)\.(\d+)", torch.__version__).groups()))
if version < (2, 6):
    sys.exit(f"torch is {torch.__version__}; 2.6 or newer is needed")
if sys.argv[1] == "0":
    if not torch.version.cuda:
        sys.exit(f"torch {torch.__version__} is built without CUDA; install one with CUDA, or "
                 "rehearse with --cpu")
    if not torch.cuda.is_available():
        sys.exit(f"torch {torch.__version__} sees no GPU, though nvidia-smi does; does "
                 "CUDA_VISIBLE_DEVICES hide it?")
    if torch.cuda.get_device_capability(0) < (8, 0):
        sys.exit(f"GPU 0 is a {torch.cuda.get_device_name(0)}; architecture 8.0 or newer is needed")
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    try:
        torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        sys.exit(f"256 MiB of host memory cannot be pinned (ulimit -l: {limit} bytes): "
                 + str(error).splitlines()[0])
PYTHON
  ) || fail "$(tail -n 1 <<<"$said")"
}

check_driver() {
  local said version
  command -v nvidia-smi >/dev/null ||
    fail "no nvidia-smi on PATH, so no NVIDIA driver; rehearse without a GPU with --cpu"
  said=$(nvidia-smi 2>&1) || fail "nvidia-smi ends with an error: $(head -n 1 <<<"$said")"
  version=$(sed -n 's/.*CUDA[A-Z ]* Version: *\([0-9][0-9.]*\).*/\1/p' <<<"$said" | head -n 1)
  [[ $version ]] || fail "nvidia-smi names no CUDA version; a driver for CUDA 13.0 is needed"
  at_least "$version" 13.0 ||
    fail "the NVIDIA driver is for CUDA $version; one for 13.0 or newer is needed (580 or newer)"
}

# check_space FOLDER MIB WHAT: the folder need not be there yet.
check_space() {
  local folder=$1 free
  while [[ ! -e $folder ]]; do folder=$(dirname "$folder"); done
  [[ -d $folder && -w $folder ]] || fail "$3 $1 cannot be written (another one: --${3%% *})"
  free=$(df -Pm "$folder" | { read -r && read -r _ _ _ free _ && echo "$free"; })
  ((free >= $2)) ||
    fail "$3 $1 has $free MiB of free space; $2 MiB are needed (another one: --${3%% *})"
}

check_client() {
  local said
  said=$("$BALLAST_PYTHON" -c 'import ballast._core' 2>&1) ||
    fail "$BALLAST_PYTHON does not load the client: $(tail -n 1 <<<"$said")"
}

# Memory that the driver pins is not counted against `ulimit -l`: check_torch tries it. The servers
# work without locked memory, too.
note_what_is_missing() {
  local limit tool
  PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
  for tool in nvcc compute-sanitizer; do
    command -v "$tool" >/dev/null || note "no $tool on PATH; what needs it is left out"
  done
  limit=$(ulimit -l)
  [[ $limit == unlimited ]] || ((limit >= 65536)) ||
    note "ulimit -l is $limit KiB; pinned memory is not bound by it, the servers lock less"
}

main() {
  arguments "$@"
  check_glibc
  choose_python
  ((cpu)) || check_driver
  source "$root/environment.sh"
  check_torch
  check_client
  check_space "$out" "$OUT_MIB" "out folder"
  check_space "$work" "$( ((cpu)) && echo "$REHEARSAL_MIB" || echo "$WORK_MIB")" "work folder"
  note_what_is_missing
  export PYTHONPATH=$root:$PYTHONPATH PYTHONDONTWRITEBYTECODE=1
  export BALLAST_KIT_BIN=$root/bin BALLAST_KIT_LIB=$root/lib
  export BALLAST_KIT_STANDIN=$root/lib/libcuda_standin.so
  BALLAST_KIT_VERSION=$(tr '\n' ' ' <"$root/VERSION")
  export BALLAST_KIT_VERSION=${BALLAST_KIT_VERSION% }
  [[ -d $root/wheels ]] && export BALLAST_KIT_WHEELS=$root/wheels
  exec "$BALLAST_PYTHON" -m gpu_kit "$@"
}

main "$@"
