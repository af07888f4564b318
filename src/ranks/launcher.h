// Who started this process, and how many beside it, by the environment that launchers give to their ranks.
#pragma once
#include <functional>
#include <optional>
#include <string>

namespace llmq {

inline constexpr const char* kOpenMpiLauncher = "mpirun of Open MPI";

struct Launcher {
  std::string name;  // kOpenMpiLauncher, "mpiexec", "srun", ...
  int rank = 0;
  int size = 0;          // 0: it does not say
  std::string variable;  // that was read: "PMI_SIZE"
};

// The first of these that is set, whichever launcher started the other:
//   OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_RANK   mpirun of Open MPI
//   PMI_SIZE, PMI_RANK                           mpiexec of MPICH, Intel MPI and their kin; srun --mpi=pmi2
//   SLURM_STEP_NUM_TASKS, SLURM_PROCID           srun. A batch script or an interactive shell has no such
//                                                number, or 1, whatever the allocation is
//   PMIX_RANK                                    anything else that speaks PMIx; it does not say how many
// `variable` is getenv, but for tests. A value that is no number does not count.
std::optional<Launcher> seen_launcher(const std::function<const char*(const char*)>& variable);
std::optional<Launcher> seen_launcher();

}  // namespace llmq
