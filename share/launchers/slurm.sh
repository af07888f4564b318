#!/bin/sh
# llmq on several nodes under Slurm, one rank a node:   sbatch -N 4 slurm.sh quantize --recipe job.yaml
# Recipe, model and output lie where all nodes see them. The same command goes on where a run was ended.
#SBATCH --job-name=llmq
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --requeue
# MPI_TYPE: one of `srun --mpi=list`, that of the MPI which the plug-in was built by.
exec srun --mpi="${MPI_TYPE:-pmix}" --kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_ON_NODE:-1}" llmq "$@"
