#!/usr/bin/env bash
# Brings a Debian 12 machine to a built tree: system packages, .venv, release build, Python package.
# Safe to run again at any time: each step looks first whether its work is already done.
# Goes to: scripts/quickstart.sh and scripts/test.sh, which both begin with it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly PACKAGES=(
  build-essential cmake ninja-build ccache clang-14 clang-format-14 libclang-rt-14-dev
  libgrpc-dev libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev
  librocksdb-dev libaio-dev prometheus-cpp-dev libcivetweb-dev zlib1g-dev libssl-dev openssl
  libgtest-dev libgmock-dev libbenchmark-dev libyaml-cpp-dev nlohmann-json3-dev
  fio systemd zsh fish chromium curl openssh-client ca-certificates python3 python3-dev
  python3-venv bubblewrap lintian mmdebstrap umoci
  yamllint)
# Debian's own interpreter: another python3 earlier on PATH may lack headers or the right version.
readonly PYTHON=/usr/bin/python3
readonly LOGS=build/logs
readonly TOOLS=build/tools

usage() {
  cat <<'TEXT'
usage: scripts/setup.sh [--no-build] [--jobs N] [--help]

Installs missing Debian packages (as root or with sudo), creates .venv from requirements.txt,
builds the release preset into build/release, and makes the Python package importable from .venv.

  --no-build   everything except compiling
  --jobs N     compile jobs (default: processors, at most one per 2 GiB of memory)
  --help       this text

Each step writes its output to build/logs/; the end of it is shown when the step fails.
TEXT
}

fail() {
  echo "setup: $*" >&2
  exit 1
}

# Processors this process may use: affinity, and the quota of a container where there is one.
processors() {
  local count quota period
  count=$(nproc)
  if [[ -r /sys/fs/cgroup/cpu.max ]]; then
    read -r quota period </sys/fs/cgroup/cpu.max
    if [[ $quota != max ]]; then
      local limit=$(((quota + period - 1) / period))
      ((limit < count)) && count=$limit
    fi
  fi
  echo "$count"
}

# One job per processor, but no more than memory carries: a gRPC source file needs about 1 GiB.
default_jobs() {
  local jobs by_memory limit
  jobs=$(processors)
  by_memory=$(($(awk '/^MemTotal:/ {print $2}' /proc/meminfo) / (2 * 1024 * 1024)))
  if [[ -r /sys/fs/cgroup/memory.max ]]; then
    limit=$(</sys/fs/cgroup/memory.max)
    if [[ $limit != max ]] && ((limit >> 31 < by_memory)); then
      by_memory=$((limit >> 31))
    fi
  fi
  ((by_memory < jobs)) && jobs=$by_memory
  ((jobs < 1)) && jobs=1
  echo "$jobs"
}

# run_logged NAME COMMAND...: output to build/logs/NAME.log; on a terminal the last line is shown
# while the command runs; on failure the end of the log is printed and the script ends.
run_logged() {
  local name=$1
  shift
  local log=$LOGS/$name.log status=0 started=$SECONDS
  "$@" >"$log" 2>&1 </dev/null &
  local pid=$!
  trap 'kill "$pid" 2>/dev/null' INT TERM
  while [[ -t 1 ]] && kill -0 "$pid" 2>/dev/null; do
    printf '\r\033[K      %3ds  %s' "$((SECONDS - started))" \
      "$(tail -n 1 "$log" | tr -d '\r\033' | cut -c 1-80)"
    sleep 0.5
  done
  wait "$pid" || status=$?
  trap - INT TERM
  [[ -t 1 ]] && printf '\r\033[K'
  if ((status != 0)); then
    echo "setup: '$*' ended with code $status; the end of $log:" >&2
    tail -n 60 "$log" >&2
    exit "$status"
  fi
}

install_system_packages() {
  local missing=() package
  for package in "${PACKAGES[@]}"; do
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
      missing+=("$package")
  done
  if ((${#missing[@]} == 0)); then
    echo "[1/4] system packages: all ${#PACKAGES[@]} present"
    return
  fi
  echo "[1/4] system packages: installing ${missing[*]}"
  local as_root=() by_hand="as root, run: apt-get install --no-install-recommends ${missing[*]}"
  if ((EUID != 0)); then
    command -v sudo >/dev/null || fail "not root, and no sudo here; $by_hand"
    # Asks for a password now, while the terminal is still attached.
    sudo -v || fail "sudo refused; $by_hand"
    as_root=(sudo)
  fi
  run_logged apt-update "${as_root[@]}" apt-get update
  run_logged apt-install "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "${missing[@]}"
}

# Programs that tests run, and their libraries, as PACKAGE:FILE. The packages would start services
# on this machine or replace programs of its own, so only these files are taken out of them.
readonly UNPACKED=(prometheus:promtool prometheus:prometheus kubernetes-client:kubectl
  openssh-server:sshd libwrap0:libwrap.so.0 libnss-wrapper:libnss_wrapper.so)

unpack_tools() {
  local entry missing=()
  for entry in "${UNPACKED[@]}"; do
    [[ -x $TOOLS/${entry#*:} ]] || missing+=("$entry")
  done
  ((${#missing[@]})) || return 0
  echo "[1/4] system packages: unpacking ${missing[*]#*:} into $TOOLS"
  mkdir -p "$TOOLS"
  (run_logged tools fetch_tools "${missing[@]}") ||
    echo "[1/4] system packages: no ${missing[*]#*:}; tests that need them will fail" >&2
}

# fetch_tools PACKAGE:PROGRAM...: each package is downloaded once.
fetch_tools() (
  cd "$TOOLS" || exit 1
  local entry package
  for package in $(printf '%s\n' "${@%%:*}" | sort -u); do
    rm -f "$package"_*.deb
    apt-get download "$package" || exit 1
    for entry in "$@"; do
      [[ $entry == "$package":* ]] && { unpack_program "$package"_*.deb "${entry#*:}" || exit 1; }
    done
    rm "$package"_*.deb
  done
)

# unpack_program DEB FILE: a whole file or none. FILE may be a link of a library: then its target.
unpack_program() {
  local path
  path=$(dpkg-deb --fsys-tarfile "$1" | tar -tv | awk '/^-/ { print $6 }' |
    grep -E "^\./usr/(s?bin|lib/[^/]+)/${2//./\\.}(\.[0-9.]+)?\$" | tail -n 1) || return 1
  dpkg-deb --fsys-tarfile "$1" | tar -xO "$path" >"$2.part" && chmod +x "$2.part" &&
    mv "$2.part" "$2"
}

# The CUDA part compiles without a GPU. A host without a CUDA toolkit gets the compiler alone.
unpack_cuda() {
  local root=$TOOLS/cuda want
  [[ $(uname -m) == x86_64 ]] || return 0
  if command -v nvcc >/dev/null || [[ -x /usr/local/cuda/bin/nvcc ]]; then
    return
  fi
  want=$(sha256sum <requirements-cuda.txt)
  [[ -f $root/.requirements && $(<"$root/.requirements") == "$want" ]] && return
  echo "[2/4] Python packages: unpacking the CUDA compiler into $root (about 110 MB)"
  rm -rf "$root"
  if (run_logged cuda .venv/bin/python -m pip install --disable-pip-version-check --no-input \
    --no-deps --target "$root" -r requirements-cuda.txt); then
    echo "$want" >"$root/.requirements"
  else
    echo "[2/4] Python packages: no CUDA compiler; the test cuda_part_is_built will fail" >&2
  fi
}

create_venv() {
  local stamp=.venv/.requirements.sha256 want
  want=$( (cat requirements.txt && "$PYTHON" --version) | sha256sum | cut -d ' ' -f 1)
  if [[ -x .venv/bin/python && -f $stamp && $(<"$stamp") == "$want" ]]; then
    echo "[2/4] Python packages: .venv is up to date"
    return
  fi
  echo "[2/4] Python packages: installing requirements.txt into .venv"
  if ! .venv/bin/python -c 'import pip' 2>/dev/null ||
    [[ $(.venv/bin/python --version) != $("$PYTHON" --version) ]]; then
    run_logged venv "$PYTHON" -m venv --clear .venv
  fi
  run_logged pip .venv/bin/python -m pip install --disable-pip-version-check --no-input \
    -r requirements.txt
  echo "$want" >"$stamp"
}

build_release() {
  local jobs=$1 dir=build/release
  if [[ ! -f $dir/build.ninja || CMakePresets.json -nt $dir/CMakeCache.txt ]]; then
    echo "[3/4] configuring the release preset"
    run_logged configure cmake --preset release
    # CMake leaves the cache file alone when nothing in it changed.
    touch "$dir/CMakeCache.txt"
  fi
  echo "[3/4] building with $jobs jobs into $dir (minutes the first time; log: $LOGS/build.log)"
  NINJA_STATUS='[%f/%t] ' run_logged build cmake --build --preset release --parallel "$jobs"
}

install_python_package() {
  local project=client/python/pyproject.toml stamp=.venv/.ballast.sha256 want
  if [[ ! -f $project ]]; then
    echo "[4/4] Python package: no $project, skipped"
    return
  fi
  want=$( (cat "$project" client/python/ballast/version.py && pwd) | sha256sum | cut -d ' ' -f 1)
  # A folder that merely has the package's name would be found too, but has no origin.
  local find_package='import importlib.util as u, sys
sys.exit(not getattr(u.find_spec("ballast"), "origin", None))'
  if [[ -f $stamp && $(<"$stamp") == "$want" ]] && .venv/bin/python -c "$find_package"; then
    echo "[4/4] Python package: already importable from .venv"
    return
  fi
  echo "[4/4] Python package: installing client/python into .venv (editable)"
  run_logged pip-ballast .venv/bin/python -m pip install --disable-pip-version-check --no-input \
    --no-build-isolation --no-deps --config-settings=wheel.cmake=false -e client/python
  echo "$want" >"$stamp"
}

# The hook checks subjects of commits. It is for those who commit, so it is never switched on here.
offer_commit_hook() {
  [[ -e .git && -z $(git config core.hooksPath 2>/dev/null) ]] || return 0
  echo "      to check commit subjects as you commit: git config core.hooksPath .githooks"
}

main() {
  local build=1 jobs=
  while (($#)); do
    case $1 in
      --no-build) build=0 ;;
      --jobs)
        [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || fail "--jobs needs a number of at least 1"
        jobs=$2
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
  command -v apt-get >/dev/null && command -v dpkg-query >/dev/null ||
    fail "this script installs Debian 12 packages, and there is no apt-get here;" \
      "install the equivalents of: ${PACKAGES[*]}"
  mkdir -p "$LOGS"
  exec 9>build/.setup.lock
  flock 9
  install_system_packages
  unpack_tools
  create_venv
  unpack_cuda
  if ((build)); then
    build_release "${jobs:-$(default_jobs)}"
  else
    echo "[3/4] build: skipped (--no-build)"
  fi
  install_python_package
  offer_commit_hook
}

main "$@"
