// Bits by budget of a mixture of experts: experts of a layer share theirs, what is measured of them is the
// sum over their own rows, and how many are measured in one pass changes nothing.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "export/formats/packed_formats.h"
#include "noisy_mixture.h"
#include "quant/methods/rtn.h"
#include "quant/mixed_precision/sensitivity.h"

namespace llmq {
namespace {

constexpr const char* kBudget =
    "method: rtn\nscheme: w4a16_g8_sym\nmixed: {bits: [3, 4, 8, 16], samples: 4}\n"
    "calibration: {samples: 4, sequence_length: 24}\n";

struct BudgetedMixture {
  Plan asked, chosen;
  std::vector<MeasuredGroup> measured;
};

BudgetedMixture budgeted(const ScratchModel& model, const std::string& target, std::int64_t at_once = 0) {
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const auto backend = make_cpu_backend(2);
  Plan plan = make_plan(Recipe::parse(kBudget + ("target_bits: " + target + "\n"), "r.yaml"), checkpoint,
                        spec, Compute::kFloat32, 2, 0);
  EXPECT_EQ(plan.experts_at_once, ScratchMixture::kExperts);
  if (at_once != 0) plan.experts_at_once = at_once;
  const auto measured = measure_candidates(plan, checkpoint, spec, expert_samples(), *backend, {});
  const auto read = read_measured(Json::parse(measured_json(measured).dump(), "journal"), plan);
  EXPECT_TRUE(read.has_value());
  const MixedPrecision mixed = choose_precision(plan, spec, read.value_or(measured), checkpoint);
  return {plan, plan_with_bits(plan, mixed, "r.yaml", checkpoint, spec, 2, 0), measured};
}

std::map<std::string, int> bits_by_module(const Plan& plan) {
  std::map<std::string, int> bits;
  for (const PlannedModule& m : plan.modules) bits[m.module] = m.scheme.bits;
  for (const std::string& name : plan.ignored) bits[name] = kDenseBits;
  return bits;
}

TEST(MixedExperts, OfALayerShareTheirBits) {
  const NoisyMixture model;
  for (const char* target : {"6.1", "7", "8", "9", "12", "20"}) {
    const Plan plan = budgeted(model, target).chosen;
    const std::map<std::string, int> bits = bits_by_module(plan);
    EXPECT_LE(plan.mixed->bits_per_weight, std::stod(target));
    // q, k and v; o; experts; gate and up of the shared one, and its output.
    ASSERT_EQ(plan.mixed->choices.size(), 2u * 5u);
    for (const char* block : {"model.layers.0.mlp.", "model.layers.1.mlp."}) {
      const std::string at = block;
      const int experts = bits.at(at + "experts.0.gate_proj");
      for (int e = 0; e < 5; ++e)
        for (const char* linear : {"gate", "up", "down"})
          EXPECT_EQ(bits.at(fmt::format("{}experts.{}.{}_proj", at, e, linear)), experts) << target;
      EXPECT_EQ(bits.at(at + "shared_expert.gate_proj"), bits.at(at + "shared_expert.up_proj"));
    }
    std::int64_t of_experts = 0;
    for (const PrecisionChoice& choice : plan.mixed->choices) {
      of_experts += choice.experts;
      EXPECT_EQ(choice.modules.size() == 15, choice.experts == 5) << choice.modules.front();
    }
    EXPECT_EQ(of_experts, 2 * 5);
  }
}

// sum over experts of sum over their rows of |(RTN(W) - W) x|^2.
TEST(MixedExperts, LossesAreSummedOverTheirOwnRows) {
  const NoisyMixture model;
  const BudgetedMixture found = budgeted(model, "7");
  BehindAttention at(model);
  const BlockSpec& block = at.spec.blocks[0];
  ThreadPool pool(1);
  const LinearSource source = LinearSource::open(at.checkpoint);
  std::vector<SeenExpert> experts;
  for (std::size_t e = 0; e < at.mixture().experts.size(); ++e)
    experts.push_back({&at.mixture().experts[e], e});
  for (const ExpertInput input : {ExpertInput::kOfGateAndUp, ExpertInput::kOfOutput}) {
    const auto readers = [&](const ExpertSpec& expert) {
      return input == ExpertInput::kOfOutput ? std::vector<LinearId>{expert.output}
                                             : std::vector<LinearId>{expert.gate.linear, expert.up.linear};
    };
    QuantScheme scheme = found.asked.modules.front().scheme;
    scheme.bits = 3;
    double want = 0;
    at.stream.each_expert_input(0, at.weights, experts, input, [&](std::size_t e, const TensorView& x) {
      for (const LinearId id : readers(*experts[e].expert)) {
        const LinearSpec& linear = block.at(id);
        const ZeroedNumbers<float> weight = source.weight(linear, pool);
        const QuantizedMatrix matrix =
            round_to_nearest(weight, linear.out_features, linear.in_features, scheme, pool);
        std::vector<float> value(matrix.codes.size());
        dequantize(matrix, value, pool);
        for (std::int64_t r = 0; r < x.rows(); ++r)
          for (std::int64_t n = 0; n < linear.out_features; ++n) {
            double y = 0;
            for (std::int64_t k = 0; k < linear.in_features; ++k) {
              const auto i = static_cast<std::size_t>(n * linear.in_features + k);
              y += (static_cast<double>(value[i]) - weight[i]) * x.row<float>(r)[k];
            }
            want += y * y;
          }
      }
    });
    const std::string first = block.at(readers(*experts[0].expert).front()).module;
    const auto group =
        std::find_if(found.measured.begin(), found.measured.end(), [&](const MeasuredGroup& measured) {
          return found.asked.modules[measured.modules.front()].module == first;
        });
    ASSERT_NE(group, found.measured.end());
    EXPECT_EQ(group->modules.size(), readers(*experts[0].expert).size() * 5);
    // Rows are summed in FP32, 24 * 2 of them at most of an expert in a sum of 16 products: 2^-24 * 64 each.
    EXPECT_NEAR(group->gram_loss[0] / want, 1, 1e-4) << first;
    EXPECT_GT(group->divergence, 0);
  }
}

TEST(MixedExperts, HowManyGoAtOnceChangesNothing) {
  NoisyMixture model;
  model.starve_expert_0();
  const auto table = [&](std::int64_t at_once) {
    return measured_json(budgeted(model, "7", at_once).measured).dump();
  };
  const std::string all = table(0);
  for (const std::int64_t at_once : {1, 2, 4}) EXPECT_EQ(table(at_once), all) << at_once;
}

TEST(MixedExperts, OneThatNoRowReachesSaysNothing) {
  NoisyMixture model, other;
  for (NoisyMixture* each : {&model, &other}) each->starve_expert_0();
  for (auto& [name, tensor] : other.tensors)
    if (name.find("mlp.experts.0.") != std::string::npos) tensor = noise_tensor(tensor.shape, 4711);
  const auto one = budgeted(model, "7").measured, two = budgeted(other, "7").measured;
  ASSERT_EQ(one.size(), two.size());
  for (std::size_t g = 0; g < one.size(); ++g) EXPECT_EQ(one[g].gram_loss, two[g].gram_loss) << g;
}

}  // namespace
}  // namespace llmq
