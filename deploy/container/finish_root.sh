#!/usr/bin/env bash
# finish_root.sh ROOT WORK VERSION: mmdebstrap runs this after unpacking the packages into ROOT.
# Adds the programs of WORK/usr/bin and the list of contents; takes out files that no server reads,
# and facts that differ from one machine to the next (where its packages come from, its name).
set -euo pipefail
root=$1 work=$2 version=$3

"$(dirname "$0")/sbom.py" "$root" "$version" >"$work/sbom.json"
install -D -m 755 -t "$root/usr/bin" "$work"/usr/bin/*
install -D -m 644 "$work/sbom.json" "$root/usr/share/doc/ballast/sbom.spdx.json"
# Licences and the list of packages stay.
find "$root/usr/share/doc" -mindepth 2 ! -name copyright ! -name sbom.spdx.json ! -type d -delete
find "$root/usr/share/doc" -type d -empty -delete
rm -rf "$root"/etc/{apt,dpkg,fstab,hostname,resolv.conf,init.d,default} "$root"/var \
  "$root"/usr/share/{man,locale,lintian,bug,info} "$root"/usr/{sbin,games} "$root"/sbin \
  "$root"/usr/lib/*/gconv
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
rm -rf "$root"/tmp/*
mkdir -p "$root"/{data,proc,sys,tmp}
chown 65532:65532 "$root/data"
