// What a plan says of ranks, by numbers that were computed by hand from the small model's shapes: two blocks,
// 128 channels, 384 behind the MLP's gate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "job/documents/node_estimate.h"
#include "model/open_checkpoint.h"
#include "quant/plan/ranks/rank_time.h"
#include "quant/plan/ranks/rank_traffic.h"
#include "ranks/thread_ranks.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/job/job_by_ranks.h"

namespace llmq {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RankTraffic traffic_of(const std::string& recipe, int ranks) {
  const Checkpoint checkpoint = open_checkpoint(system_io(), kSharedModel);
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const Plan plan = make_plan(Recipe::parse(recipe, "r.yaml"), checkpoint, spec, Compute::kFloat32, 1, 0);
  return rank_traffic(plan, spec, ranks);
}

std::uint64_t bytes_of(const RankTraffic& traffic, const std::string& what) {
  for (const NamedBytes& part : traffic.parts)
    if (part.what == what) return part.bytes;
  return 0;
}

constexpr std::uint64_t kHidden = 128 * 129 / 2, kInner = 384 * 385 / 2;
constexpr std::uint64_t kBlocks = 2;

TEST(RankTraffic, OfEachInputATriangleGoesToItsOwnersAndComesBack) {
  const RankTraffic found = traffic_of("method: gptq\nscheme: w4a16_g32_sym\ngptq: {upstream_share: 0}\n", 4);
  // Inputs of q, k and v; of o; of gate and up; of down. (N - 1) ranks send each place, and receive it.
  const std::uint64_t places = kBlocks * (3 * kHidden + kInner);
  EXPECT_EQ(bytes_of(found, "Gram triangles"), 2u * 3 * 8 * places);
  EXPECT_EQ(bytes_of(found, "magnitudes of inputs"), 2u * 3 * 12 * kBlocks * (3 * 128 + 384));
  EXPECT_EQ(bytes_of(found, "what upstream error took"), 0u);
  EXPECT_EQ(bytes_of(found, "records of linears"), 14u * 1000 * 3 / 4);
  // Codes, and of each group of 32 a scale and a zero: each rank's go to three others.
  const std::uint64_t weights = kBlocks * (128 * (128 + 64 + 64 + 128) + 3 * 128 * 384);
  EXPECT_EQ(bytes_of(found, "codes and scales"), 3 * (weights + weights / 32 * 5));
  const std::uint64_t rows = kBlocks * (128 + 64 + 64 + 128 + 384 + 384 + 128);
  EXPECT_EQ(bytes_of(found, "what rows lose"), 3 * 3 * 8 * rows);
  // A band comes to its owner three times, and leaves it in a tree of two steps, as codes do.
  const std::uint64_t sums = 16 * places + 24 * kBlocks * (3 * 128 + 384),
                      parts = bytes_of(found, "codes and scales") + bytes_of(found, "what rows lose");
  EXPECT_EQ(found.in_turn, sums / 2 * 5 + parts / 3 * 2 + 10500);
  EXPECT_DOUBLE_EQ(found.seconds(1e6), static_cast<double>(found.in_turn) / 1e6);
}

TEST(RankTraffic, UpstreamErrorAddsTheProductsOfOutputs) {
  const RankTraffic found =
      traffic_of("method: gptq\nscheme: w4a16_g32_sym\ngptq: {upstream_share: 0.5}\n", 2);
  EXPECT_EQ(bytes_of(found, "what upstream error took"), 2u * 8 * kBlocks * (128 * 128 + 128 * 384));
  EXPECT_EQ(bytes_of(found, "Gram triangles"), 2u * 8 * kBlocks * (3 * kHidden + kInner));
}

// Behind v and behind up a search asks for statistics of its own: of a model whose heads share no keys.
TEST(RankTraffic, ASearchBehindALinearIsASumMore) {
  const RankTraffic found = traffic_of("method: awq\nscheme: w4a16_g32_asym\n", 2);
  EXPECT_EQ(bytes_of(found, "Gram triangles"), 2u * 8 * kBlocks * (4 * kHidden + 2 * kInner));
  EXPECT_EQ(bytes_of(found, "sampled rows of inputs"), 0u);
}

TEST(RankTraffic, RowsOfEightBitInputsAreSampled) {
  const RankTraffic found = traffic_of("method: smoothquant\nscheme: w8a8\n", 3);
  EXPECT_GT(bytes_of(found, "sampled rows of inputs"), 2u * 2 * 8 * 512 * kBlocks * (3 * 128 + 384) - 1);
}

// Triangles of every input, and of each row what it loses by 4 and by 8 bits; two blocks of four groups.
TEST(RankTraffic, TheMeasuringPassHasSumsAndLossesOfItsOwn) {
  const RankTraffic found = traffic_of("method: rtn\nscheme: w4a16_g32_asym\ntarget_bits: 5\n", 4);
  const std::uint64_t places = kBlocks * (3 * kHidden + kInner),
                      rows = kBlocks * (128 + 64 + 64 + 128 + 384 + 384 + 128);
  EXPECT_EQ(bytes_of(found, "Gram triangles of the measured samples"), 2u * 3 * 8 * places);
  EXPECT_EQ(bytes_of(found, "magnitudes of their inputs"), 2u * 3 * 12 * kBlocks * (3 * 128 + 384));
  EXPECT_EQ(bytes_of(found, "what rows lose by each candidate"), 3u * 2 * 8 * rows);
  EXPECT_EQ(bytes_of(found, "divergences of groups"), 2u * 3 * 8 * 8);
  EXPECT_EQ(bytes_of(found, "codes and scales of candidates"), 0u);
  EXPECT_EQ(bytes_of(found, "Gram triangles"), 0u);
  EXPECT_EQ(traffic_of("method: rtn\nscheme: w4a16_g32_asym\ntarget_bits: 5\n", 1).bytes(), 0u);
}

// Of whole schemes GPTQ makes codes of each candidate but FP8.
TEST(RankTraffic, WholeSchemesSendTheCodesOfTheirCandidates) {
  const RankTraffic found =
      traffic_of("method: gptq\ntarget_bits: 5\nmixed: {schemes: [w4a16_g32_sym, nvfp4a16, fp8]}\n", 3);
  const std::uint64_t weights = kBlocks * (128 * (128 + 64 + 64 + 128) + 3 * 128 * 384);
  EXPECT_EQ(bytes_of(found, "codes and scales of candidates"),
            2 * (2 * weights + weights / 32 * 5 + weights / 16 * 5));
}

TEST(RankTraffic, RoundingSendsRecordsAndOneRankNothing) {
  const RankTraffic rounding = traffic_of("method: rtn\nscheme: w4a16_g32_sym\n", 2);
  ASSERT_EQ(rounding.parts.size(), 1u);
  EXPECT_EQ(rounding.parts.front().what, "records of linears");
  EXPECT_EQ(rounding.bytes(), 7000u);
  EXPECT_EQ(traffic_of("method: gptq\nscheme: w4a16_g32_sym\n", 1).bytes(), 0u);
}

// Whole jobs over three ranks; what they agree on at the beginning, and counts, are not planned.
TEST(RankTraffic, WhatRanksSendIsWhatWasPlanned) {
  const testing::TemporaryDirectory scratch;
  int number = 0;
  for (const char* recipe :
       {"method: gptq\nscheme: w4a16_g32_sym\n", "method: awq\nscheme: w4a16_g32_asym\n",
        "method: smoothquant\nscheme: w8a8\n", "method: imatrix\nformat: gguf\nscheme: q8_0\n",
        "method: rtn\nscheme: w4a16_g64_asym\ntarget_bits: 5\n",
        "method: gptq\ntarget_bits: 4.6\nmixed: {schemes: [w4a16_g64_sym, w4a16_g32_sym, nvfp4a16, fp8]}\n",
        "method: awq\ntarget_bits: 4.6\nmixed: {schemes: [w4a16_g64_sym, w4a16_g32_sym, nvfp4a16, fp8]}\n"}) {
    QuantizeRequest request{};
    request.paranoid = true;
    request.recipe =
        Recipe::parse(std::string(recipe) + "calibration: {samples: 17, sequence_length: 512}\n", "r.yaml");
    request.recipe.model = kSharedModel;
    request.recipe.output = (scratch / (std::to_string(++number) + ".gguf")).string();
    double planned = 0;
    const Json document = job_by_ranks(
        request, 3, 1, [](int) {},
        [&](QuantizeJob& job) { planned = static_cast<double>(job.form().over_ranks(3).traffic.bytes()); });
    const double sent = document.at("ranks").at("traffic_bytes").as_double();
    EXPECT_NEAR(sent / planned, 1, 0.05) << recipe << sent << " of " << planned;
  }
}

// By hand: out K^2 of seven linears beside K^3 of four inputs.
TEST(RankTime, RoundingIsDealtAsFarAsItGoesByRows) {
  const Checkpoint checkpoint = open_checkpoint(system_io(), kSharedModel);
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const auto dealt = [&](const std::string& recipe) {
    return dealt_rounding(
        make_plan(Recipe::parse(recipe, "r.yaml"), checkpoint, spec, Compute::kFloat32, 1, 0), spec);
  };
  const double rows = 128.0 * 128 * (128 + 64 + 64 + 128 + 2 * 384) + 384.0 * 384 * 128,
               factors = 3 * 128.0 * 128 * 128 + 384.0 * 384 * 384;
  EXPECT_NEAR(dealt("method: gptq\nscheme: w4a16_g32_sym\n"), rows / (rows + factors), 1e-12);
  EXPECT_EQ(dealt("method: awq\nscheme: w4a16_g32_asym\n"), 1);
  EXPECT_EQ(dealt("method: awq\nscheme: w4a16_g32_asym\nawq: {clip: false}\n"), 0);
  EXPECT_EQ(dealt("method: rtn\nscheme: w4a16_g32_asym\n"), 0);
}

TEST(RankTime, EachPartIsDividedByWhatRanksShareOfIt) {
  const SecondsByPart parts = {
      {"forward and statistics", 80}, {"rounding", 8}, {"writing", 6}, {"scale search", 4}, {"reading", 2}};
  const RankShares calibrated{10, 3, false, 0.5}, rounded{0, 3, false, 0}, file{10, 1, true, 0};
  EXPECT_DOUBLE_EQ(shared_seconds(parts, calibrated, 1), 100);
  // of 10 chunks one of 4 ranks has 3; of half of the rounding a quarter; of 3 shards 1; the rest each does
  EXPECT_DOUBLE_EQ(shared_seconds(parts, calibrated, 4), 80 * 0.3 + 4 + 4.0 / 4 + 6.0 / 3 + 4 * 0.3 + 2);
  EXPECT_DOUBLE_EQ(shared_seconds({{"rounding", 9}, {"writing", 3}}, rounded, 2), 8);
  EXPECT_DOUBLE_EQ(shared_seconds({{"importance", 10}, {"rounding", 8}, {"writing", 1}}, file, 4), 3 + 2 + 1);
  EXPECT_EQ(calibrated.most_ranks(), 10);
  EXPECT_EQ(rounded.most_ranks(), 3);
}

// Of 3 chunks of the measured samples one of 2 ranks has 2; what is dealt is halved, the rest each does.
TEST(RankTime, TheMeasuringPassIsDividedByWhatItIsMadeOf) {
  RankShares shares{0, 3, false, 0};
  shares.measured_chunks = 3, shares.measured_by_samples = 0.3, shares.measured_dealt = 0.5;
  shares.sample_chunks = 24;
  EXPECT_DOUBLE_EQ(shares.of_part(kMeasuringPart, 1), 1);
  EXPECT_DOUBLE_EQ(shares.of_part(kMeasuringPart, 2), 0.2 + 0.25 + 0.2);
  EXPECT_DOUBLE_EQ(shares.of_part(kMeasuringPart, 6), 0.1 + 0.5 / 6 + 0.2);
  EXPECT_EQ(shares.most_ranks(), 24) << "ranks without a shard still measure";
}

TEST(RankTime, NodesPayWhileADoublingSavesAQuarter) {
  EXPECT_THAT(counts_of_nodes(1), ElementsAre(1));
  EXPECT_THAT(counts_of_nodes(6), ElementsAre(1, 2, 4, 6));
  EXPECT_THAT(counts_of_nodes(8), ElementsAre(1, 2, 4, 8));
  const auto of = [](const std::vector<std::pair<int, double>>& all) {
    std::vector<NodeCount> nodes;
    for (const auto& [count, seconds] : all) {
      nodes.emplace_back();
      nodes.back().nodes = count;
      nodes.back().seconds = seconds;
    }
    return nodes;
  };
  EXPECT_EQ(paying_nodes(of({{1, 100}})), 1);
  EXPECT_EQ(paying_nodes(of({{1, 100}, {2, 75}, {4, 57}, {8, 10}})), 2);  // what comes later does not count
  EXPECT_EQ(paying_nodes(of({{1, 100}, {2, 76}})), 1);
  // from 4 to 6 nodes is 0.585 of a doubling
  EXPECT_EQ(paying_nodes(of({{1, 100}, {2, 60}, {4, 40}, {6, 34}})), 6);
  EXPECT_EQ(paying_nodes(of({{1, 100}, {2, 60}, {4, 40}, {6, 34.4}})), 4);
}

// A rank holds the residual stream of its own chunks.
TEST(RankMemory, ARankHoldsItsChunks) {
  const Checkpoint checkpoint = open_checkpoint(system_io(), kSharedModel);
  const ModelSpec spec = ModelSpec::read(checkpoint);
  Plan plan = make_plan(Recipe::parse("method: awq\nscheme: w4a16_g32_asym\n"
                                      "calibration: {samples: 320, sequence_length: 512}\n",
                                      "r.yaml"),
                        checkpoint, spec, Compute::kFloat32, 1, 0);
  EXPECT_EQ(plan.chunks(), 40);
  const auto peak = [&](int ranks) {
    plan.ranks = ranks;
    return static_cast<double>(estimate_costs(plan, checkpoint, spec, 1).peak_bytes);
  };
  EXPECT_EQ((plan.ranks = 3, plan.most_chunks()), 14);
  // 160 Ki tokens of 128 FP32 of the stream and of 384 behind the gate: what half of them take is saved
  const double saved = peak(1) - peak(2), half = 81920.0 * 4 * (128 + 384);
  EXPECT_GT(saved, 0.9 * half);
  EXPECT_LT(saved, 1.2 * half);
}

// A stream of probes for each fork of its own beside the original's, and its chunks of the measured samples.
TEST(RankMemory, ARankCarriesItsProbes) {
  const Checkpoint checkpoint = open_checkpoint(system_io(), kSharedModel);
  const ModelSpec spec = ModelSpec::read(checkpoint);
  Plan plan = make_plan(Recipe::parse("method: rtn\nscheme: w4a16_g32_asym\ntarget_bits: 5\n"
                                      "mixed: {samples: 64}\ncalibration: {sequence_length: 512}\n",
                                      "r.yaml"),
                        checkpoint, spec, Compute::kFloat32, 1, 0);
  const auto held = [&](int ranks, const std::string& what) {
    plan.ranks = ranks;
    for (const MemoryItem& item : estimate_costs(plan, checkpoint, spec, 1).memory)
      if (item.what == what) return item.bytes;
    return std::uint64_t{0};
  };
  const auto probes = [&](int ranks) { return held(ranks, "a stream of probes for each group of linears"); };
  EXPECT_EQ(probes(1) - probes(2), 4u * 256 * 128 * 4);
  EXPECT_EQ(probes(2) - probes(4), 2u * 256 * 128 * 4);
  const auto samples = [&](int ranks) { return held(ranks, "activations of the measured samples"); };
  // 8 chunks of 4,096 tokens: residual streams and inputs behind the gate
  EXPECT_EQ(samples(1) - samples(2), 4u * 4096 * 4 * (128 + 384));
  EXPECT_EQ(samples(2) - samples(8), 3u * 4096 * 4 * (128 + 384));
}

TEST(NodeEstimate, SaysWhatMoreNodesThanChunksWouldDo) {
  const testing::TemporaryDirectory scratch;
  QuantizeRequest request{};
  request.recipe = Recipe::parse(
      "method: gptq\nscheme: w4a16_g32_sym\ncalibration: {samples: 12, sequence_length: 512}\n", "r.yaml");
  request.recipe.model = kSharedModel;
  request.recipe.output = (scratch / "out").string();
  JobSettings settings;
  settings.devices = {make_cpu_backend(1)};
  QuantizeJob job(system_io(), request, settings);
  const NodeEstimate found = estimate_nodes(job, "MODEL", 64, 1e9);
  ASSERT_THAT(found.nodes, ::testing::SizeIs(2));  // two chunks of 8 samples
  EXPECT_EQ(found.nodes.back().nodes, 2);
  EXPECT_GT(found.nodes.back().traffic_bytes, 0u);
  EXPECT_DOUBLE_EQ(found.nodes.back().network_seconds * 1e9,
                   static_cast<double>(job.form().over_ranks(2).traffic.in_turn));
  EXPECT_THAT(found.said(),
              ::testing::AnyOf(HasSubstr("2 chunks of samples"), HasSubstr("stops paying at 1")));
  EXPECT_EQ(found.to_json().at("nodes").items().size(), 2u);
}

}  // namespace
}  // namespace llmq
