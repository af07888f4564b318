#!/usr/bin/env bash
# Runs every fuzz target for some seconds from its committed corpus, two at a time; a crash fails and is kept.   run_fuzzers.sh BUILD SECONDS
set -uo pipefail
build=$(cd "$1" && pwd); seconds=$2
root=$(cd "$(dirname "$0")/.." && pwd)
work=$build/fuzz-runs
mkdir -p "$work"
export build root work seconds
one() {
  name=$(basename "$1" | sed 's/^fuzz_//')
  mkdir -p "$work/$name"
  if "$1" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$work/$name-" \
       "$work/$name" "$root/tests/fuzz/corpus/$name" >"$work/$name.log" 2>&1; then
    echo "fuzz $name: no finding in $seconds s, $(awk '/number_of_executed_units/ {print $2}' "$work/$name.log") inputs"
  else
    echo "fuzz $name: FAILED, see below"; tail -n 40 "$work/$name.log"; return 1
  fi
}
export -f one
find "$build/tests/fuzz" -maxdepth 1 -type f -name 'fuzz_*' -executable ! -name 'fuzz_replay_*' | sort | xargs -P 2 -I{} bash -c 'one "$@"' _ {}
