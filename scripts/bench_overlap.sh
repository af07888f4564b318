#!/usr/bin/env bash
# How much of reading, computing and writing goes on at once: each alone, then a whole run from a cold cache.   bench_overlap.sh BUILD [DIRECTORY]
#
#   read      the model's shards past the page cache
#   compute   a run with the model in the page cache and its output in memory (/dev/shm)
#   write     as many bytes as the output has, and fsync
#   together  a run whose model is not in the page cache, to the disk
#
# The model's digests are remembered from the run before: a first run hashes the model ahead of everything else. SHAPE (qwen3-8b), LAYERS (2), METHODS
# ("rtn"), FLAGS: more for the timed runs, such as --direct-io. Needs as much memory as the model and its output take. Fails when the whole takes more than
# 1.15 times the longest of the three.
set -euo pipefail
build=$1; work=${2:-$build/bench-overlap}
shape=${SHAPE:-qwen3-8b}; layers=${LAYERS:-2}; methods=${METHODS:-rtn}; flags=${FLAGS:-}
model=$work/$shape-$layers; memory=$(mktemp -d /dev/shm/llmq-overlap-XXXXXX)
trap 'rm -rf "$memory" "$work/out" "$work/written"' EXIT
export LLMQ_DIGEST_CACHE=$work/digests
mkdir -p "$work"
[ -f "$model/config.json" ] || { rm -rf "$model"; "$build/tests/memory/llmq_make_checkpoint" "$shape" "$model" "$layers"; sleep 3; }
seconds() { local from; from=$(date +%s.%N); "$@" > /dev/null 2>> "$work/log" || { tail -n 5 "$work/log" >&2; return 1; }; echo "$(date +%s.%N) $from" | awk '{printf "%.2f", $1 - $2}'; }
quantize() { # METHOD OUTPUT [FLAG ...]
  rm -rf "$2"
  # shellcheck disable=SC2086
  "$build/tools/llmq" quantize --quiet --method "$1" --model "$model" --output "${@:2}" $flags \
    --set scheme=w4a16_g128_asym --set calibration.samples=2 --set calibration.sequence_length=128
}
cold() { sync; for shard in "$model"/*.safetensors; do dd if="$shard" iflag=nocache count=0 status=none; done; }
read_all() { for shard in "$model"/*.safetensors; do dd if="$shard" of=/dev/null iflag=direct bs=8M status=none; done; }
write_all() { cat "$memory"/out/*.safetensors | dd of="$work/written" bs=8M iflag=fullblock conv=fsync status=none; }
failed=0
for method in $methods; do
  cat "$model"/*.safetensors > /dev/null
  quantize "$method" "$memory/out" > /dev/null # and its digests
  compute=$(seconds quantize "$method" "$memory/out")
  read=$(seconds read_all)
  write=$(seconds write_all)
  rm -rf "$memory/out" "$work/written"
  cold
  together=$(seconds quantize "$method" "$work/out")
  echo "$read $compute $write $together" | awk -v of="$shape, $layers blocks, $method $flags" '{
    longest = $1; if ($2 > longest) longest = $2; if ($3 > longest) longest = $3
    printf "%s: read %.1f s, compute %.1f s, write %.1f s; together %.1f s, %.2f times the longest\n", of, $1, $2, $3, $4, $4 / longest
    exit $4 > 1.15 * longest }' || failed=1
done
exit $failed
