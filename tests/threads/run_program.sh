#!/usr/bin/env bash
# The main job in three threads: quantize, measure against the original, generate.   run_program.sh PROGRAM MODEL
set -euo pipefail
llmq=$1; model=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$llmq" quantize --method awq --model "$model" --output "$work/q" --threads 3 --set scheme=w4a16_g64_asym \
  --set calibration.samples=2 --set calibration.sequence_length=64
"$llmq" eval-ppl "$work/q" --against "$model" --threads 3 --context 64 --max-windows 2
"$llmq" generate "$work/q" --prompt "Once upon a time" --max-tokens 8 --threads 3
