// Rounding, calibration and conversions that ranks share: the bytes and the report of one process, whatever
// their number, in one run or begun by so many and ended by others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <limits>
#include <optional>

#include "base/error.h"
#include "job/conversion_job.h"
#include "job/quantize_job.h"
#include "model/open_checkpoint.h"
#include "ranks/thread_ranks.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/job/job_by_ranks.h"

namespace llmq {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct RankStopped {};

// Of a block of the model.
constexpr double kChannelsOfInputs[] = {128, 128, 128, 384}, kWeights = 128 * (3 * 128 + 3 * 384);

class SharedOutput : public ::testing::Test {
 protected:
  QuantizeRequest request(const std::string& output, const std::vector<std::string>& settings) const {
    return shared_request((scratch_ / output).string(), settings);
  }

  static Json convert(ConvertRequest asked, int ranks) {
    Json document;
    run_as_ranks(ranks, [&](Ranks& rank) {
      ConvertRequest mine = asked;
      mine.target.ranks = &rank;
      const auto end = run_conversion(system_io(), mine, true, kSharingProgram);
      if (rank.rank() != 0) return;
      document = std::holds_alternative<ConvertReport>(end) ? std::get<ConvertReport>(end).to_json()
                                                            : std::get<PublishedOutput>(end).report;
    });
    return document;
  }

  // The report without what depends on time, on memory and on how the work was cut.
  Json report_of(const std::string& output) const {
    Json report = Json::parse(scratch_.read(output + "/report.json"), output);
    for (const char* elsewhere : {"seconds", "seconds_by_part", "memory", "resumed_blocks", "disk", "ranks",
                                  "recipe", "prediction", "loaders"})
      report.erase(elsewhere);
    return report;
  }

  std::vector<std::string> shards_of(const std::string& output) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(scratch_ / output))
      if (entry.path().extension() == ".safetensors") names.push_back(entry.path().filename().string());
    return names;
  }

  template <class Work>
  static std::string refusal(const Work& work) {
    try {
      work();
    } catch (const RanksRefused& refused) {
      return std::string(refused.what()) + "; " + refused.detail().hint;
    }
    return "it began";
  }

  testing::TemporaryDirectory scratch_;
};

// Groups, channels, blocks, scales of two levels over fused linears, floats; shards so small that linears lie
// across their borders.
TEST_F(SharedOutput, RoundingWritesTheBytesAndTheReportOfOneProcess) {
  int number = 0;
  for (const std::vector<std::string>& scheme : std::vector<std::vector<std::string>>{
           {"scheme=w4a16_g32_asym"},
           {"scheme=w4a16_g32_sym", "format=gptq"},
           {"scheme=fp8"},
           {"scheme=w8a8"},
           {"scheme=nvfp4a16"},
           {"scheme=mxfp4"},
           {"scheme=w8a16_channel_sym", "ignore=[lm_head, 're:.*layers.1.*o_proj']"}}) {
    SCOPED_TRACE(scheme.front());
    std::vector<std::string> keys = {"method=rtn", "shard_bytes=50000"};
    keys.insert(keys.end(), scheme.begin(), scheme.end());
    const std::string whole = "whole" + std::to_string(++number);
    const Json once = job_by_ranks(request(whole, keys), 1);
    ASSERT_GT(shards_of(whole).size(), 4u);
    for (const int ranks : {2, 3, 4}) {
      const std::string name = fmt::format("shared{}-{}", number, ranks);
      const Json shared = job_by_ranks(request(name, keys), ranks, 1 + ranks % 2);
      EXPECT_EQ(shared.at("digest"), once.at("digest")) << ranks << " ranks";
      EXPECT_EQ(output_digest(system_io(), scratch_ / name), once.at("digest").as_string());
      EXPECT_EQ(report_of(name), report_of(whole)) << ranks << " ranks";
      EXPECT_FALSE(std::filesystem::exists(scratch_ / (name + ".unfinished")));
    }
  }
}

// Two chunks of samples and a rest, which is the second rank's.
TEST_F(SharedOutput, CalibrationWritesTheBytesAndTheReportOfOneProcess) {
  const std::vector<std::string> keys = {"method=gptq", "scheme=w4a16_g32_sym", "calibration.samples=33",
                                         "shard_bytes=50000", "calibration.sequence_length=128"};
  const Json once = job_by_ranks(request("whole", keys), 1),
             shared = job_by_ranks(request("shared", keys), 2, 2);
  EXPECT_EQ(shared.at("digest"), once.at("digest"));
  EXPECT_EQ(output_digest(system_io(), scratch_ / "shared"), once.at("digest").as_string());
  EXPECT_EQ(report_of("shared"), report_of("whole"));
  EXPECT_EQ(once.find("ranks"), nullptr);
  EXPECT_EQ(shared.at("ranks").at("count"), Json(2));
  // Of both blocks, two triangles of 8 bytes a place for each input, a byte for each weight, and little else.
  double sums = 0;
  for (const double channels : kChannelsOfInputs) sums += channels * (channels + 1) / 2;
  const double told = shared.at("ranks").at("traffic_bytes").as_double();
  EXPECT_NEAR(told / (2 * (2 * 8 * sums + kWeights)), 1, 0.1);
}

TEST_F(SharedOutput, RanksWithoutAShardHaveNothingToDo) {
  const std::vector<std::string> keys = {"method=rtn", "scheme=w4a16_g32_asym"};
  const Json once = job_by_ranks(request("whole", keys), 1),
             shared = job_by_ranks(request("shared", keys), 3);
  EXPECT_EQ(shards_of("shared").size(), 1u);
  EXPECT_EQ(shared.at("digest"), once.at("digest"));
}

// A rank is stopped at some of its linears; another number of ranks goes on.
TEST_F(SharedOutput, AnotherNumberOfRanksGoesOn) {
  const std::vector<std::string> keys = {"method=rtn", "scheme=nvfp4a16", "shard_bytes=30000"};
  const Json once = job_by_ranks(request("whole", keys), 1);
  int run_number = 0, resumed = 0;
  for (const auto& [before, after] : std::vector<std::pair<int, int>>{{3, 1}, {1, 3}, {2, 4}, {4, 2}})
    for (const int victim : {0, before - 1})
      for (const int step : {0, 4, 12}) {
        SCOPED_TRACE(fmt::format("rank {} of {} stops at step {}, {} go on", victim, before, step, after));
        const QuantizeRequest asked = request("parts" + std::to_string(++run_number), keys);
        std::atomic<int> left = step;
        bool stopped = false;
        try {
          job_by_ranks(asked, before, 1, [&, victim = victim](int rank) {
            if (rank == victim && left-- == 0) throw RankStopped();
          });
        } catch (const RankStopped&) {
          stopped = true;
        }
        EXPECT_FALSE(stopped && std::filesystem::exists(asked.recipe.output));
        const Json done = job_by_ranks(asked, after, 2);
        EXPECT_EQ(done.at("digest"), once.at("digest"));
        EXPECT_EQ(output_digest(system_io(), asked.recipe.output), once.at("digest").as_string());
        if (done.at("status") == Json("done")) {
          EXPECT_EQ(report_of("parts" + std::to_string(run_number)).at("modules"),
                    report_of("whole").at("modules"));
          resumed += done.at("resumed_blocks").as_integer() > 0;
        }
      }
  EXPECT_GT(resumed, 0) << "no run went on behind a block";
}

TEST_F(SharedOutput, WhatIsThereAlreadyIsNotDoneAgain) {
  const std::vector<std::string> keys = {"method=rtn", "scheme=w4a16_g32_asym", "shard_bytes=50000"};
  const Json once = job_by_ranks(request("q", keys), 2), again = job_by_ranks(request("q", keys), 3);
  EXPECT_EQ(again.at("status"), Json("unchanged"));
  EXPECT_EQ(again.at("digest"), once.at("digest"));
}

TEST_F(SharedOutput, ConversionsWriteTheBytesOfOneProcess) {
  job_by_ranks(request("packed", {"method=rtn", "scheme=w4a16_g32_asym", "format=awq"}), 1);
  const struct {
    std::string source, to;
    std::optional<std::string> dtype;
  } cases[] = {{kSharedModel, "safetensors", "bf16"},
               {kSharedModel, "safetensors", std::nullopt},
               {kSharedModel, "bitsandbytes", std::nullopt},
               {(scratch_ / "packed").string(), "safetensors", "f32"},
               {(scratch_ / "packed").string(), "compressed-tensors", std::nullopt}};
  int number = 0;
  for (const auto& one : cases) {
    SCOPED_TRACE(one.source + " to " + one.to);
    ConvertRequest asked;
    asked.source = one.source, asked.to = one.to, asked.dtype = one.dtype;
    asked.split_max_size = 70000;
    const std::string whole = fmt::format("c{}", ++number);
    asked.target.directory = scratch_ / whole;
    const Json once = convert(asked, 1);
    ASSERT_GT(shards_of(whole).size(), 4u);
    for (const int ranks : {2, 3}) {
      asked.target.directory = scratch_ / fmt::format("{}-{}", whole, ranks);
      const Json shared = convert(asked, ranks);
      EXPECT_EQ(shared.at("digest"), once.at("digest"));
      EXPECT_EQ(shared.at("bytes_out"), once.at("bytes_out"));
      EXPECT_EQ(convert(asked, 4).at("digest"), once.at("digest")) << "it is there, unchanged";
    }
  }
}

TEST_F(SharedOutput, WhatIsNotSharedIsRefusedByName) {
  const auto refused = [&](const std::vector<std::string>& keys) {
    return refusal([&] { job_by_ranks(request("none", keys), 2); });
  };
  EXPECT_THAT(
      refused({"method=awq", "scheme=w4a16_g32_asym", "calibration.samples=4",
               "calibration.sequence_length=128"}),
      AllOf(HasSubstr("2 ranks are more than the 1 chunk that the 4 calibration samples are dealt in"),
            HasSubstr("start at most 1 of them, or take at least 33 samples"), Not(HasSubstr("rank 1"))));
  ConvertRequest asked;
  asked.source = kSharedModel;
  asked.to = "awq", asked.target.directory = scratch_ / "none";
  EXPECT_THAT(refusal([&] { convert(asked, 2); }),
              AllOf(HasSubstr("the checkpoint is not quantized"), Not(HasSubstr("rank 1"))));
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "none.unfinished"));
}

TEST_F(SharedOutput, RanksWithOtherInputsOrWordsAreRefused) {
  std::filesystem::copy(kSharedModel, scratch_ / "copy");
  scratch_.write("copy/config.json", scratch_.read("copy/config.json") + "\n");
  const auto refused = [&](const std::function<void(QuantizeRequest&)>& change) {
    return refusal([&] {
      run_as_ranks(2, [&](Ranks& rank) {
        QuantizeRequest mine = request("none", {"method=rtn", "scheme=w4a16_g32_asym"});
        if (rank.rank() == 1) change(mine);
        std::optional<QuantizeJob> job;
        begin_together(
            rank, [&] { job.emplace(system_io(), mine, settings_of_rank(rank)); },
            [&] { return job->facts(); });
        job->run();
      });
    });
  };
  EXPECT_THAT(refused([&](QuantizeRequest& mine) { mine.recipe.model = (scratch_ / "copy").string(); }),
              AllOf(HasSubstr("rank 1"), HasSubstr("another model/config.json than rank 0"),
                    HasSubstr("give every rank the same files")));
  EXPECT_THAT(refused([&](QuantizeRequest& mine) { mine.recipe.set("scheme=w8a16_g32_asym"); }),
              AllOf(HasSubstr("another recipe.scheme.bits than rank 0"), HasSubstr("8, and not 4")));
  for (const char* name : {"none", "none.unfinished"})
    EXPECT_FALSE(std::filesystem::exists(scratch_ / name)) << name;
}

// The lock is rank 0's, and the sentence of one process is that of all.
TEST_F(SharedOutput, AnOutputAtWorkIsRefused) {
  const std::vector<std::string> keys = {"method=rtn", "scheme=w4a16_g32_asym"};
  std::string told;
  job_by_ranks(request("q", keys), 1, 1, [&](int) {
    if (told.empty()) told = refusal([&] { job_by_ranks(request("q", keys), 2); });
  });
  EXPECT_THAT(told, HasSubstr("another llmq is at work on this output"));
}

// Values that are not finite, where they are allowed: warned of as one process warns, in its order.
TEST_F(SharedOutput, WarningsComeInTheOrderOfOneProcess) {
  std::filesystem::copy(kSharedModel, scratch_ / "m");
  const Checkpoint checkpoint = open_checkpoint(system_io(), (scratch_ / "m").string());
  std::vector<std::pair<Path, std::uint64_t>> places;
  for (const char* name :
       {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight",
        "model.layers.1.self_attn.o_proj.weight", "model.norm.weight",
        "model.layers.0.input_layernorm.weight", "model.layers.0.post_attention_layernorm.weight",
        "model.layers.1.input_layernorm.weight", "model.layers.1.post_attention_layernorm.weight"}) {
    const StoredTensor& tensor = checkpoint.at(name);
    ASSERT_EQ(tensor.view.dtype, DType::kF32);
    places.emplace_back(scratch_ / "m/model.safetensors", tensor.offset);
  }
  for (const auto& place : places) {
    const float infinity = std::numeric_limits<float>::infinity();
    system_io().open_to_write(place.first)->write_at(place.second, std::as_bytes(std::span(&infinity, 1)));
  }
  const auto warnings = [&](const std::string& output, int ranks) {
    QuantizeRequest asked = request(output, {"method=rtn", "scheme=w4a16_g32_asym", "shard_bytes=50000"});
    asked.recipe.model = (scratch_ / "m").string();
    asked.allow_nonfinite = true;
    return job_by_ranks(asked, ranks).at("warnings");
  };
  const Json once = warnings("one", 1);
  EXPECT_GE(once.items().size(), 8u);
  EXPECT_EQ(warnings("three", 3), once);
}

}  // namespace
}  // namespace llmq
