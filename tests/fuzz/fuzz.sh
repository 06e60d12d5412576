#!/usr/bin/env bash
# Runs the fuzz targets under libFuzzer, by hand: fuzz.sh [SECONDS [TARGET...]], 60 s each and all
# of them unless said otherwise. Inputs that reach something new stay in out/fuzz/<target>, from
# where the next run begins; an input that ends a target is out/fuzz/<target>-crash-*. Once its bug
# is mended, it belongs into the corpus: tests/fuzz/corpus.py add TARGET FOLDER.
# fuzz.sh merge [TARGET...] adds to the corpus those of out/fuzz/<target> that reach code which
# nothing there reaches, the shortest first. Not for safetensors and job_file: the names of their
# inputs say what becomes of them.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-60}
shift || true
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  targets=(frame attach peer authz records config log slots fsm safetensors job_file)
fi

unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
for target in "${targets[@]}"; do
  python3 -B tests/fuzz/corpus.py unpack "$target" "$unpacked/$target"
done

cmake --preset fuzz > /dev/null
cmake --build --preset fuzz --parallel 2 --target ballast_fuzz
if [ "$seconds" = merge ]; then
  for target in "${targets[@]}"; do
    kept=$unpacked/$target
    if [ "$target" = safetensors ] || [ "$target" = job_file ]; then continue; fi
    mkdir -p "out/fuzz/$target"
    build/fuzz/bin/ballast_fuzz "--target=$target" -merge=1 -use_counters=0 -timeout=20 \
      -rss_limit_mb=2048 -verbosity=0 "$kept" "out/fuzz/$target"
    python3 -B tests/fuzz/corpus.py add "$target" "$kept"
  done
  exit 0
fi
for target in "${targets[@]}"; do
  found=out/fuzz/$target
  mkdir -p "$found"
  build/fuzz/bin/ballast_fuzz "--target=$target" "--seeds=$found"
  echo "$target: $seconds s"
  build/fuzz/bin/ballast_fuzz "--target=$target" "-max_total_time=$seconds" -max_len=8192 \
    -timeout=20 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 \
    "-artifact_prefix=$found-" "$found" "$unpacked/$target"
done
