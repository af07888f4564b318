// Mixed precision that ranks share, from the recipe to the published output: figures, choice and bytes of one
// process; begun by so many ranks and ended by others; a dry run; what nodes would take.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "job/documents/node_estimate.h"
#include "quant/mixed_precision/sensitivity.h"
#include "tests/support/killing_io.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/job/job_by_ranks.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;

struct EndsHere {};

// Four chunks of samples, of which two are measured.
const std::vector<std::string> kIntegers = {"method=gptq", "scheme=w4a16_g32_sym", "target_bits=5"};
const std::vector<std::string> kSchemes = {
    "method=awq", "mixed.schemes=[w4a16_g64_sym, w4a16_g32_sym, nvfp4a16, fp8]", "target_bits=4.6"};

class SharedMixed : public ::testing::Test {
 protected:
  QuantizeRequest request(const std::string& output, std::vector<std::string> settings) const {
    for (const char* more : {"shard_bytes=50000", "calibration.samples=100",
                             "calibration.sequence_length=128", "mixed.samples=40"})
      settings.emplace_back(more);
    return shared_request((scratch_ / output).string(), settings);
  }
  Json mixed_of(const std::string& output) const {
    return Json::parse(scratch_.read(output + "/report.json"), output).at("mixed");
  }

  testing::TemporaryDirectory scratch_;
};

TEST_F(SharedMixed, TheChoiceAndTheBytesAreThoseOfOneProcess) {
  int number = 0;
  for (const auto& keys : {kIntegers, kSchemes}) {
    SCOPED_TRACE(keys.front());
    const std::string whole = fmt::format("whole{}", ++number);
    const Json once = job_by_ranks(request(whole, keys), 1);
    for (const int ranks : number == 1 ? std::vector<int>{2, 3, 4} : std::vector<int>{3}) {
      const std::string name = fmt::format("shared{}-{}", number, ranks);
      const Json shared = job_by_ranks(request(name, keys), ranks, 1 + ranks % 2);
      EXPECT_EQ(shared.at("digest"), once.at("digest")) << ranks << " ranks";
      EXPECT_EQ(output_digest(system_io(), scratch_ / name), once.at("digest").as_string());
      EXPECT_EQ(mixed_of(name), mixed_of(whole)) << ranks << " ranks";
    }
  }
}

// Ended at the first linear behind the pass; the journal has what was measured.
TEST_F(SharedMixed, AnotherNumberOfRanksGoesOnBehindThePass) {
  const Json once = job_by_ranks(request("whole", kIntegers), 1);
  int number = 0;
  for (const auto& [before, after] : std::vector<std::pair<int, int>>{{3, 1}, {2, 4}}) {
    SCOPED_TRACE(fmt::format("{} ranks, then {}", before, after));
    const std::string name = fmt::format("parts{}", ++number);
    int steps = 0;
    EXPECT_THROW(job_by_ranks(request(name, kIntegers), before, 1,
                              [&](int rank) {
                                if (rank == 0 && steps++ == 4) throw EndsHere();  // two blocks are measured
                              }),
                 EndsHere);
    const Json done = job_by_ranks(request(name, kIntegers), after, 2);
    EXPECT_EQ(done.at("digest"), once.at("digest"));
    EXPECT_EQ(done.at("mixed").at("measured_before"), Json(true));
    EXPECT_EQ(mixed_of(name).at("choices"), mixed_of("whole").at("choices"));
  }
}

TEST_F(SharedMixed, MoreRanksThanChunksAreRefused) {
  QuantizeRequest asked = request("none", kIntegers);
  asked.recipe.set("calibration.samples=40");
  try {
    job_by_ranks(asked, 3);
    ADD_FAILURE() << "it began";
  } catch (const RanksRefused& refused) {
    EXPECT_THAT(refused.what(), HasSubstr("3 ranks are more than the 2 chunks"));
  }
}

// All ranks complete the plan, and rank 0 alone shows it.
TEST_F(SharedMixed, ADryRunIsSharedToo) {
  double whole = 0;
  for (const int count : {1, 2})
    run_as_ranks(count, [&](Ranks& rank) {
      QuantizeJob job(system_io(), request("none", kIntegers), settings_of_rank(rank));
      job.choose_bits();
      if (rank.rank() != 0) return;
      const JobPreview preview = job.preview();
      EXPECT_EQ(preview.time.parts.back().first, kMeasuringPart);
      const Plan& plan = *std::get<const Plan*>(job.form().plan());
      ASSERT_TRUE(plan.mixed.has_value());
      if (count == 1) whole = plan.mixed->divergence;
      EXPECT_EQ(plan.mixed->divergence, whole);
    });
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "none.unfinished"));
}

TEST_F(SharedMixed, NodesSayWhatSharingThePassWouldSave) {
  JobSettings settings;
  settings.devices = {make_cpu_backend(1)};
  for (const auto& keys :
       {kIntegers, std::vector<std::string>{"method=rtn", "scheme=w4a16_g64_asym", "target_bits=5"}}) {
    QuantizeJob job(system_io(), request("none", keys), settings);
    const NodeEstimate found = estimate_nodes(job, "MODEL", 64, 1e9);
    EXPECT_EQ(found.nodes.back().nodes, 4) << "as many as chunks of samples";
    EXPECT_EQ(found.parts.back().first, kMeasuringPart);
    const RankShares shares = job.form().shares();
    EXPECT_EQ(shares.measured_chunks, 2);
    EXPECT_DOUBLE_EQ(shares.of_part(kMeasuringPart, 1), 1);
    EXPECT_LT(shares.of_part(kMeasuringPart, 2), 0.7);
    EXPECT_GE(shares.of_part(kMeasuringPart, 4), 0.25);
  }
}

}  // namespace
}  // namespace llmq
