#!/usr/bin/env bash
# build.sh OUT: the Debian package of the servers and tools, from the programs in build/release.
# Comes from: scripts/package.sh. Goes to: OUT/ballast-server_VERSION_ARCH.deb, whose name is the
# last line printed. Needs no root. dpkg-shlibdeps says on which packages of libraries it depends.
set -euo pipefail
out=$1
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source scripts/package_facts.sh

readonly HERE=$PWD/deploy/debian
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree
arch=$(dpkg --print-architecture)

install_files() {
  cmake --install "$BUILD" --component Unspecified --prefix "$tree/usr" --strip >/dev/null
  local units=deploy/systemd doc=$tree/usr/share/doc/ballast-server
  install -D -m 644 -t "$tree/lib/systemd/system" $units/ballastd.service
  install -D -m 644 $units/ballast.sysusers "$tree/usr/lib/sysusers.d/ballast.conf"
  install -D -m 644 -t "$tree/etc/ballast" $units/ballastd.yaml $units/ballastd.env
  install -D -m 644 -t "$doc" "$HERE/copyright"
  changelog | gzip -9n >"$doc/changelog.gz"
  pages "$doc"
  completion bash bash-completion/completions/ballastctl
  completion zsh zsh/vendor-completions/_ballastctl
  completion fish fish/vendor_completions.d/ballastctl.fish
  manual ballastd 8 "state server of Ballast"
  manual ballastctl 1 "shows and changes what state servers of Ballast do"
  local section5=$tree/usr/share/man/man5
  mkdir -p "$section5"
  python3 -B "$HERE/config_manual.py" "$(LC_ALL=C date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%d)" \
    "$BALLAST_VERSION" <docs/config.md | gzip -9n >"$section5/ballastd.yaml.5.gz"
}

# pages FOLDER: docs/ whole and deploy/README.md, placed as here, so that links between them work.
# They are not compressed: a browser that follows a link reads no .gz.
pages() {
  find docs deploy/README.md -type f -print0 | xargs -0 cp --parents -t "$1"
  find "$1" -type f -exec chmod 644 {} +
}

# manual NAME SECTION SUMMARY
manual() {
  local folder=$tree/usr/share/man/man$2
  mkdir -p "$folder"
  "$HERE/manual.sh" "$BUILD/bin/$1" "$2" "$3" | gzip -9n >"$folder/$1.$2.gz"
}

# completion SHELL FILE: FILE is below /usr/share.
completion() {
  mkdir -p "$(dirname "$tree/usr/share/$2")"
  "$BUILD/bin/ballastctl" completion "$1" >"$tree/usr/share/$2"
}

changelog() {
  printf 'ballast-server (%s) unstable; urgency=medium\n\n' "$BALLAST_VERSION"
  printf '  * Built from revision %s.\n\n' "$BALLAST_REVISION"
  printf ' -- Ballast Authors <%s>  %s\n' "$MAINTAINER" \
    "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")"
}

# The packages of the libraries, with the versions that the programs need.
libraries() {
  mkdir "$work/debian"
  printf 'Source: ballast\n\nPackage: ballast-server\nArchitecture: any\n' >"$work/debian/control"
  (cd "$work" && dpkg-shlibdeps -O tree/usr/bin/*) | sed 's/^shlibs:Depends=//'
}

write_control() {
  mkdir "$tree/DEBIAN"
  sed -e "s/@VERSION@/$BALLAST_VERSION/; s/@ARCH@/$arch/; s/@MAINTAINER@/$MAINTAINER/" \
    -e "s/@KIB@/$(du -sk --apparent-size "$tree" | cut -f 1)/; s/@LIBRARIES@/$(libraries)/" \
    "$HERE/control.in" >"$tree/DEBIAN/control"
  (cd "$tree" && find etc -type f -printf '/%p\n' | sort) >"$tree/DEBIAN/conffiles"
  install -m 755 -t "$tree/DEBIAN" "$HERE"/{postinst,prerm,postrm}
  (cd "$tree" && find usr lib -type f -print0 | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
}

readonly MAINTAINER=ballast@example.org
install_files
write_control
deb=$out/ballast-server_${BALLAST_VERSION}_$arch.deb
dpkg-deb --root-owner-group --build "$tree" "$deb" >/dev/null
echo "$deb"
