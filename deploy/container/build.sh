#!/usr/bin/env bash
# build.sh OUT: the image of the servers without docker, from the programs in build/release.
# Comes from: scripts/package.sh. Goes to: OUT/ballast-VERSION.oci, an OCI layout with the image
# `VERSION`, and OUT/ballast-VERSION.spdx.json, the list of the image's parts. The last line printed
# is the image's digest, which is the same for the same programs, packages and commit.
#
# mmdebstrap unpacks the packages of the libraries from the archives that this machine uses, without
# running anything of them; their names are read from Containerfile, so both images have the same.
# No shell is among them. umoci makes the one layer into an image.
set -euo pipefail
out=$1
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source scripts/package_facts.sh

readonly HERE=$PWD/deploy/container
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The first process of mmdebstrap's own namespace reads files here.
chmod 755 "$work"
layout=$out/ballast-$BALLAST_VERSION.oci

# The packages that the last stage of Containerfile installs, joined by commas.
runtime_packages() {
  sed -n '/^FROM debian:12-slim$/,$p' "$HERE/Containerfile" | tr -d '\\\n' |
    sed 's/.*--no-install-recommends \([^&]*\)&&.*/\1/' | xargs | tr ' ' ,
}

# Where this machine gets the packages of its own release, without those of other vendors.
sources() {
  local file found=()
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
    if [[ -s $file ]]; then found+=("$file"); fi
  done
  ((${#found[@]})) || { echo "image: no sources of Debian's packages in /etc/apt" >&2; exit 1; }
  printf '%s\n' "${found[@]}"
}

# The one layer, as a tar archive: sorted, with the time of SOURCE_DATE_EPOCH.
make_layer() {
  local release from
  release=$(. /etc/os-release && echo "$VERSION_CODENAME")
  mapfile -t from < <(sources)
  cmake --install "$BUILD" --component Unspecified --prefix "$work/usr" --strip >/dev/null
  mmdebstrap --quiet --variant=extract --include="$(runtime_packages)" \
    --aptopt='Acquire::Retries "3"' --skip=cleanup,output/dev \
    --extract-hook="$HERE/finish_root.sh \"\$1\" '$work' '$BALLAST_VERSION'" \
    "$release" "$work/layer.tar" "${from[@]}"
  # mmdebstrap leaves /dev out whole; a container engine mounts its own there.
  install -d -m 755 "$work/more/dev"
  tar --append --file "$work/layer.tar" --mtime "@$SOURCE_DATE_EPOCH" --numeric-owner \
    --owner 0 --group 0 -C "$work/more" ./dev
}

make_image() {
  rm -rf "$layout"
  local image=$layout:$BALLAST_VERSION created
  created=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
  umoci init --layout "$layout"
  umoci new --image "$image"
  umoci raw add-layer --image "$image" --history.created "$created" \
    --history.created_by "deploy/container/build.sh" "$work/layer.tar"
  umoci config --image "$image" --created "$created" --history.created "$created" \
    --history.created_by "deploy/container/build.sh" \
    --architecture "$(dpkg --print-architecture)" --os linux \
    --config.user 65532:65532 --config.entrypoint /usr/bin/ballastd \
    --config.exposedports 7000/tcp --config.exposedports 9000/tcp --config.stopsignal SIGTERM \
    --config.label "org.opencontainers.image.title=Ballast" \
    --config.label "org.opencontainers.image.description=$DESCRIPTION" \
    --config.label "org.opencontainers.image.licenses=Apache-2.0" \
    --config.label "org.opencontainers.image.version=$BALLAST_VERSION" \
    --config.label "org.opencontainers.image.revision=$BALLAST_REVISION"
  umoci gc --layout "$layout"
}

readonly DESCRIPTION="Keeps and steps the optimizer state of training jobs"
make_layer
make_image
cp "$work/sbom.json" "$out/ballast-$BALLAST_VERSION.spdx.json"
sed 's/.*"digest": *"\([^"]*\)".*/\1/' "$layout/index.json"
