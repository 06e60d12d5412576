#!/usr/bin/env bash
# Brings a Debian 12 machine to a built tree: system packages, .venv, release build, Python package.
# Safe to run again at any time: each step looks first whether its work is already done.
# Goes to: scripts/quickstart.sh (--for run) and scripts/test.sh (--for test), which begin with it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Packages that compile and run the product. ccache is here, and not with the tests: a tree
# configured without it would be compiled again when it comes.
readonly PACKAGES=(
  build-essential cmake ninja-build ccache
  libgrpc-dev libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev
  librocksdb-dev libaio-dev prometheus-cpp-dev libcivetweb-dev zlib1g-dev libssl-dev
  libyaml-cpp-dev nlohmann-json3-dev ca-certificates python3 python3-dev python3-venv)
# Packages that the tests compile and run with in addition.
readonly TEST_PACKAGES=(
  clang-14 clang-format-14 libclang-rt-14-dev libgtest-dev libgmock-dev
  openssl fio systemd systemd-container zsh fish chromium curl openssh-client bubblewrap lintian
  mmdebstrap umoci yamllint)
# The quickstart's programs.
readonly RUN_TARGETS=(ballastd ballastctl ballast_python)
# Debian's own interpreter: another python3 earlier on PATH may lack headers or the right version.
readonly PYTHON=/usr/bin/python3
readonly LOGS=build/logs
readonly TOOLS=build/tools

usage() {
  cat <<'TEXT'
usage: scripts/setup.sh [--for run|test] [--no-build] [--jobs N] [--help]

Installs missing Debian packages (as root or with sudo), creates .venv from requirements.txt and
requirements-test.txt, builds the release preset into build/release, and makes the Python package
importable from .venv.

  --for run    only what runs: ballastd, ballastctl and the Python package, without what tests need
  --for test   everything: tests, benchmarks and the tools that they run (default)
  --no-build   everything except compiling
  --jobs N     compile jobs (default: processors, at most one per 2 GiB of memory)
  --help       this text

A fresh build/release compiles a room's files in batches, which takes a third of the time; for one
file at a time: cmake --preset release -DBALLAST_COLD_BUILD=OFF. What is configured stays so.
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

# One job per processor, within the limits of memory: a gRPC source file needs about 1 GiB.
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

# remaining SECONDS: such as "about 3 min left".
remaining() {
  local minutes=$((($1 + 30) / 60))
  if ((minutes)); then echo "about $minutes min left"; else echo "less than a minute left"; fi
}

# progress_of LOG STARTED USUAL_S: seconds so far, how much is done, how long it will still take.
# Ninja counts its steps; of everything else only the usual time is known.
progress_of() {
  local passed=$((SECONDS - $2)) last steps
  last=$(tail -c 4096 "$1" | tr -d '\r\033' | tail -n 1 | cut -c 1-60)
  steps=$(tail -c 4096 "$1" | grep -aoE '^\[[0-9]+/[0-9]+\]' | tail -n 1 | tr -d '[]') || true
  if [[ $steps == [1-9]* ]]; then
    local finished=${steps%/*} all=${steps#*/}
    local left=$((passed * (all - finished) / finished))
    echo "${passed} s, $finished of $all steps, $(remaining "$left")"
  elif ((passed < $3)); then
    echo "${passed} s, $(remaining $(($3 - passed))): $last"
  else
    echo "${passed} s: $last"
  fi
}

# run_logged NAME USUAL_S COMMAND...: output to build/logs/NAME.log. While the command runs, a
# terminal shows its progress; anything else gets a line every half minute, the first after 10 s. On
# failure the end of the log is printed and the script ends.
run_logged() {
  local name=$1 usual_s=$2
  shift 2
  "$@" >"$LOGS/$name.log" 2>&1 </dev/null &
  trap 'kill "$!" 2>/dev/null' INT TERM
  await "$name" "$usual_s" "$!" "$SECONDS" "$*"
  trap - INT TERM
}

# await NAME USUAL_S PID STARTED COMMAND: of a command that runs already, a child of this shell.
await() {
  local name=$1 usual_s=$2 pid=$3 started=$4 log=$LOGS/$1.log status=0 next=$(($4 + 10))
  while kill -0 "$pid" 2>/dev/null; do
    if [[ -t 1 ]]; then
      printf '\r\033[K      %s' "$(progress_of "$log" "$started" "$usual_s")"
    elif ((SECONDS >= next)); then
      echo "      $name: $(progress_of "$log" "$started" "$usual_s")"
      next=$((SECONDS + 30))
    fi
    sleep 0.5
  done
  wait "$pid" || status=$?
  [[ -t 1 ]] && printf '\r\033[K'
  if ((status != 0)); then
    echo "setup: '$5' ended with code $status; the end of $log:" >&2
    tail -n 60 "$log" >&2
    exit "$status"
  fi
}

install_system_packages() {
  local wanted=("${PACKAGES[@]}") missing=() package
  [[ $1 == run ]] || wanted+=("${TEST_PACKAGES[@]}")
  for package in "${wanted[@]}"; do
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
      missing+=("$package")
  done
  if ((${#missing[@]} == 0)); then
    echo "[1/4] system packages: all ${#wanted[@]} present"
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
  run_logged apt-update 15 "${as_root[@]}" apt-get update
  run_logged apt-install 90 "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
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
  (run_logged tools 20 fetch_tools "${missing[@]}") ||
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
  if (run_logged cuda 30 .venv/bin/python -m pip install --disable-pip-version-check --no-input \
    --no-deps --target "$root" -r requirements-cuda.txt); then
    echo "$want" >"$root/.requirements"
  else
    echo "[2/4] Python packages: no CUDA compiler; the test cuda_part_is_built will fail" >&2
  fi
}

# The interpreter, and what configuring the build needs of it.
create_venv() {
  if ! .venv/bin/python -c 'import pip' 2>/dev/null ||
    [[ $(.venv/bin/python --version) != $("$PYTHON" --version) ]]; then
    echo "[2/4] Python packages: creating .venv"
    run_logged venv 10 "$PYTHON" -m venv --clear .venv
  fi
  .venv/bin/python -c 'import nanobind' 2>/dev/null ||
    run_logged pip-nanobind 5 pip_install "$(grep '^nanobind==' requirements.txt)"
}

pip_install() {
  .venv/bin/python -m pip install --disable-pip-version-check --no-input "$@"
}

# fingerprint FILE: of what .venv must have for it.
fingerprint() {
  (cat "$@" && "$PYTHON" --version) | sha256sum | cut -d ' ' -f 1
}

# Starts to install the missing packages in .venv, while the compiler works: pip mostly waits for
# the network and the disk. Sets pip_pid, pip_started and pip_stamp; await_python_packages ends it.
start_python_packages() {
  local files=(requirements.txt) file arguments=()
  [[ $1 == run ]] || files+=(requirements-test.txt)
  pip_pid='' pip_stamp=.venv/.$1.sha256 pip_want=$(fingerprint "${files[@]}")
  if [[ -f $pip_stamp && $(<"$pip_stamp") == "$pip_want" ]]; then
    echo "[2/4] Python packages: .venv is up to date"
    return
  fi
  echo "[2/4] Python packages: installing ${files[*]} into .venv, beside the build"
  for file in "${files[@]}"; do arguments+=(-r "$file"); done
  pip_install "${arguments[@]}" >"$LOGS/pip.log" 2>&1 </dev/null &
  pip_pid=$! pip_started=$SECONDS
  trap 'kill "$pip_pid" 2>/dev/null' EXIT
}

await_python_packages() {
  [[ -n $pip_pid ]] || return 0
  ! kill -0 "$pip_pid" 2>/dev/null || echo "[2/4] Python packages: not all there yet"
  await pip 90 "$pip_pid" "$pip_started" "pip install"
  trap - EXIT
  echo "$pip_want" >"$pip_stamp"
}

# cached NAME: a value of the build's cache.
cached() {
  sed -n "s/^$1:[A-Z]*=//p" build/release/CMakeCache.txt
}

build_release() {
  local purpose=$1 jobs=$2 dir=build/release options=() targets=()
  if [[ ! -f $dir/build.ninja ]]; then
    # docs/decisions/051-cold-builds.md
    options=(-DBALLAST_COLD_BUILD=ON -DBUILD_TESTING=ON)
    [[ $purpose == test ]] || options[1]=-DBUILD_TESTING=OFF
  elif [[ $purpose == test && $(cached BUILD_TESTING) == OFF ]]; then
    options=(-DBUILD_TESTING=ON)
  fi
  if ((${#options[@]})) || [[ CMakePresets.json -nt $dir/CMakeCache.txt ]]; then
    echo "[3/4] configuring the release preset"
    run_logged configure 10 cmake --preset release "${options[@]}"
    # CMake leaves the cache file alone when nothing in it changed.
    touch "$dir/CMakeCache.txt"
  fi
  [[ $purpose == test ]] || targets=(--target "${RUN_TARGETS[@]}")
  echo "[3/4] building with $jobs jobs into $dir (minutes the first time; log: $LOGS/build.log)"
  NINJA_STATUS='[%f/%t] ' run_logged build 300 \
    cmake --build --preset release --parallel "$jobs" "${targets[@]}"
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
  run_logged pip-ballast 5 pip_install --no-build-isolation --no-deps \
    --config-settings=wheel.cmake=false -e client/python
  echo "$want" >"$stamp"
}

# The hook checks subjects of commits. It is for those who commit, so it is never switched on here.
offer_commit_hook() {
  [[ -e .git && -z $(git config core.hooksPath 2>/dev/null) ]] || return 0
  echo "      to check commit subjects as you commit: git config core.hooksPath .githooks"
}

main() {
  local build=1 jobs='' purpose=test
  while (($#)); do
    case $1 in
      --no-build) build=0 ;;
      --for)
        [[ ${2:-} == run || ${2:-} == test ]] || fail "--for needs 'run' or 'test'"
        purpose=$2
        shift
        ;;
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
  install_system_packages "$purpose"
  [[ $purpose == run ]] || unpack_tools
  create_venv
  [[ $purpose == run ]] || unpack_cuda
  start_python_packages "$purpose"
  if ((build)); then
    build_release "$purpose" "${jobs:-$(default_jobs)}"
  else
    echo "[3/4] build: skipped (--no-build)"
  fi
  await_python_packages
  install_python_package
  offer_commit_hook
}

main "$@"
