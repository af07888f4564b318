#!/usr/bin/env bash
# Synthetic checkpoints in the shape of large models, quantized under a limit that a watcher enforces.   bench_large.sh BUILD [DIRECTORY]
# LAYERS (1) blocks each: the peak does not depend on their number. METHODS: "rtn awq gptq".
set -euo pipefail
build=$1; work=${2:-$build/bench-large}
layers=${LAYERS:-1}; methods=${METHODS:-rtn awq gptq}
mkdir -p "$work"
failed=0
run() { # SHAPE LIMIT_BYTES LIMIT
  local model=$work/$1-$layers
  [ -f "$model/config.json" ] || { rm -rf "$model"; "$build/tests/memory/llmq_make_checkpoint" "$1" "$model" "$layers"; }
  for method in $methods; do
    rm -rf "$work/out"
    echo "== $1, $layers blocks, $method, --memory-limit $3"
    "$build/tests/memory/llmq_watch_memory" "$2" "$build/tools/llmq" quantize --quiet --method "$method" --model "$model" --output "$work/out" \
      --memory-limit "$3" --set scheme=w4a16_g128_asym --set calibration.samples=2 --set calibration.sequence_length=128 || { failed=1; echo "FAILED: $1 $method"; }
  done
}
run qwen3-8b $((3 << 30)) 3GiB
run qwen2-1.5b $((5 << 28)) 1280MiB
rm -rf "$work/out"
exit $failed
