#!/usr/bin/env bash
# Two state servers, a training run and a Prometheus that watches them, on this machine.
#   deploy/monitoring/up.sh [--listen HOST:PORT] [--trainers N] [--scrape-interval TIME]
# Needs a built tree (scripts/setup.sh) and prometheus, on PATH or in build/tools. Everything is in
# a temporary folder. Ctrl-C ends all of it and removes the folder.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
listen=127.0.0.1:9090 trainers=2 interval=5s

fail() {
  echo "up.sh: $*" >&2
  exit 1
}

while (($#)); do
  (($# > 1)) || fail "$1 is unknown or lacks its value; the first lines of this file list them"
  case $1 in
    --listen) listen=$2 ;;
    --trainers) trainers=$2 ;;
    --scrape-interval) interval=$2 ;;
    *) fail "unknown argument '$1'; the first lines of this file list them" ;;
  esac
  shift 2
done

prometheus=$(PATH="$PATH:$root/build/tools" command -v prometheus) ||
  fail "no prometheus on PATH or in build/tools; scripts/setup.sh unpacks it there, or install" \
    "Debian's package 'prometheus'"
[[ -x $root/.venv/bin/python && -x $root/build/release/bin/ballastd ]] ||
  fail "the tree is not built; run scripts/setup.sh"

folder=$(mktemp -d)
children=()
end() {
  trap '' INT TERM
  ((${#children[@]} == 0)) || kill "${children[@]}" 2>/dev/null || true
  wait
  rm -rf "$folder"
}
trap end EXIT
trap 'exit 0' INT TERM

# The addresses of the servers that listen, for Prometheus; a server that starts again has another.
write_targets() {
  local found
  found=$(cat "$folder"/data/run/ready-*.json 2>/dev/null |
    sed -n 's/.*"admin": *"\([^"]*\)".*/"\1"/p' | paste -sd ,) || true
  echo "[{\"targets\": [$found]}]" >"$folder/targets.part"
  cmp -s "$folder/targets.part" "$folder/targets.json" ||
    mv "$folder/targets.part" "$folder/targets.json"
}

"$here/plain_rules.sh" >"$folder/rules.yaml"
sed "s/^\(  [a-z]*_interval:\) .*/\1 $interval/" "$here/prometheus.yml" >"$folder/prometheus.yml"
write_targets
PYTHONPATH="$root/client/python" "$root/.venv/bin/python" -m ballast.run --servers 2 \
  --nproc "$trainers" --max-restarts 100 --data-dir "$folder/data" "$here/train.py" &
children+=($!)
"$prometheus" --config.file="$folder/prometheus.yml" --storage.tsdb.path="$folder/tsdb" \
  --web.listen-address="$listen" --log.level=warn &
children+=($!)
echo "Prometheus: http://$listen  dashboard for Grafana: $here/dashboard.json"
while kill -0 "${children[@]}" 2>/dev/null; do
  write_targets
  sleep 1
done
fail "a program has ended; its last words stand above"
