#!/usr/bin/env bash
# Everything that CUDA needs a GPU to show, on a machine that has one and need not have anything else of llmq's.
#
#   device_check.sh pack BUILD INTO         here: the programs of a build with CUDA, their libraries and this script, as a folder and INTO.tar.gz
#   device_check.sh run [FOLDER] [RESULTS] [PART...]
#                                           there; logs and figures in RESULTS. Parts, all of them where none is named:
#     tests      every operation of the backend against the reference; GPTQ's codes against the processor's, from the same Gram matrices
#     sanitizer  the same under compute-sanitizer, where it is installed
#     bench      operations at the shapes of large models, beside what the device and cuBLASLt can do, and which bars are met; llmq bench
#     perplexity a model on both backends: they must agree to four digits in float32, to a thousandth in bfloat16. MODEL=DIR names one more, beside
#                the small one that is packed
#     quantize   LAYERS (2) blocks of random weights in the shapes of Qwen3-32B and Llama-3-8B: seconds of a whole model by those of its blocks, which say
#                nothing of quality. Takes 8 GiB of disk in WORK (RESULTS/work)
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

pack() {
  local build=$1 into=$2 root
  root=$(cd "$here/.." && pwd)
  "$build/tools/llmq" --version --json | grep -q '"cuda": *"' || { echo "device_check: $build was built without CUDA" >&2; exit 2; }
  "$build/tools/llmq" --version --json | grep -q '"cuda": *".*sm_90' ||
    echo "device_check: $build is built for few architectures; -DLLMQ_CUDA_ARCHITECTURES=ALL has the machine code of every GPU" >&2
  cmake --build "$build" --target llmq llmq_kernels_backend llmq_unit_quant llmq_device_bench llmq_make_checkpoint || exit 1
  rm -rf "$into"
  mkdir -p "$into/bin" "$into/lib" "$into/models"
  cp "$build/tools/llmq" "$build"/tests/llmq_{kernels_backend,unit_quant} "$build/tests/bench/llmq_device_bench" "$build/tests/memory/llmq_make_checkpoint" "$into/bin/"
  cp -r "$root/tests/models/tinystories-656k" "$root/README.md" "$into/models/"
  # What the loader would look for there, but for the C library, which is that machine's own.
  ldd "$into"/bin/* | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u | grep -vE '/(libc|libm|libdl|libpthread|librt)\.so' | xargs -I{} cp -L {} "$into/lib/"
  strip "$into"/bin/* "$into"/lib/*
  cp "$here/device_check.sh" "$into/"
  tar -C "$(dirname "$into")" -czf "$into.tar.gz" "$(basename "$into")"
  du -h "$into.tar.gz"
}

part() {  # part NAME COMMAND...: the command's output into a log, one line on the screen
  local name=$1 start=$SECONDS; shift
  if "$@" >"$results/$name.log" 2>&1; then echo "passed  $name ($((SECONDS - start)) s)"; else echo "FAILED  $name ($((SECONDS - start)) s)"; tail -20 "$results/$name.log"; failed=1; return 1; fi
}

tests_part() {
  "$tests" --gtest_filter="$on_device" 2>&1 | tee "$results/backend.log" | grep -E '^\[  (PASSED|FAILED|SKIPPED)' || true
  grep -q '^\[  PASSED  \] [1-9]' "$results/backend.log" && ! grep -qE '^\[  (FAILED|SKIPPED)' "$results/backend.log" || { echo "FAILED  backend"; failed=1; }
  grep "factor leaves" "$results/backend.log"  # cuSOLVER's residuals beside the host's
  part codes env LLMQ_CODES_DEVICE="$device" "$folder/bin/llmq_unit_quant" --gtest_filter=Gptq.ADeviceGivesTheProcessorsCodes && grep "codes are equal" "$results/codes.log"
}

sanitizer_part() {
  command -v compute-sanitizer >/dev/null || { echo "skipped sanitizer: compute-sanitizer is not installed"; return; }
  for tool in memcheck racecheck initcheck synccheck; do
    part "sanitizer_$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "$tests" --gtest_filter="$on_device:-*ModelShapes*:*RowInvariance*:*LibraryProducts*"
  done
}

bench_part() {
  part benchmark bash -c '"$1/bin/llmq_device_bench" $3 >"$2/benchmark.csv"' _ "$folder" "$results" "$device${SMALL:+ small}" && sed -n '/^# bars/,$p' "$results/benchmark.csv"
  for on in cpu "$device"; do part "bench_$on" "$folder/bin/llmq" bench "$model" --device "$on" --json ${SMALL:+--prompt-tokens 8 --new-tokens 2 --runs 1}; done
}

# alike NAME COMPUTE: what perplexity_NAME_COMPUTE_cpu and that of the device say, which must be the same: float32 to four digits, bfloat16 to a thousandth
alike() {
  local on values=() share=5e-5 words="to four digits"
  [ "$2" = float32 ] || share=1e-3 words="to a thousandth"
  for on in cpu "$device"; do values+=("$(grep -oE '"ppl": *[0-9.e+-]+' "$results/perplexity_$1_$2_$on.log" | head -1 | sed 's/.*: *//')"); done
  awk -v cpu="${values[0]}" -v other="${values[1]}" -v name="$1, $2" -v device="$device" -v share="$share" -v words="$words" 'BEGIN {
    apart = other - cpu; if (apart < 0) apart = -apart
    same = cpu > 0 && other > 0 && apart <= share * cpu
    printf "%s: perplexity %s on cpu, %s on %s: %sthe same %s\n", name, cpu, other, device, same ? "" : "NOT ", words
    exit !same }'
}

perplexity_part() {
  local each name on compute
  for each in "$model" ${MODEL:+"$MODEL"}; do
    name=$(basename "$(realpath "$each")")
    for compute in float32 bfloat16; do
      for on in cpu "$device"; do
        part "perplexity_${name}_${compute}_$on" "$folder/bin/llmq" eval-ppl "$each" --text "$folder/models/README.md" --compute "$compute" --device "$on" --json \
          ${SMALL:+--context 32 --max-windows 1}
      done
      part "perplexity_${name}_$compute" alike "$name" "$compute" && cat "$results/perplexity_${name}_$compute.log"
    done
  done
}

# SHAPE ITS_BLOCKS SAMPLES METHOD SCHEME. What is not reading, writing or of the whole model is work on blocks.
quantized() {
  local layers=${LAYERS:-2} name=quantize_$1_$4_$3 length=2048
  [ -z "${SMALL:-}" ] || length=32
  [ -f "$work/$1/config.json" ] || { rm -rf "${work:?}/$1"; part "make_$1" "$folder/bin/llmq_make_checkpoint" "$1" "$work/$1" "$layers" || return; }
  part "$name" "$folder/bin/llmq" quantize --model "$work/$1" --output "$work/out" --overwrite --restart --device "$device" --method "$4" --set "scheme=$5" \
    --set "calibration.samples=$3" --set "calibration.sequence_length=$length" --json || return
  cp "$work/out/report.json" "$results/$name.report.json"
  awk -v of="$2" -v layers="$layers" -v name="$name" '
    /"seconds_by_part"/ { inside = 1; next }  inside && /}/ { inside = 0 }
    inside { split($0, at, "\""); value = $NF + 0; if (at[2] !~ /^(reading|writing|dense tensors)$/) work += value; parts = parts sprintf(" %s %.2f,", at[2], value) }
    END { printf "%s: %.2f s of work a block, %.1f s for %d blocks;%s of %d blocks\n", name, work / layers, work / layers * of, of, parts, layers }' "$work/out/report.json" |
    tee -a "$results/quantize.txt"
}

quantize_part() {
  work=${WORK:-$results/work}
  mkdir -p "$work"
  if [ -n "${SMALL:-}" ]; then quantized small-llama 2 1 gptq w4a16_g128_asym; return; fi
  quantized qwen3-32b 64 128 gptq w4a16_g128_asym
  quantized qwen3-32b 64 128 awq w4a16_g128_asym
  quantized qwen3-32b 64 128 smoothquant w8a8_channel_sym
  quantized llama-3-8b 32 512 gptq w4a16_g128_asym
  rm -rf "$work"
}

run() {  # SMALL=1 DEVICE=emulated tries the script itself where there is no GPU
  folder=${1:-$here} results=${2:-results} failed=0 device=${DEVICE:-cuda}
  shift $(($# < 2 ? $# : 2))
  mkdir -p "$results"
  on_device="*/cuda_t*:*/cuda_calibration_t*"  # serving with the own kernels, calibration with cuBLASLt's products
  [ "$device" != emulated ] || on_device="*/cuda_emulated_t*:*/cuda_stand_in_t*"
  export LD_LIBRARY_PATH=$folder/lib:${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64  # cuSOLVER and cuBLASLt are that machine's
  tests=$folder/bin/llmq_kernels_backend model=$folder/models/tinystories-656k
  { nvidia-smi; nvidia-smi -q -d CLOCK,POWER; "$folder/bin/llmq" --version --json; uname -srm; } >"$results/machine.txt" 2>&1
  for one in "${@:-all}"; do
    case $one in
      all) for each in tests sanitizer bench perplexity quantize; do "${each}_part"; done ;;
      tests | sanitizer | bench | perplexity | quantize) "${one}_part" ;;
      *) echo "device_check: no part is called $one; there are tests, sanitizer, bench, perplexity and quantize" >&2; return 2 ;;
    esac
  done
  [ "$failed" -eq 0 ] && echo "all passed; $results holds the logs" || echo "something failed; $results holds the logs"
  return "$failed"
}

case ${1:-} in
  pack) [ $# -eq 3 ] || { sed -n 2,13p "${BASH_SOURCE[0]}"; exit 2; }; pack "$2" "$3" ;;
  run) shift; run "$@" ;;
  *) sed -n 2,13p "${BASH_SOURCE[0]}"; exit 2 ;;
esac
