#!/bin/sh
# llmq on several machines by Open MPI, one rank each:   HOSTS=node1,node2,node3 mpirun.sh quantize --recipe job.yaml
# Recipe, model and output lie where all of them see them. Without HOSTS: on this machine, RANKS of them.
set -eu
if [ -n "${HOSTS:-}" ]; then
  exec mpirun --host "$HOSTS" --map-by ppr:1:node --bind-to none llmq "$@"
fi
exec mpirun -n "${RANKS:-2}" --bind-to none llmq "$@"
