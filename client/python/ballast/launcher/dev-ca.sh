#!/usr/bin/env bash
# A certificate authority for tests and for a first cluster: certificates for servers, for the roles
# of a tenant, and for an admin, each with exactly one URI name (docs/security.md). Not for a real
# network: the authority's key lies next to the certificates that it signs.
# Goes to: ballast-run --tls, tests. Needs: openssl.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/dev-ca.sh [options] DIR

Makes in DIR, which is created when missing:
  ca.pem ca.key                       the authority
  server-0.pem server-0.key ...       one pair per server
  trainer-TENANT.pem .key             also operator-TENANT and viewer-TENANT
  admin.pem admin.key

Files that are there stay as they are, so a second run adds what is missing, such as another tenant.

  --domain NAME   trust domain in the URI names (default: ballast)
  --tenant NAME   whose roles get certificates (default: default); may be repeated
  --servers N     servers 0 to N-1 (default: 3)
  --host NAME     further DNS name or IP address of the servers beside localhost and 127.0.0.1;
                  may be repeated
  --days N        how long the certificates are valid (default: 30); 0: they expire at once
  --help          this text

Keys are ECDSA P-256 with mode 0600.
TEXT
}

fail() {
  echo "dev-ca: $*" >&2
  exit 2
}

domain=ballast days=30 servers=3 directory=
tenants=() hosts=()
while (($#)); do
  case $1 in
    --domain | --tenant | --servers | --host | --days)
      (($# > 1)) || fail "$1 needs a value; --help lists the options"
      [[ -n $2 ]] || fail "the value of $1 is empty"
      case $1 in
        --domain) domain=$2 ;;
        --tenant) tenants+=("$2") ;;
        --servers) servers=$2 ;;
        --host) hosts+=("$2") ;;
        --days) days=$2 ;;
      esac
      shift 2
      ;;
    --help | -h)
      usage
      exit 0
      ;;
    -*) fail "unknown option $1; --help lists them" ;;
    *)
      [[ -z $directory ]] || fail "one DIR, please, not $directory and $1"
      directory=$1
      shift
      ;;
  esac
done
[[ -n $directory ]] || fail "name the directory; --help shows how"
((${#tenants[@]})) || tenants=(default)
[[ $domain =~ ^[a-z0-9][a-z0-9._-]{0,127}$ ]] ||
  fail "--domain '$domain': 1 to 128 of a-z 0-9 . _ -, beginning with a letter or a digit"
for tenant in "${tenants[@]}"; do
  [[ $tenant =~ ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$ ]] ||
    fail "--tenant '$tenant': 1 to 128 of A-Z a-z 0-9 . _ -, beginning with a letter or a digit"
done
for host in ${hosts[@]+"${hosts[@]}"}; do
  [[ $host =~ ^[A-Za-z0-9:*][A-Za-z0-9.:*_-]{0,252}$ ]] ||
    fail "--host '$host' is no name or address"
done
[[ $servers =~ ^[0-9]{1,4}$ ]] || fail "--servers '$servers' is no number from 0 to 9999"
[[ $days =~ ^[0-9]{1,4}$ ]] || fail "--days '$days' is no number from 0 to 9999"
command -v openssl >/dev/null || fail "openssl is missing: apt-get install openssl"

umask 077
mkdir -p "$directory"
work=$(mktemp -d "$directory/.dev-ca.XXXXXX")
trap 'rm -rf "$work"' EXIT

# openssl ARGUMENTS...: quiet, unless it fails.
ssl() {
  openssl "$@" >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    fail "openssl $1 failed"
  }
}

# publish NAME: the finished pair; the certificate last, because its presence means that both exist.
publish() {
  mv "$work/$1.key" "$directory/$1.key"
  chmod 644 "$work/$1.pem"
  mv "$work/$1.pem" "$directory/$1.pem"
}

kept() {
  [[ -e $directory/$1.pem ]] || return 1
  echo "dev-ca: kept $directory/$1.pem" >&2
}

make_ca() {
  [[ ! -e $directory/ca.pem ]] || return 0
  local ca_days=3650
  ((days > 0)) || ca_days=1
  ssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -sha256 -days "$ca_days" \
    -subj "/CN=Ballast development CA $(openssl rand -hex 4)" \
    -addext "basicConstraints=critical,CA:true,pathlen:0" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" \
    -keyout "$work/ca.key" -out "$work/ca.pem"
  publish ca
}

# make_pair NAME URI USAGE [SAN...]
make_pair() {
  local name=$1 uri=$2 usage=$3
  shift 3
  kept "$name" && return 0
  local names="URI:$uri" san
  for san in "$@"; do names+=",$san"; done
  printf '%s\n' "basicConstraints=critical,CA:false" "keyUsage=critical,digitalSignature" \
    "extendedKeyUsage=$usage" "subjectAltName=$names" "subjectKeyIdentifier=hash" \
    "authorityKeyIdentifier=keyid" >"$work/extensions"
  ssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -sha256 -subj "/CN=$name" \
    -keyout "$work/$name.key" -out "$work/request"
  ssl x509 -req -sha256 -days "$days" -in "$work/request" -extfile "$work/extensions" \
    -CA "$directory/ca.pem" -CAkey "$directory/ca.key" -set_serial "0x$(openssl rand -hex 15)" \
    -out "$work/$name.pem"
  publish "$name"
}

make_ca
# Without its key no more can be signed.
[[ -e $directory/ca.key ]] || fail "$directory/ca.key is missing: this directory can sign nothing"
sans=(DNS:localhost IP:127.0.0.1 IP:::1)
for host in ${hosts[@]+"${hosts[@]}"}; do
  if [[ $host =~ ^[0-9.]+$ || $host == *:* ]]; then sans+=("IP:$host"); else sans+=("DNS:$host"); fi
done
for ((id = 0; id < servers; ++id)); do
  make_pair "server-$id" "spiffe://$domain/server/$id" serverAuth,clientAuth "${sans[@]}"
done
for tenant in "${tenants[@]}"; do
  for role in trainer operator viewer; do
    make_pair "$role-$tenant" "spiffe://$domain/tenant/$tenant/$role" clientAuth
  done
done
make_pair admin "spiffe://$domain/admin" clientAuth
