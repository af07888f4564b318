// Launchers by the variables that they are known to set, and what is none.
#include "ranks/launcher.h"

#include <gtest/gtest.h>

#include <map>

namespace llmq {
namespace {

using Variables = std::map<std::string, std::string>;

std::string seen(const Variables& variables) {
  const auto found = seen_launcher([&](const char* name) -> const char* {
    const auto at = variables.find(name);
    return at == variables.end() ? nullptr : at->second.c_str();
  });
  if (!found) return "none";
  EXPECT_TRUE(variables.count(found->variable)) << found->variable;
  return found->name + " " + std::to_string(found->rank) + "/" + std::to_string(found->size);
}

TEST(Launcher, EachIsKnownByItsVariables) {
  EXPECT_EQ(seen({{"OMPI_COMM_WORLD_SIZE", "3"}, {"OMPI_COMM_WORLD_RANK", "2"}, {"PMIX_RANK", "2"}}),
            "mpirun of Open MPI 2/3");
  EXPECT_EQ(seen({{"PMI_SIZE", "4"}, {"PMI_RANK", "0"}}), "mpiexec 0/4");
  EXPECT_EQ(seen({{"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_PROCID", "7"}, {"PMIX_RANK", "7"}}), "srun 7/8");
  EXPECT_EQ(seen({{"PMIX_RANK", "5"}}), "a launcher that speaks PMIx 5/0");
}

// mpirun in an allocation starts its daemons by srun, and what it starts inherits their numbers.
TEST(Launcher, TheFirstOfTheTableCounts) {
  EXPECT_EQ(seen({{"SLURM_STEP_NUM_TASKS", "2"},
                  {"SLURM_PROCID", "1"},
                  {"OMPI_COMM_WORLD_SIZE", "6"},
                  {"OMPI_COMM_WORLD_RANK", "4"}}),
            "mpirun of Open MPI 4/6");
  EXPECT_EQ(seen({{"PMI_SIZE", "2"},
                  {"PMI_RANK", "1"},
                  {"OMPI_COMM_WORLD_SIZE", "6"},
                  {"OMPI_COMM_WORLD_RANK", "4"}}),
            "mpirun of Open MPI 4/6")
      << "though mpiexec may be the inner one";
}

TEST(Launcher, AnAllocationIsNone) {
  EXPECT_EQ(seen({}), "none");
  EXPECT_EQ(seen({{"SLURM_NTASKS", "16"}, {"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "1"}}), "none");
  EXPECT_EQ(seen({{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}), "srun 0/1");
}

TEST(Launcher, WhatIsNoNumberDoesNotCount) {
  EXPECT_EQ(seen({{"PMI_SIZE", "many"}, {"PMI_RANK", "0"}}), "none");
  EXPECT_EQ(seen({{"PMI_SIZE", "2"}}), "none");
  EXPECT_EQ(seen({{"PMI_SIZE", "0"}, {"PMI_RANK", "0"}}), "none");
  EXPECT_EQ(seen({{"PMI_SIZE", ""}, {"PMI_RANK", "-1"}}), "none");
}

}  // namespace
}  // namespace llmq
