#!/usr/bin/env bash
# Runs every fuzz target for some seconds from its committed corpus, one per core at a time; a crash fails and its input is kept.
#   run_fuzzers.sh BUILD SECONDS
set -uo pipefail
build=$(cd "$1" && pwd); seconds=$2
root=$(cd "$(dirname "$0")/.." && pwd)
work=$build/fuzz-runs
mkdir -p "$work"
export root work seconds
one() {
  name=$(basename "$1" | sed 's/^llmq_fuzz_//')
  mkdir -p "$work/$name"
  dictionary=()
  [ -f "$root/tests/fuzz/corpus/$name.dict" ] && dictionary=("-dict=$root/tests/fuzz/corpus/$name.dict")
  if "$1" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$work/$name-" "${dictionary[@]}" \
       "$work/$name" "$root/tests/fuzz/corpus/$name" >"$work/$name.log" 2>&1; then
    echo "fuzz $name: no finding in $seconds s, $(awk '/number_of_executed_units/ {print $2}' "$work/$name.log") inputs"
  else
    echo "fuzz $name: FAILED, see below; the input is in $work"; tail -n 40 "$work/$name.log"; return 1
  fi
}
export -f one
targets=$(find "$build/tests/fuzz" -maxdepth 1 -type f -name 'llmq_fuzz_*' -executable | sort)
[ -n "$targets" ] || { echo "no fuzz target is built in $build" >&2; exit 1; }
xargs -P "$(nproc)" -I{} bash -c 'one "$@"' _ {} <<<"$targets"
