#!/bin/sh
# A quantization job for CI: quantize -> gate -> verify -> (sign) -> (pack). Any shell, any runner.
#
#   RECIPE=job.yaml sh quantize.sh
#
# The recipe names model, output and gates:
#     output: {dir: out/model-awq, versioned: true, keep: 5}
#     evaluate: {text: builtin:wikitext-2, max_delta_ppl: 0.5}
# llmq evaluates a new version before `latest` names it: a version that misses a gate never becomes `latest`.
#
#   RECIPE        the recipe (required)
#   LLMQ          the program (llmq)
#   MODEL         the model, in place of the recipe's
#   METRICS_DIR   metrics.json, llmq.prom, quantize.json and junit.xml (the gates) go there (metrics)
#   SUMMARY       file to which a table of the figures and gates is added, in Markdown ($GITHUB_STEP_SUMMARY)
#   SIGN_KEY      private key (PEM, ECDSA P-256): the version is signed and the signature verified with SIGN_PUB
#   OCI_DIR       the version is packed as an OCI image layout below this directory
#
# Exit codes are llmq's: 0 done or unchanged, 1 failed, 2 the recipe or an input is at fault, 3 a gate was not met.
set -eu
: "${RECIPE:?set RECIPE to the recipe of the job}"
LLMQ=${LLMQ:-llmq}
METRICS_DIR=${METRICS_DIR:-metrics}
mkdir -p "$METRICS_DIR"

# 1. Quantize, evaluate, publish. An interrupted job goes on where it stopped.
set -- --recipe "$RECIPE" --metrics-out "$METRICS_DIR" --junit "$METRICS_DIR/junit.xml"
[ -z "${MODEL:-}" ] || set -- "$@" --model "$MODEL"
[ -z "${SUMMARY:-}" ] || set -- "$@" --summary "$SUMMARY"
status=0
"$LLMQ" quantize "$@" --json >"$METRICS_DIR/quantize.json" || status=$?
case $status in
  0) ;;
  3) echo "quantize.sh: a gate was not met; see $METRICS_DIR/quantize.json" >&2; exit 3 ;;
  *) cat "$METRICS_DIR/quantize.json" >&2; exit "$status" ;;
esac

# The value of a text field at the top of llmq's own JSON, one field a line: no other program is needed.
field() { sed -n "s/^  \"$1\": \"\(.*\)\",*\$/\1/p" "$METRICS_DIR/quantize.json"; }
output=$(field output)
version=$(field version)
[ -z "$version" ] || output=$output/$version

# 2. Every file hashed anew and held against the manifest.
"$LLMQ" verify "$output"

# 3. What was verified is signed.
if [ -n "${SIGN_KEY:-}" ]; then
  "$LLMQ" sign "$output" --key "$SIGN_KEY"
  [ -z "${SIGN_PUB:-}" ] || "$LLMQ" verify "$output" --key "$SIGN_PUB"
fi

# 4. An artifact for a registry: skopeo copy oci:LAYOUT:latest docker://REGISTRY/NAME:TAG
if [ -n "${OCI_DIR:-}" ]; then
  layout=$OCI_DIR/$(basename "$output").oci
  [ -e "$layout" ] || "$LLMQ" pack "$output" --oci "$layout"
fi
echo "$output"
