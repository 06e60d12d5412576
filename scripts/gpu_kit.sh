#!/usr/bin/env bash
# Makes the archive that shows Ballast at work on a host with a GPU, or with --bundle the one that
# runs it on other distributions, from the sources through build/release.
# Comes from: scripts/setup.sh, which has made .venv and build/release. Goes to: build/kit, --out.
set -euo pipefail
called_in=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/package_facts.sh

readonly PYTHON=$PWD/.venv/bin/python MIB_MAX=48
# The C++ programs of the kit, and the files that they open by path.
readonly TESTS=(device_conformance_test copy_rate)
readonly CLIENT_PROGRAMS=(ballast-run ballast-report ballast-nvme-tune ballast-zero-to-fp32
  ballast-python)
readonly STANDINS=(lib/libballast_cuda_faulty.so tests/libcuda_standin.so)

usage() {
  cat <<'TEXT'
usage: scripts/gpu_kit.sh [--out FILE] [--bundle] [--with-deepspeed]

Builds one archive for x86-64 Linux with glibc 2.36 or newer, with all libraries but glibc's:
servers, tools and the Python client for Python 3.11 (Debian's) and for 3.12 and newer, and the GPU
kit, which `./run.sh` starts there. No GPU is needed here.

  --out FILE         build/kit/ballast-gpu-kit-VERSION.tar.gz by default
  --bundle           without kit and tests: build/kit/ballast-VERSION-linux-x86_64.tar.gz
  --with-deepspeed   with wheels of DeepSpeed for the stage `peers`, and of what it needs
  --help             this text

What is packed stays in build/kit, in a folder of the archive's name. Files get the time of the last
commit, or SOURCE_DATE_EPOCH. An archive above 48 MiB is refused.
TEXT
}

fail() {
  echo "gpu_kit: $*" >&2
  exit 2
}

build() {
  local targets=(ballastd ballastctl ballast_python ballast_cuda)
  ((bundle)) || targets+=("${TESTS[@]}" ballast_cuda_faulty cuda_standin fake_nccl)
  mkdir -p build/logs
  logged client/python/wheel/stable_modules.sh "${targets[@]}"
}

# logged COMMAND...: its output is shown only when it fails.
logged() {
  "$@" >build/logs/gpu_kit.log 2>&1 || {
    tail -n 30 build/logs/gpu_kit.log >&2
    fail "'${*:1:3} ...' failed; has scripts/setup.sh made .venv and $BUILD, with an nvcc?"
  }
}

# The Python package with the extension modules of both ABIs and the CUDA part.
put_client() {
  local to=$tree/python modules=$BUILD/client/python
  mkdir -p "$to"
  (cd client/python && find ballast -type f ! -name '*.so' ! -path '*__pycache__*' -print0 |
    xargs -0 cp --parents -t "$to")
  install -m 755 -t "$to/ballast" "$modules"/_{core,aio,nccl}.cpython-311-*.so \
    "$modules"/stable/_{core,aio,nccl}.abi3.so "$BUILD/lib/libballast_cuda.so"
}

put_kit() {
  local built=("${STANDINS[@]/#/$BUILD/}")
  install -m 755 -t "$tree/bin" "${TESTS[@]/#/$BUILD/tests/}"
  install -m 755 -D -t "$tree/lib" "$BUILD/lib/libballast_cuda.so" "${built[@]}"
  # Under NCCL's own name, and so in a folder where no library is looked for.
  install -m 755 -D -t "$tree/lib/nccl" "$BUILD/tests/nccl/libnccl.so.2"
  (cd tests && find gpu_kit -type f ! -path '*__pycache__*' ! -name CMakeLists.txt \
    ! -name '*.cc' ! -name run.sh -print0 | xargs -0 cp --parents -t "$tree")
  install -m 755 tests/gpu_kit/run.sh "$tree/run.sh"
}

# Made once for each wheels.txt: DeepSpeed's source becomes a wheel without compiled operators.
put_wheels() {
  local list=tests/gpu_kit/wheels.txt to=build/tools/kit-wheels version
  local pip=("$PYTHON" -m pip --disable-pip-version-check)
  if ! cmp -s "$list" "$to/wheels.txt"; then
    rm -rf "$to"
    logged env DS_BUILD_OPS=0 "${pip[@]}" wheel --no-deps --no-build-isolation -w "$to" \
      "$(grep ^deepspeed== "$list")"
    grep -v ^deepspeed== "$list" >"$to/others.txt"
    for version in 3.11 3.12 3.13; do
      logged "${pip[@]}" download --no-deps --only-binary=:all: --python-version "$version" \
        --platform manylinux2014_x86_64 -d "$to" -r "$to/others.txt"
    done
    cp "$list" "$to"
  fi
  install -m 644 -D -t "$tree/wheels" "$to"/*.whl
}

put_licences() {
  local to=$tree/licences
  mkdir -p "$to"
  cat .venv/lib/python3.11/site-packages/nanobind-*/licenses/LICENSE >"$to/nanobind"
  cp LICENSE "$tree/LICENSE"
  echo "libballast_cuda.so has NVIDIA's CUDA runtime inside, which the licence of the CUDA" \
    "Toolkit lets programs carry." >"$to/cuda-runtime"
  ((bundle)) || cp /usr/share/doc/libgtest-dev/copyright "$to/libgtest-dev"
}

assemble() {
  local program
  tree=build/kit/$name
  rm -rf "$tree"
  mkdir -p "$tree/bin"
  tree=$(realpath "$tree")
  install -m 755 -t "$tree/bin" "$BUILD/bin/ballastd" "$BUILD/bin/ballastctl"
  put_client
  ((bundle)) || put_kit
  ((!deepspeed)) || put_wheels
  for program in "${CLIENT_PROGRAMS[@]}"; do
    install -m 755 deploy/bundle/launch.sh "$tree/bin/$program"
  done
  cp deploy/bundle/environment.sh "$tree"
  "$PYTHON" deploy/bundle/carry.py "$tree"
  put_licences
  printf 'ballast %s\nrevision %s\n' "$BALLAST_VERSION" "$BALLAST_REVISION" >"$tree/VERSION"
}

# Sorted, with one time and owner: the same build gives the same bytes.
pack() {
  mkdir -p "$(dirname "$out")"
  tar --create --sort=name --mtime "@$SOURCE_DATE_EPOCH" --owner 0 --group 0 --numeric-owner \
    -C build/kit "$name" | gzip -n >"$out.part"
  local bytes
  bytes=$(stat -c %s "$out.part")
  ((bytes <= MIB_MAX << 20)) || fail "the archive has $bytes bytes, more than $MIB_MAX MiB"
  mv "$out.part" "$out"
  echo "$out"
}

main() {
  bundle=0 deepspeed=0 out=
  while (($#)); do
    case $1 in
      --out)
        [[ -n ${2:-} ]] || fail "--out needs a file"
        out=$(cd "$called_in" && realpath -m "$2")
        shift
        ;;
      --bundle) bundle=1 ;;
      --with-deepspeed) deepspeed=1 ;;
      -h | --help)
        usage
        exit 0
        ;;
      *) fail "unknown argument '$1' (see --help)" ;;
    esac
    shift
  done
  [[ -x $PYTHON && -f $BUILD/build.ninja ]] || fail "no .venv or no $BUILD; run scripts/setup.sh"
  name=ballast-gpu-kit
  ((bundle)) && name=ballast-$BALLAST_VERSION-linux-x86_64
  [[ $out ]] || out=build/kit/$name$( ((bundle)) || echo "-$BALLAST_VERSION").tar.gz
  # One at a time: all use build/kit.
  mkdir -p build/kit
  exec 9>build/kit/.lock
  flock 9
  build
  assemble
  pack
}

main "$@"
