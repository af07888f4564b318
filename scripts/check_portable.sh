#!/usr/bin/env bash
# Another processor: cross-compiles for aarch64, checks that jobs give the digits the scalar level gives on this machine, and runs the tests
# that another processor could fail, all under qemu's user-mode emulation.   check_portable.sh [PROGRAM]
#
# The scalar level is plain C++: IEEE operations and std::fma in a written order, no contraction, transcendental functions of its own. So the bytes of
# the outputs and every digit of the perplexity must be equal on both, not merely close.
#
# Which tests, and how to add one: tests/CMakeLists.txt (llmq_portable). A process starts as long there as a small test computes, so tests run many to a
# process. With PORTABLE_SECONDS no process is begun later than so many seconds after the start, and the last line says what was left out; the build
# and the jobs always are.
set -euo pipefail
cd "$(dirname "$0")/.."
host=$(realpath "${1:-build/cpu-release/tools/llmq}")
build=$PWD/build/aarch64
root=$build/root
cores=$(nproc)

# Built once and used once: large batches, and no optimization where nothing is computed. What computes has that of a release, since a compiler
# contracts nothing below -O2 and the check would not see what it is for.
scripts/unpack_arm64.sh "$build"
cmake -S . -B "$build/build" -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake -DLLMQ_ARM64_ROOT="$root" -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_UNITY_BUILD_BATCH_SIZE=24 -DLLMQ_BUILT_SOON="export;grammar;http;io;jinja;job;kernels_cuda;model;ranks;serve;tokenizer" >/dev/null
cmake --build "$build/build" -j"$cores" --target llmq llmq_portable_tests >"$build/build.log" || { tail -n 30 "$build/build.log" >&2; exit 1; }
echo "Built after $SECONDS s."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
emulator=(qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$root/usr/lib/aarch64-linux-gnu")

# METHOD MODEL OUTPUT and what else is set: every method, codes from 4 to 8 bits, integers and floats, three formats.
list="awq tinystories-656k checkpoint scheme=w4a16_g64_asym
awq,gptq tinystories-draft gptq_v2 scheme=w4a16_g32_asym format=gptq_v2
smoothquant,gptq tinystories-draft w8a8 scheme=w8a8
gptq tinystories-draft mixed scheme=w4a16_g32_asym target_bits=5
imatrix tinystories-656k q4_k_m.gguf scheme=q4_k_m format=gguf
rtn tinystories-mixture fp8 scheme=fp8"
run_jobs() {  # run_jobs FOLDER PROGRAM...: a line for each job, the digest of what it writes; then the perplexity of the first
  local folder=$1 method model output rest word set; shift
  mkdir "$folder"
  while read -r method model output rest; do
    set=()
    for word in $rest calibration.samples=2 calibration.sequence_length=64; do set+=(--set "$word"); done
    echo "$method $rest $("$@" quantize --method "$method" --model "tests/models/$model" --output "$folder/$output" "${set[@]}" --json 2>>"$folder/log" \
      </dev/null | jq -r .digest)"
  done <<<"$list"
  echo "perplexity of the first $("$@" eval-ppl "$folder/checkpoint" --against tests/models/tinystories-656k --compute bfloat16 --context 128 \
    --max-windows 2 --json 2>>"$folder/log" | jq -c '[.ppl, .ppl_stderr, .against.kl_mean]')"
}
run_jobs "$work/emulated" "${emulator[@]}" "$build/build/tools/llmq" >"$work/there" || { cat "$work/emulated/log" >&2; exit 1; }
LLMQ_CPU_ISA=scalar run_jobs "$work/native" "$host" >"$work/here" || { cat "$work/native/log" >&2; exit 1; }
diff "$work/there" "$work/here" || { echo "FAILED: aarch64, emulated (<), and this machine's scalar level (>) differ" >&2; exit 1; }
cat "$work/there"
echo "The same bytes and the same perplexity on both, after $SECONDS s."

# run_part TARGET TESTS PART PARTS: every PARTS-th of these tests in one process. A failure shows its output, and a process that hangs the test it was at.
run_part() {
  local log=$work/$1.$3 status=0
  GTEST_TOTAL_SHARDS=$4 GTEST_SHARD_INDEX=$3 timeout 900 "${emulator[@]}" "$build/build/tests/$1" --gtest_filter="$2" >"$log" 2>&1 </dev/null || status=$?
  echo "$1 $(($3 + 1))/$4: $(grep -c '^\[       OK' "$log") passed, after $SECONDS s"
  [ $status -ne 0 ] || return 0
  if [ $status -eq 124 ]; then
    echo "FAILED: $1 was still at $(grep '^\[ RUN' "$log" | tail -n 1 | cut -c14-) after 15 minutes" >"$log.failed"
  elif grep -q '^\[  FAILED' "$log"; then
    sed -n '/^\[ RUN/h; /^\[ RUN/!H; /^\[  FAILED/{/ms)/{g;p}}' "$log" >"$log.failed"
  else
    { tail -n 30 "$log"; echo "FAILED: $1 ended with $status at $(grep '^\[ RUN' "$log" | tail -n 1 | cut -c14-)"; } >"$log.failed"
  fi
}
left=()
while read -r target tests; do
  parts=1
  case $target in llmq_kernels_backend | llmq_unit_quant) parts=4 ;; esac  # seconds in each
  for ((part = 0; part < parts; part++)); do
    while [ "$(jobs -rp | wc -l)" -ge "$cores" ]; do wait -n || true; done
    if [ -n "${PORTABLE_SECONDS:-}" ] && [ "$SECONDS" -ge "$PORTABLE_SECONDS" ]; then
      left+=("$target $((part + 1))/$parts")
    else
      run_part "$target" "$tests" $part $parts &
    fi
  done
done <"$build/build/portable_tests.txt"
wait
failed=0
for log in "$work"/*.failed; do
  if [ -e "$log" ]; then cat "$log" >&2; failed=1; fi
done
# A name in the list that no test has any more would be a test that nobody misses.
if [ ${#left[@]} -eq 0 ]; then
  while read -r target tests; do
    names=$(sed -n 's/^\[ RUN      \] //p' "$work/$target".[0-9])
    while read -r -d : pattern; do
      case $pattern in -*) break ;; esac
      # shellcheck disable=SC2053  # a pattern, as gtest takes it
      while read -r name; do [[ $name == $pattern ]] && continue 2; done <<<"$names"
      echo "FAILED: no test of $target is named $pattern (tests/CMakeLists.txt)" >&2
      failed=1
    done <<<"$tests:"
  done <"$build/build/portable_tests.txt"
fi
[ $failed -eq 0 ] || exit 1
left_out=$(IFS=,; echo "${left[*]}")
passed=$(find "$work" -name 'llmq_*.[0-9]' -exec cat {} + | grep -c '^\[       OK') || true
echo "aarch64: $passed tests passed in $SECONDS s; left out for time: ${left_out:-nothing}"
