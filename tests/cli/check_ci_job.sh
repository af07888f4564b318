#!/usr/bin/env bash
# share/ci/quantize.sh end to end on the small model: a job that meets its gate, one that misses
# it, a signed and packed one, and one with a mistake.   check_ci_job.sh PROGRAM SOURCE
set -euo pipefail
export LLMQ=$1; source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export METRICS_DIR=$work/metrics LLMQ_DIGEST_CACHE="" RECIPE=job.yaml

recipe() {  # recipe OUTPUT SCHEME MAX_KL
  cat >job.yaml <<RECIPE
version: 1
model: $source/tests/models/tinystories-656k
output: $1
method: rtn
scheme: $2
evaluate: {max_windows: 2, max_kl: $3}
RECIPE
}
job() { status=0; sh "$source/share/ci/quantize.sh" >job.out 2>job.err || status=$?; }
expect() {  # expect STATUS WHAT
  [ "$status" -eq "$1" ] || { echo "FAILED: $2: left with $status"; cat job.out job.err; exit 1; }
  echo "ok: $2"
}

recipe out/model w8a16_g64_sym 0.5
job; expect 0 "a job that meets its gate"
[ "$(tail -n 1 job.out)" = out/model ] || { echo "FAILED: the job does not name its output"; exit 1; }
"$LLMQ" verify out/model >/dev/null
grep -q '"quantize_exit_code": 0' metrics/metrics.json
grep -q 'gate="max_kl"} 1' metrics/llmq.prom

recipe out/bad w2a16_g64_sym 0.000001
job; expect 3 "a job that misses its gate"
grep -q 'gate="max_kl"} 0' metrics/llmq.prom

openssl ecparam -name prime256v1 -genkey -noout -out signer.pem
openssl ec -in signer.pem -pubout -out signer.pub.pem 2>/dev/null
recipe out/signed w4a16_g32_asym 5
SIGN_KEY=signer.pem SIGN_PUB=signer.pub.pem OCI_DIR=oci job; expect 0 "a job that signs and packs"
[ -s out/signed/model.sig ]
[ -s oci/signed.oci/index.json ]

recipe out/wrong nonsense 0.5
job; expect 2 "a job whose recipe is wrong"
grep -q nonsense job.err
