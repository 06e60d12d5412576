#!/usr/bin/env bash
# Makes the packages out of build/release: the wheels for trainers, .deb and image of the servers.
# Comes from: scripts/setup.sh, which has built the tree. Goes to: build/packages, or --out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'TEXT'
usage: scripts/package.sh [--out DIR] [wheel] [deb] [image]

Builds the named packages, or all three, from the programs in build/release (scripts/setup.sh):

  wheel   ballast-VERSION-cp311-cp311-manylinux_*.whl and -cp312-abi3-: the Python client for
          Python 3.11, and for 3.12 and newer, its libraries inside
  deb     ballast-server_VERSION_ARCH.deb: ballastd, ballastctl, the systemd unit
  image   ballast-VERSION.oci: an OCI layout with the image ballast:VERSION, and its SBOM

  --out DIR   where they go; build/packages by default
  --help      this text

The version is that of client/python/ballast/version.py. Files in packages get the time of the last
commit, or SOURCE_DATE_EPOCH, so that the same build gives the same bytes.
TEXT
}

fail() {
  echo "package: $*" >&2
  exit 2
}

build_script() {
  case $1 in
    wheel) echo client/python/wheel/build.sh ;;
    deb) echo deploy/debian/build.sh ;;
    image) echo deploy/container/build.sh ;;
  esac
}

main() {
  local out=build/packages kinds=()
  while (($#)); do
    case $1 in
      --out)
        [[ -n ${2:-} ]] || fail "--out needs a directory"
        out=$2
        shift
        ;;
      -h | --help)
        usage
        exit 0
        ;;
      wheel | deb | image) kinds+=("$1") ;;
      *) fail "unknown argument '$1' (see --help)" ;;
    esac
    shift
  done
  ((${#kinds[@]})) || kinds=(wheel deb image)
  mkdir -p "$out"
  out=$(realpath "$out")
  local kind
  for kind in "${kinds[@]}"; do
    "$(build_script "$kind")" "$out"
  done
}

main "$@"
