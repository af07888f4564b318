// `--ranks` as far as no MPI is needed: what is taken for a launcher, and what is refused. The variables are
// those that launchers set; tests/cli/ranks has real ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/program.h"

namespace llmq::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const Words kThreeOfOpenMpi = {"OMPI_COMM_WORLD_SIZE=3", "OMPI_COMM_WORLD_RANK=0"};

Words small_measurement(const Words& more = {}) {
  Words words = {"eval-ppl", tinystories(), "--context", "32", "--max-windows", "2", "--quiet"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words with(Words environment, const std::string& variable) {
  environment.push_back(variable);
  return environment;
}

TEST(Ranks, MpiIsRefusedWithoutALauncher) {
  const Outcome outcome = run_llmq(small_measurement({"--ranks", "mpi"}));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("no launcher started this process"), HasSubstr("mpirun -n")));
  EXPECT_EQ(run_llmq(small_measurement({"--ranks", "many"})).exit_code, 2);
}

TEST(Ranks, AMissingPluginIsNamed) {
  const Outcome outcome =
      run_llmq(small_measurement(), with(kThreeOfOpenMpi, "LLMQ_MPI_PLUGIN=/nowhere/libllmq_mpi.so"));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("mpirun of Open MPI started 3 processes"),
                                 HasSubstr("/nowhere/libllmq_mpi.so"), HasSubstr("--ranks none")));
  EXPECT_EQ(outcome.out, "");
}

TEST(Ranks, AFileThatIsNoPluginIsNamed) {
  const Outcome outcome =
      run_llmq(small_measurement({"--json"}), with(kThreeOfOpenMpi, "LLMQ_MPI_PLUGIN=libm.so.6"));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.json().at("message").as_string(), HasSubstr("it has no llmq_mpi_table"));
}

TEST(Ranks, OtherCommandsAreRefusedByName) {
  for (const Words& words : {Words{"verify", tinystories()}, Words{"report", tinystories()},
                             Words{"inspect", tinystories(), "--ranks", "mpi"}}) {
    const Outcome outcome = run_llmq(words, kThreeOfOpenMpi);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("llmq " + words.front() + " does not share its work"),
                                   HasSubstr("several can share llmq eval-ppl, convert, merge")));
  }
}

// A script that one rank runs may ask for these, and they do no harm where all do.
TEST(Ranks, CommandsThatOnlyPrintDoSoUnderALauncher) {
  const Words second = {"OMPI_COMM_WORLD_SIZE=3", "OMPI_COMM_WORLD_RANK=1"};
  for (const Words& words : {Words{"inspect", tinystories()},
                             Words{"tokenize", tinystories(), "--text", tinystories() + "/config.json"},
                             Words{"diff", tinystories(), tinystories()}, Words{"estimate", tinystories()},
                             Words{"completion", "bash"}, Words{"man"}, Words{"--version"}}) {
    const Outcome outcome = run_llmq(words, second), alone = run_llmq(words);
    EXPECT_EQ(outcome.exit_code, alone.exit_code) << words.front() << outcome.err;
    EXPECT_THAT(outcome.err, Not(HasSubstr("--ranks"))) << words.front();
    EXPECT_NE(outcome.out, "") << words.front();
  }
}

// A process that is nobody's rank, and has a rank's variables: it waits for rank 0, and is not silent then.
TEST(Ranks, WhoeverHasNoFirstBesideItSaysItItself) {
  const Outcome outcome =
      run_llmq({"verify", tinystories()}, {"OMPI_COMM_WORLD_SIZE=3", "OMPI_COMM_WORLD_RANK=1"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("llmq verify does not share its work"));
}

// Neither asks for a plug-in: there is none at that place.
TEST(Ranks, OneProcessIsAlone) {
  const std::string nowhere = "LLMQ_MPI_PLUGIN=/nowhere/libllmq_mpi.so";
  EXPECT_EQ(
      run_llmq(small_measurement(), {nowhere, "OMPI_COMM_WORLD_SIZE=1", "OMPI_COMM_WORLD_RANK=0"}).exit_code,
      0);
  EXPECT_EQ(run_llmq(small_measurement(), {nowhere, "SLURM_NTASKS=4", "SLURM_PROCID=0"}).exit_code, 0);
  EXPECT_EQ(run_llmq(small_measurement({"--ranks", "none"}), with(kThreeOfOpenMpi, nowhere)).exit_code, 0);
}

}  // namespace
}  // namespace llmq::testing
