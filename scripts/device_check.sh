#!/usr/bin/env bash
# Everything that CUDA needs a GPU to show, on a machine that has one and need not have anything else of llmq's.
#
#   device_check.sh pack BUILD INTO         here: the programs of a build with CUDA, their libraries and this script, as a folder and INTO.tar.gz
#   device_check.sh run [FOLDER] [RESULTS]  there: every operation of the backend against the reference, the same under compute-sanitizer where it is
#                                           installed, a model on both backends, benchmarks; logs and figures in RESULTS
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

pack() {
  local build=$1 into=$2 root
  root=$(cd "$here/.." && pwd)
  "$build/tools/llmq" --version --json | grep -q '"cuda": *"' || { echo "device_check: $build was built without CUDA" >&2; exit 2; }
  cmake --build "$build" --target llmq llmq_kernels_backend llmq_device_bench || exit 1
  rm -rf "$into"
  mkdir -p "$into/bin" "$into/lib" "$into/models"
  cp "$build/tools/llmq" "$build/tests/llmq_kernels_backend" "$build/tests/bench/llmq_device_bench" "$into/bin/"
  cp -r "$root/tests/models/tinystories-656k" "$root/README.md" "$into/models/"
  # What the loader would look for there, but for the C library, which is that machine's own.
  ldd "$into"/bin/* | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u | grep -vE '/(libc|libm|libdl|libpthread|librt)\.so' | xargs -I{} cp -L {} "$into/lib/"
  strip "$into"/bin/* "$into"/lib/*
  cp "$here/device_check.sh" "$into/"
  tar -C "$(dirname "$into")" -czf "$into.tar.gz" "$(basename "$into")"
  du -h "$into.tar.gz"
}

run() {
  local folder=${1:-$here} results=${2:-results} failed=0
  mkdir -p "$results"
  export LD_LIBRARY_PATH=$folder/lib
  part() {  # part NAME COMMAND...: the command's output into a log, one line on the screen
    local name=$1 start=$SECONDS; shift
    if "$@" >"$results/$name.log" 2>&1; then echo "passed  $name ($((SECONDS - start)) s)"; else echo "FAILED  $name ($((SECONDS - start)) s)"; tail -20 "$results/$name.log"; failed=1; fi
  }
  { nvidia-smi; "$folder/bin/llmq" --version --json; uname -srm; } >"$results/machine.txt" 2>&1
  local tests=$folder/bin/llmq_kernels_backend on_device='*/cuda_t*'
  "$tests" --gtest_filter="$on_device" 2>&1 | tee "$results/backend.log" | grep -E '^\[  (PASSED|FAILED|SKIPPED)' || true
  grep -q '^\[  PASSED  \] [1-9]' "$results/backend.log" && ! grep -qE '^\[  (FAILED|SKIPPED)' "$results/backend.log" || { echo "FAILED  backend"; failed=1; }
  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck initcheck synccheck; do
      part "sanitizer_$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "$tests" --gtest_filter="$on_device:-*ModelShapes*:*OddShapes*:RowInvariance*"
    done
  else
    echo "skipped sanitizer: compute-sanitizer is not installed"
  fi
  part benchmark bash -c '"$1/bin/llmq_device_bench" cuda >"$2/benchmark.csv"' _ "$folder" "$results"
  local model=$folder/models/tinystories-656k device
  for device in cpu cuda; do
    part "perplexity_$device" "$folder/bin/llmq" eval-ppl "$model" --text "$folder/models/README.md" --compute float32 --device "$device" --json
    part "bench_$device" "$folder/bin/llmq" bench "$model" --device "$device" --json
  done
  echo "perplexity, float32: $(for device in cpu cuda; do printf '%s %s  ' "$device" "$(grep -o '"ppl": *[0-9.]*' "$results/perplexity_$device.log" | head -1)"; done)"
  [ "$failed" -eq 0 ] && echo "all passed; $results holds the logs" || echo "something failed; $results holds the logs"
  return "$failed"
}

case ${1:-} in
  pack) [ $# -eq 3 ] || { sed -n 2,6p "${BASH_SOURCE[0]}"; exit 2; }; pack "$2" "$3" ;;
  run) shift; run "$@" ;;
  *) sed -n 2,6p "${BASH_SOURCE[0]}"; exit 2 ;;
esac
