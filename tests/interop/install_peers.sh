#!/usr/bin/env bash
# Installs what the checks need, one environment after another, beside other tests.   install_peers.sh PROGRAM [ahead]
# ahead: while PROGRAM is still built, which no installation needs.
# What could not be had, each check that needs it says by itself, as failed or as skipped.
here=$(cd "$(dirname "$0")" && pwd)
[ "${2:-}" = ahead ] || export LLMQ_SERVE=$PPID
LLMQ_ONLY_INSTALL=1 "$here/run_check.sh" logits "$1" || true  # whose environment most checks have: ctest's are forks of one process
unset LLMQ_SERVE
for check in gptq compressed_tensors model_signing openai mlx wheel smollm2; do  # one of each environment, and of those with a file
  LLMQ_ONLY_INSTALL=1 "$here/run_check.sh" $check "$1" || true
done
