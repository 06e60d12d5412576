#!/usr/bin/env bash
# one_round.sh BALLASTD PUSH_PULL FOLDER: one round of the installed consumer on a server of its
# own, which has to end with the loss and the norm that paper gives.
set -euo pipefail
ballastd=$1 push_pull=$2 folder=$3
ready=$folder/ready.json
rm -f "$ready"
TMPDIR=$folder "$ballastd" --dev --ready-file "$ready" >"$folder/ballastd.log" 2>&1 &
server=$!
trap 'kill -9 $server 2>/dev/null || true' EXIT
fail() { echo "one_round: $1"; cat "$folder/ballastd.log"; exit 1; }

for ((i = 0; i < 600; ++i)); do
  [[ -e $ready ]] && break
  kill -0 $server 2>/dev/null || fail "the server has ended"
  sleep 0.1
done
address=$(sed -n 's/.*"address": "\([^"]*\)".*/\1/p' "$ready")
[[ $address =~ ^127\.0\.0\.1:[1-9][0-9]*$ ]] || fail "no address in $(cat "$ready")"

said=$("$push_pull" --endpoint "$address" --job consumer --steps 1) || fail "push_pull failed"
# Weights begin at 0 with targets -4.5 to 4.5, 100 of each: the gradient's norm is sqrt(8250).
# Adam's first step moves each by lr = 0.1 towards its target, and leaves half a squared distance
# of 3880.
[[ $said =~ ^round\ 1\ \ loss\ (3880\.0|3879\.9)[0-9]+\ \ grad_norm\ 90\.829[0-9]+$ ]] ||
  fail "it said: $said"

kill -TERM $server
wait $server || fail "the server ended with code $?"
