// Bits by budget over a real two-block model: the budget is kept, what engines fuse stays together, threads
// do not matter, what cannot be is refused with what would do, and the choice is worth its bits.
#include "quant/mixed_precision/mixed_precision.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "captured_output.h"
#include "export/formats/packed_formats.h"
#include "quant/mixed_precision/sensitivity.h"
#include "quant/plan/disk_reads.h"

namespace llmq {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

struct Chosen {
  Plan plan;
  std::string table;
};

Chosen choose(const std::string& recipe, int threads = 2) {
  const Checkpoint checkpoint = stories();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const auto backend = make_cpu_backend(threads);
  const Plan plan =
      make_plan(Recipe::parse(recipe, "r.yaml"), checkpoint, spec, Compute::kFloat32, threads, 0);
  const auto measured = measure_candidates(plan, checkpoint, spec, some_samples(3, 40), *backend, {});
  // As an interrupted run finds it in the journal.
  const auto read = read_measured(Json::parse(measured_json(measured).dump(), "journal"), plan);
  EXPECT_TRUE(read.has_value());
  const MixedPrecision choice = choose_precision(plan, spec, read.value_or(measured), checkpoint);
  return {plan_with_bits(plan, choice, "r.yaml", checkpoint, spec, threads, 0), choice.to_json().dump()};
}

TEST(MixedPrecision, APassOverAnotherPlanIsNotTakenUp) {
  const Checkpoint checkpoint = stories();
  const Plan plan =
      make_plan(Recipe::parse("method: gptq\nscheme: w4a16_g64_asym\ntarget_bits: 5\n", "r.yaml"), checkpoint,
                ModelSpec::read(checkpoint), Compute::kFloat32, 1, 0);
  std::vector<MeasuredGroup> groups;
  for (std::size_t place = 0; place < plan.modules.size(); ++place)
    groups.push_back({{place}, 0.1 + 1.0 / 3, std::vector<double>(plan.candidate_bits.size(), 1e-300), {}});
  const Json sound = measured_json(groups);
  const auto read = read_measured(Json::parse(sound.dump(), "journal"), plan);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->back().divergence, groups.back().divergence) << "to the last bit";
  EXPECT_EQ(read->back().gram_loss, groups.back().gram_loss);

  const auto damaged = [&](const std::function<void(Json&)>& damage) {
    Json json = sound;
    damage(json);
    return !read_measured(json, plan).has_value();
  };
  EXPECT_TRUE(damaged([](Json& j) { j = Json(); }));
  EXPECT_TRUE(damaged([](Json& j) { j.items().pop_back(); })) << "a linear is missing";
  EXPECT_TRUE(damaged([](Json& j) { j.items()[1] = j.items()[0]; })) << "one is there twice";
  EXPECT_TRUE(damaged([](Json& j) { j.items()[0]["modules"] = Json::array({Json(-1)}); }));
  EXPECT_TRUE(damaged([](Json& j) { j.items()[0]["gram_loss"].items().pop_back(); }));
  EXPECT_TRUE(damaged([](Json& j) { j.items()[0]["kl"] = nullptr; }));
}

std::string choice_error(const std::string& recipe) {
  try {
    choose(recipe);
    return "";
  } catch (const Error& e) {
    EXPECT_EQ(exit_code(e.kind()), 2);
    return e.what();
  }
}

std::map<std::string, int> bits_of(const Plan& plan) {
  std::map<std::string, int> bits;
  for (const PlannedModule& m : plan.modules) bits[m.module] = m.scheme.bits;
  for (const std::string& name : plan.ignored) bits[name] = kDenseBits;
  return bits;
}

// Of a dense weight of this model.
double dense_bits() {
  return 8 * element_bytes(stories().at("model.layers.0.mlp.up_proj.weight").view.dtype);
}

// Stored bits per weight of all linears together, those left dense too.
double stored_bits_of(const Plan& plan) {
  const ModelSpec spec = ModelSpec::read(stories());
  const std::map<std::string, int> bits = bits_of(plan);
  double stored = 0, weights = 0;
  for (const BlockSpec& block : spec.blocks)
    for (const LinearSpec& linear : block.linears) {
      const auto count = static_cast<double>(linear.out_features * linear.in_features);
      weights += count;
      if (bits.at(linear.module) == kDenseBits) stored += dense_bits() * count;
    }
  for (const PlannedModule& m : plan.modules) stored += static_cast<double>(stored_bits(plan.format, m));
  return stored / weights;
}

TEST(MixedPrecision, KeepsTheBudgetAndWhatEnginesFuse) {
  double before = 1e300;
  for (const char* target : {"4.32", "4.5", "5", "6.25", "9", "14"}) {
    const Plan plan =
        choose(std::string("method: gptq\nscheme: w4a16_g64_asym\ntarget_bits: ") + target + "\n").plan;
    const double stored = stored_bits_of(plan);
    EXPECT_LE(stored, std::stod(target));
    EXPECT_DOUBLE_EQ(stored, plan.mixed->bits_per_weight);
    EXPECT_TRUE(plan.mixed->optimal);
    EXPECT_LE(plan.mixed->divergence, before) << "more bits never cost more";
    EXPECT_LE(plan.mixed->divergence, plan.mixed->uniform_divergence);
    before = plan.mixed->divergence;
    const std::map<std::string, int> bits = bits_of(plan);
    ASSERT_EQ(bits.size(), 14u);
    for (const char* block : {"model.layers.0.", "model.layers.1."}) {
      const std::string attention = block + std::string("self_attn."), mlp = block + std::string("mlp.");
      EXPECT_EQ(bits.at(attention + "q_proj"), bits.at(attention + "k_proj"));
      EXPECT_EQ(bits.at(attention + "q_proj"), bits.at(attention + "v_proj"));
      EXPECT_EQ(bits.at(mlp + "gate_proj"), bits.at(mlp + "up_proj"));
    }
  }
}

TEST(MixedPrecision, SameChoicesAtAnyThreadCount) {
  const std::string recipe = "method: awq\nscheme: w4a16_g32_sym\ntarget_bits: 5\nmixed: {bits: [3, 4, 8]}\n";
  const std::string one = choose(recipe, 1).table;
  for (const int threads : {2, 3, 8}) EXPECT_EQ(choose(recipe, threads).table, one) << threads;
}

TEST(MixedPrecision, MeasuresMoreLossAtFewerBits) {
  const Plan plan = choose("method: rtn\ntarget_bits: 6\nmixed: {bits: [2, 3, 4, 8, 16], samples: 2}\n").plan;
  ASSERT_EQ(plan.mixed->choices.size(), 8u);
  for (const PrecisionChoice& choice : plan.mixed->choices) {
    ASSERT_EQ(choice.options.size(), 5u);
    EXPECT_GT(choice.options[0].divergence, 0);
    EXPECT_EQ(choice.options[4].divergence, 0);
    for (std::size_t i = 1; i < choice.options.size(); ++i) {
      EXPECT_LT(choice.options[i].divergence, choice.options[i - 1].divergence) << choice.modules.front();
      EXPECT_GT(choice.options[i].stored, choice.options[i - 1].stored);
    }
  }
}

TEST(MixedPrecision, OnlyWhatTheRecipeQuantizesIsChosenAmong) {
  const Plan plan =
      choose("method: rtn\ntarget_bits: 5\nignore: ['re:.*q_proj', 're:.*layers.0.*down_proj']\n").plan;
  EXPECT_EQ(plan.mixed->choices.size(), 7u);
  for (const PrecisionChoice& choice : plan.mixed->choices)
    EXPECT_THAT(choice.modules, Each(::testing::Not(HasSubstr("q_proj"))));
}

TEST(MixedPrecision, AFormatWithOneWidthMixesItWithDense) {
  const Plan plan = choose("method: awq\nformat: awq\ntarget_bits: 8\n").plan;
  for (const PrecisionChoice& choice : plan.mixed->choices) ASSERT_EQ(choice.options.size(), 2u);
  EXPECT_FALSE(plan.ignored.empty());
  EXPECT_LE(stored_bits_of(plan), 8);
}

TEST(MixedPrecision, ABlockMayBeLeftAlone) {
  const Plan plan =
      choose("method: rtn\nscheme: w4a16_g64_asym\ntarget_bits: 6\nignore: ['re:.*layers.1.*']\n").plan;
  EXPECT_EQ(bits_of(plan).size(), 14u);
  for (const PrecisionChoice& choice : plan.mixed->choices)
    EXPECT_THAT(choice.modules, Each(HasSubstr("layers.0")));
}

TEST(MixedPrecision, AMeasuredPassIsNotReadAgain) {
  const Checkpoint checkpoint = stories();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const Plan plan =
      make_plan(Recipe::parse("method: gptq\nscheme: w4a16_g64_asym\ntarget_bits: 5\n", "r.yaml"), checkpoint,
                spec, Compute::kFloat32, 1, 0);
  const auto measuring = [&](const DoneBefore& before) {
    const std::vector<ReadPass> passes = read_passes(plan, checkpoint, spec, before);
    return std::count_if(passes.begin(), passes.end(),
                         [](const ReadPass& pass) { return pass.what.starts_with("mixed precision"); });
  };
  EXPECT_GT(measuring({}), 0);
  EXPECT_GT(measuring({.blocks = 1}), 0);
  EXPECT_EQ(measuring({.blocks = 0, .measured = true}), 0);
}

TEST(MixedPrecision, RefusesWhatCannotBe) {
  const std::string base = "method: awq\nscheme: w4a16_g64_asym\n";
  // 4 bits, a BF16 scale and a 4-bit zero per 64 weights: 4.3125, rounded up to what --target-bits takes.
  EXPECT_THAT(choice_error(base + "target_bits: 4.2\n"), HasSubstr("4.313"));
  EXPECT_EQ(choice_error(base + "target_bits: 4.313\n"), "");
  EXPECT_THAT(choice_error(base + "target_bits: 3\nmixed: {bits: [3, 4]}\n"), HasSubstr("3.297"));
  EXPECT_THAT(choice_error(base + fmt::format("target_bits: {}\n", dense_bits())),
              HasSubstr("every linear as it is"));
  EXPECT_THAT(choice_error(base + "mixed: {bits: [4, 8]}\n"), HasSubstr("target_bits"));
  EXPECT_THAT(choice_error(base + "target_bits: 5\nmixed: {bits: [4]}\n"),
              HasSubstr("nothing to choose from"));
  EXPECT_THAT(choice_error(base + "target_bits: 5\nmixed: {bits: [4, 9]}\n"), HasSubstr("9 bits"));
  EXPECT_THAT(choice_error(base + "target_bits: 5\noverrides: [{match: 're:.*', scheme: w8a16}]\n"),
              HasSubstr("overrides"));
  EXPECT_THAT(choice_error("method: awq\nformat: awq\ntarget_bits: 5\nmixed: {bits: [4, 8]}\n"),
              HasSubstr("bit"));
}

}  // namespace
}  // namespace llmq
