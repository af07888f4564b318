// Bits by budget over a real two-block model: the budget is kept, what engines fuse stays together, threads
// do not matter, what cannot be is refused with what would do, and the choice is worth its bits.
#include "quant/mixed_precision/mixed_precision.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/error.h"
#include "captured_output.h"
#include "export/formats/packed_formats.h"
#include "quant/mixed_precision/sensitivity.h"
#include "quant/plan/disk_reads.h"

namespace llmq {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

const std::string kSchemes = "mixed: {schemes: [dense, fp8, w4a16_g64_asym, nvfp4a16, mxfp8a16]}\n";

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
    groups.push_back({{place}, 0.1 + 1.0 / 3, std::vector<double>(plan.candidates.size(), 1e-300), {}});
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
  const std::string among = "method: awq\ntarget_bits: 5\n" + kSchemes;
  EXPECT_EQ(choose(among, 3).table, choose(among, 1).table);
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

// Integers, floats in groups, FP8 and dense weights by one budget, each counted as it is stored.
TEST(MixedPrecision, ChoosesAmongWholeSchemes) {
  std::set<std::string> chosen;
  for (const char* target : {"4.4", "4.6", "6", "10"}) {
    SCOPED_TRACE(target);
    const Plan plan = choose("method: gptq\ntarget_bits: " + std::string(target) + "\n" + kSchemes).plan;
    const double stored = stored_bits_of(plan);
    EXPECT_LE(stored, std::stod(target));
    EXPECT_DOUBLE_EQ(stored, plan.mixed->bits_per_weight);
    EXPECT_TRUE(plan.mixed->optimal);
    std::map<std::string, std::string> schemes;
    for (const PlannedModule& m : plan.modules) schemes[m.module] = m.scheme.text();
    for (const std::string& name : plan.ignored) schemes[name] = "dense";
    ASSERT_EQ(schemes.size(), 14u);
    for (const PrecisionChoice& choice : plan.mixed->choices) {
      ASSERT_EQ(choice.options.size(), 5u);
      const char* const rising[] = {"w4a16_g64_asym", "nvfp4a16", "fp8", "mxfp8a16", "dense"};
      for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(choice.options[i].scheme, rising[i]);
      // 4 bits, a scale of 8 for 16 weights, and one of 32 for each linear.
      EXPECT_EQ(choice.options[1].stored, choice.weights * 9 / 2 + 32 * choice.modules.size());
      for (const std::string& module : choice.modules)
        EXPECT_EQ(schemes.at(module), choice.options[choice.chosen].scheme);
      chosen.insert(choice.options[choice.chosen].scheme);
    }
  }
  EXPECT_GE(chosen.size(), 3u) << "integers, floats in groups and more are worth their bits somewhere";
}

// E4M3's inputs err as its weights do, and independently: about as much once more. MXFP8 has such weights and
// rounds no inputs.
TEST(MixedPrecision, RoundedInputsAreCounted) {
  const Plan plan = choose("method: rtn\ntarget_bits: 6\n" + kSchemes).plan;
  for (const PrecisionChoice& choice : plan.mixed->choices) {
    const double both = choice.options[2].gram_loss, weights = choice.options[3].gram_loss;
    EXPECT_GT(both, 1.5 * weights) << choice.modules.front();
    EXPECT_LT(both, 3 * weights) << choice.modules.front();
  }
}

// What MXFP8 weights cost does not depend on whether FP8, which rounds inputs as well, stands before them.
TEST(MixedPrecision, AFirstCandidateOfRoundedInputsRaisesNoOther) {
  const auto cost = [](const std::string& schemes, std::size_t place) {
    const Plan plan = choose("method: rtn\ntarget_bits: 9\nmixed: {schemes: [" + schemes + "]}\n").plan;
    double sum = 0;
    for (const PrecisionChoice& choice : plan.mixed->choices) sum += choice.options[place].divergence;
    return sum;
  };
  const double behind = cost("fp8, mxfp8a16, dense", 1), alone = cost("mxfp8a16, dense", 0);
  EXPECT_GT(behind, 0.7 * alone);
  EXPECT_LT(behind, 1.4 * alone);
}

// Error feedback is worth much to integers, less to floats in groups, nothing to FP8.
TEST(MixedPrecision, WholeSchemesAreMeasuredAsTheRunRounds) {
  const Plan plain = choose("method: rtn\ntarget_bits: 6\n" + kSchemes).plan,
             fed_back = choose("method: gptq\ntarget_bits: 6\n" + kSchemes).plan;
  for (std::size_t g = 0; g < plain.mixed->choices.size(); ++g) {
    const std::vector<PrecisionOption>&a = plain.mixed->choices[g].options,
          &b = fed_back.mixed->choices[g].options;
    for (const std::size_t better : {0, 1, 3}) EXPECT_LT(b[better].gram_loss, 0.9 * a[better].gram_loss) << g;
    EXPECT_EQ(b[2].gram_loss, a[2].gram_loss) << g;
  }
}

// A scale that moves is worth much to 4 bits and nothing to FP8; AWQ that does not clip differs from rounding
// to nearest by it alone.
TEST(MixedPrecision, WholeSchemesAreMeasuredBehindTheScaleThatMoves) {
  struct Sums {
    double kl = 0;
    std::array<double, 5> gram{};
  };
  const auto sums = [](const std::string& method) {
    Sums all;
    const Plan plan = choose("method: " + method + "\ntarget_bits: 6\n" + kSchemes).plan;
    for (const PrecisionChoice& choice : plan.mixed->choices) {
      all.kl += choice.options[0].divergence;
      for (std::size_t c = 0; c < all.gram.size(); ++c) all.gram[c] += choice.options[c].gram_loss;
    }
    return all;
  };
  const Sums plain = sums("rtn"), scaled = sums("awq\nawq: {clip: false}");
  EXPECT_LT(scaled.gram[0], 0.95 * plain.gram[0]);  // integers
  EXPECT_LT(scaled.gram[1], 0.99 * plain.gram[1]);  // NVFP4
  EXPECT_NEAR(scaled.gram[2] / plain.gram[2], 1, 0.02);
  EXPECT_NEAR(scaled.gram[3] / plain.gram[3], 1, 0.02);
  EXPECT_LT(scaled.kl, plain.kl);
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
  const auto among = [](const std::string& schemes, const std::string& more = "target_bits: 4.5\n") {
    return choice_error("method: gptq\nmixed: {schemes: [" + schemes + "]}\n" + more);
  };
  EXPECT_THAT(among("w4a16_g64_asym, nvfp4a16", "target_bits: 4.2\n"),
              HasSubstr("4.2 bits per weight are fewer than w4a16_g64_asym everywhere takes with scales and "
                        "zeros; at least 4.313 would do"));
  EXPECT_THAT(among("w4a16_g64_asym, w8a8"),
              HasSubstr("what the rounded inputs of w8a8_channel_sym cost is not measured"));
  EXPECT_THAT(among("w4a16_g64_asym, fp8_static"), HasSubstr("inputs of fp8_static"));
  EXPECT_THAT(among("w4a16_g64_asym, fp8", ""),
              HasSubstr("mixed.schemes: candidates of mixed precision need"));
  EXPECT_THAT(among("w4a16_g64_asym, fp8", "target_bits: 5\nscheme: w4a16\n"), HasSubstr("leave out scheme"));
  EXPECT_THAT(among("w4a16, w4a16_g128_sym"), HasSubstr("two candidates are w4a16_g128_sym"));
  EXPECT_THAT(among("fp8, dense", "target_bits: 9\n"), HasSubstr("method gptq chooses integer codes"));
  EXPECT_THAT(among("w4a16_g64_sym, nvfp4a16", "target_bits: 5\nformat: gptq\n"),
              HasSubstr("format gptq has no place for codes of scheme nvfp4a16"));
  EXPECT_THAT(choice_error("method: rtn\nscheme: fp8\ntarget_bits: 5\n"), HasSubstr("mixed.schemes"));
}

}  // namespace
}  // namespace llmq
