#!/usr/bin/env bash
# Installs the pinned peers a check needs, once, and runs it.   run_check.sh NAME PROGRAM
# Peers live in $LLMQ_PEERS (default ~/.cache/llmq-peers), one environment each. Where PyPI is out of reach the check is skipped (77), in words; any
# other failure to install is a failure, so that with PyPI in reach no check can be skipped.
set -uo pipefail
name=$1; llmq=$(realpath "$2")
here=$(cd "$(dirname "$0")" && pwd)
peers=${LLMQ_PEERS:-$HOME/.cache/llmq-peers}
mkdir -p "$peers"

packages() {
  case $1 in
    transformers) echo torch==2.15.0 transformers==5.23.0 tokenizers==0.23.3 compressed-tensors==0.20.0 safetensors numpy gguf==0.19.0 accelerate ;;
    gptqmodel) echo gptqmodel==7.7.0 ;;
  esac
}
environment_of() { case $1 in awq_gemm) echo gptqmodel ;; *) echo transformers ;; esac; }

reachable() { python3 -m pip download -q --disable-pip-version-check --no-deps --no-cache-dir --timeout 30 --retries 1 -d "$(mktemp -d)" six==1.16.0 >/dev/null 2>&1; }

environment=$(environment_of "$name")
python=$peers/$environment/bin/python
if [ ! -e "$peers/$environment/.ready" ]; then
  # shellcheck disable=SC2046
  if ! { [ -x "$python" ] || python3 -m venv "$peers/$environment"; } || ! "$python" -m pip install -q --disable-pip-version-check $(packages "$environment"); then
    if reachable; then echo "FAILED: the peers of $environment could not be installed although PyPI answers"; exit 1; fi
    echo "SKIPPED: interop/$name needs $environment from PyPI, which is out of reach here"
    exit 77
  fi
  touch "$peers/$environment/.ready"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
GPTQMODEL_CPU_WORKERS=2 CUDA_VISIBLE_DEVICES="" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false "$python" "$here/${name}_check.py" "$llmq" "$work"
