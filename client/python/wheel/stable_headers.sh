#!/usr/bin/env bash
# Unpacks the headers of Python 3.13 out of Debian 13's libpython3.13-dev, once. Debian 12 has no
# Python with the stable ABI that nanobind needs, that of 3.12; its compiler takes these headers.
# Comes from: the archive that this machine's own apt uses, asked for the suite of Debian 13.
# Goes to: build/tools/python3.13/include (ballast_python_stable of client/python/CMakeLists.txt).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
readonly FOLDER=$PWD/build/tools/python3.13 PACKAGE=libpython3.13-dev SUITE=trixie
[[ -f $FOLDER/include/python3.13/Python.h ]] && exit 0

fail() {
  echo "stable_headers: $*" >&2
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

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{parts,state/lists/partial,archives/partial,whole}
write_sources
apt_get update
(cd "$work" && apt_get download "$PACKAGE")
dpkg-deb -x "$work/$PACKAGE"_*.deb "$work/whole"
mkdir -p "$FOLDER"
rm -rf "$FOLDER/include.part"
mv "$work/whole/usr/include" "$FOLDER/include.part"
mv "$FOLDER/include.part" "$FOLDER/include"
echo "stable_headers: the headers of Python 3.13 are in build/tools/python3.13"
