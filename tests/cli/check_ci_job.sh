#!/usr/bin/env bash
# share/ci/quantize.sh end to end on the small model: a job that meets its gate, the same job again, one that misses its
# gate, a signed and packed one, and one with a mistake.   check_ci_job.sh PROGRAM SOURCE
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

recipe "{dir: out/model, versioned: true, keep: 3}" w8a16_g64_sym 0.5
job; expect 0 "a job that meets its gate"
first=$(readlink out/model/latest)
[ "$(tail -n 1 job.out)" = "out/model/$first" ] || { echo "FAILED: the job names another version than latest"; exit 1; }
"$LLMQ" verify out/model/latest >/dev/null
grep -q '"quantize_exit_code": 0' metrics/metrics.json
grep -q 'gate="max_kl"} 1' metrics/llmq.prom
job; expect 0 "the same job again"
[ "$(readlink out/model/latest)" = "$first" ] || { echo "FAILED: an unchanged job moved latest"; exit 1; }

recipe "{dir: out/model, versioned: true, keep: 3}" w2a16_g64_sym 0.000001
job; expect 3 "a job that misses its gate"
[ "$(readlink out/model/latest)" = "$first" ] || { echo "FAILED: what missed the gate became latest"; exit 1; }
grep -q 'gate="max_kl"} 0' metrics/llmq.prom

openssl ecparam -name prime256v1 -genkey -noout -out signer.pem
openssl ec -in signer.pem -pubout -out signer.pub.pem 2>/dev/null
recipe "{dir: out/model, versioned: true, keep: 3}" w4a16_g32_asym 5
SIGN_KEY=signer.pem SIGN_PUB=signer.pub.pem OCI_DIR=oci job; expect 0 "a job that signs and packs"
[ "$(readlink out/model/latest)" != "$first" ] || { echo "FAILED: the new version is not latest"; exit 1; }
[ -s out/model/latest/model.sig ]
ls oci/*/index.json >/dev/null

recipe out/plain w8a16_g64_sym 0.5
job; expect 0 "a job without versions"
recipe out/plain nonsense 0.5
job; expect 2 "a job whose recipe is wrong"
grep -q nonsense job.err
