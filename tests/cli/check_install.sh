#!/usr/bin/env bash
# An installed tree works wherever it is moved, from what lies in it.   check_install.sh BUILD SOURCE
set -euo pipefail
build=$1; source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/here" >/dev/null
mv "$work/here" "$work/elsewhere"
tree=$work/elsewhere
for file in recipes/qwen32b.yaml wikitext-2/wiki.test.raw calibration/c4.utf8 lm-eval/documents.py lm-eval/llmq_choice.jsonl; do
  cmp "$tree/share/llmq/$file" "$(find "$source/share" "$source/recipes" -path "*${file#recipes/}" | head -n 1)"
done
python3 "$source/tests/cli/check_licences.py" "$source" "$tree"
model=$source/tests/models/tinystories-656k
cd "$work"
"$tree/bin/llmq" quantize --model "$model" --recipe "$tree/share/llmq/recipes/tinystories.yaml" --output "$work/q" \
  --set calibration.samples=2 --set calibration.sequence_length=64
"$tree/bin/llmq" eval-ppl "$work/q" --context 64 --max-windows 1
# Its own texts: with another one in their place, the perplexity changes.
before=$("$tree/bin/llmq" eval-ppl "$work/q" --context 64 --max-windows 1 --json | grep '"ppl"')
cp "$tree/share/llmq/calibration/c4.utf8" "$tree/share/llmq/wikitext-2/wiki.test.raw"
after=$("$tree/bin/llmq" eval-ppl "$work/q" --context 64 --max-windows 1 --json | grep '"ppl"')
[ "$before" != "$after" ] || { echo "the installed program reads the texts of the source tree"; exit 1; }
