#!/usr/bin/env bash
# stable_modules.sh [TARGET...]: builds the extension modules for the stable ABI of Python 3.12 in
# build/release, and further targets. The headers are unpacked out of Debian 13's libpython3.13-dev,
# once: Debian 12 has no Python with that ABI, but its compiler takes these headers.
# Comes from: the archive that this machine's own apt uses, asked for the suite of Debian 13.
# Goes to: build/release/client/python/stable (ballast_python_stable of
# client/python/CMakeLists.txt), for the wheel and for scripts/gpu_kit.sh, which may run at the same
# time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
readonly FOLDER=$PWD/build/tools/python3.13 PACKAGE=libpython3.13-dev SUITE=trixie

fail() {
  echo "stable_modules: $*" >&2
  exit 1
}

# apt's own sources with another suite. Those of updates and security have suites of other names.
write_sources() {
  local own
  own=$(. /etc/os-release && echo "$VERSION_CODENAME")
  if [[ -s /etc/apt/sources.list.d/debian.sources ]]; then
    # One paragraph a source; of its suites only the release itself is kept.
    sed "/^Suites:/ { /[: ]$own\( \|$\)/! s/.*/Enabled: no/; s/^Suites:.*/Suites: $SUITE/ }" \
      /etc/apt/sources.list.d/debian.sources >"$work/parts/debian.sources"
  else
    sed -n "s/^\(deb .*\) $own \(.*\)/\1 $SUITE \2/p" /etc/apt/sources.list \
      >"$work/parts/debian.list"
  fi
}

apt_get() {
  apt-get -q -o Dir::State="$work/state" -o Dir::State::status=/dev/null -o Dir::Cache="$work" \
    -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$work/parts" \
    -o APT::Sandbox::User=root -o Acquire::Retries=3 "$@" >>"$work/log" 2>&1 ||
    fail "apt-get $1 of $SUITE's $PACKAGE failed:" "$(tail -n 5 "$work/log")"
}

unpack_headers() {
  mkdir -p "$work"/{parts,state/lists/partial,archives/partial,whole}
  write_sources
  apt_get update
  (cd "$work" && apt_get download "$PACKAGE")
  dpkg-deb -x "$work/$PACKAGE"_*.deb "$work/whole"
  mkdir -p "$FOLDER"
  rm -rf "$FOLDER/include.part"
  mv "$work/whole/usr/include" "$FOLDER/include.part"
  mv "$FOLDER/include.part" "$FOLDER/include"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
exec 9>build/.stable_modules.lock
flock 9
[[ -f $FOLDER/include/python3.13/Python.h ]] || unpack_headers
cmake --build build/release --target ballast_python_stable "$@" 9>&-
