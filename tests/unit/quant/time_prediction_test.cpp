// A prediction's structure, by a clock that does not tick: a timer that counts operations must be carried to
// the count of the whole model. What a real block takes is asked for its names alone.
#include "quant/plan/time_prediction.h"
#include "model/open_checkpoint.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "quant/pipeline/pipeline.h"
#include "tests/unit/quant/small_job.h"

namespace llmq {
namespace {

using Totals = std::map<std::string, double>;

double of(std::int64_t value) { return static_cast<double>(value); }

// Operations of one block: products and attention over T tokens, Gram matrices, rounding by N K^2; fewer
// tokens where one chunk, or eight, is enough; a fixed reading.
SecondsByPart counted(const ModelSpec& one, double tokens) {
  double products = 0, gram = 0, rounding = 0, weights = 0;
  for (const LinearSpec& linear : one.blocks.front().linears) {
    const double n = of(linear.out_features), k = of(linear.in_features);
    products += n * k;
    weights += n * k;
    gram += k * k;
    rounding += n * k * (100 + k);
  }
  return {{"reading", weights},
          {"scale search", std::min(tokens, 4096.0) * weights},
          {"original forward", std::min(tokens, 32768.0) * products},
          {"forward and statistics", tokens * (products + gram + 50 * of(one.hidden_size)) + gram},
          {"rounding", rounding}};
}

// Norms of a share are as wide as what they normalize there.
void expect_norms_fit(const Checkpoint& from, const BlockSpec& block) {
  for (const NormSpec& norm : block.norms)
    EXPECT_EQ(from.at(norm.gain.tensor).view.shape.elements(), norm.width) << norm.gain.tensor;
  for (const SublayerSpec& part : block.sublayers)
    for (const std::optional<NormId> norm : {part.before, part.after})
      EXPECT_TRUE(!norm || block.at(*norm).width == block.at(part.outputs().front()).out_features);
  const AttentionSpec& attention = *block.attention();
  if (!attention.query_norm) return;
  EXPECT_EQ(block.at(*attention.query_norm).width, attention.inner_width());
  EXPECT_EQ(block.at(*attention.key_norm).width, std::int64_t{attention.kv_heads} * attention.head_dim);
}

Totals predicted(const std::string& recipe, const Checkpoint& checkpoint, const ModelSpec& spec,
                 std::vector<std::int64_t>* asked = nullptr) {
  const Plan plan = make_plan(Recipe::parse(recipe, "r.yaml"), checkpoint, spec, Compute::kFloat32, 1, 0);
  const SecondsByPart parts = predict_blocks(
      plan, checkpoint, spec, [&](const Checkpoint& from, const ModelSpec& one, std::int64_t samples) {
        EXPECT_EQ(one.blocks.size(), 1u);
        // a share takes no more memory than it does where it is stored
        for (const StoredTensor& tensor : from.tensors())
          EXPECT_EQ(tensor.view.dtype, checkpoint.at(tensor.name).view.dtype) << tensor.name;
        expect_norms_fit(from, one.blocks.front());
        if (asked != nullptr) asked->push_back(samples);
        return counted(one, of(samples * plan.calibration.sequence_length));
      });
  return {parts.begin(), parts.end()};
}

// A llama of `blocks` blocks whose weights are all zero, or with `kv_heads` an OLMo 2.
Checkpoint checkpoint_of_zeros(std::int64_t hidden, std::int64_t intermediate, std::int64_t heads,
                               std::int64_t blocks, std::int64_t kv_heads = 0) {
  const bool behind = kv_heads != 0;
  const std::int64_t keys = behind ? hidden / heads * kv_heads : hidden;
  std::vector<Checkpoint::OwnedTensor> tensors;
  const auto add = [&](const std::string& name, const Shape& shape) {
    tensors.push_back(
        {name, DType::kBF16, shape, std::vector<std::byte>(static_cast<std::size_t>(shape.elements()) * 2)});
  };
  add("model.embed_tokens.weight", {256, hidden});
  add("model.norm.weight", {hidden});
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::string prefix = "model.layers." + std::to_string(b) + ".";
    for (const char* norm :
         {behind ? "post_feedforward_layernorm" : "input_layernorm", "post_attention_layernorm"})
      add(prefix + norm + ".weight", {hidden});
    if (behind) {
      add(prefix + "self_attn.q_norm.weight", {hidden});
      add(prefix + "self_attn.k_norm.weight", {keys});
    }
    for (const char* role : {"q", "o"}) add(prefix + "self_attn." + role + "_proj.weight", {hidden, hidden});
    for (const char* role : {"k", "v"}) add(prefix + "self_attn." + role + "_proj.weight", {keys, hidden});
    for (const char* role : {"gate", "up"})
      add(prefix + "mlp." + role + "_proj.weight", {intermediate, hidden});
    add(prefix + "mlp.down_proj.weight", {hidden, intermediate});
  }
  return Checkpoint::of_tensors(
      tensors,
      Json::object({{"model_type", behind ? "olmo2" : "llama"},
                    {"architectures", Json::array({Json(behind ? "Olmo2ForCausalLM" : "LlamaForCausalLM")})},
                    {"hidden_size", hidden},
                    {"intermediate_size", intermediate},
                    {"num_hidden_layers", blocks},
                    {"num_attention_heads", heads},
                    {"num_key_value_heads", behind ? kv_heads : heads},
                    {"vocab_size", 256},
                    {"max_position_embeddings", 2048},
                    {"rms_norm_eps", 1e-5},
                    {"hidden_act", "silu"},
                    {"tie_word_embeddings", true},
                    {"torch_dtype", "bfloat16"}}));
}

void expect_counts(const Totals& found, const ModelSpec& spec, double tokens) {
  const double blocks = static_cast<double>(spec.blocks.size());
  for (const auto& [part, count] : counted(spec, tokens))
    EXPECT_NEAR(found.at(part) / (blocks * count), 1, 1e-9) << part;
}

TEST(TimePrediction, ASmallBlockIsRunAsItIsAndCarriedToAllSamplesAndBlocks) {
  const Checkpoint checkpoint = checkpoint_of_zeros(128, 256, 2, 3);
  const ModelSpec spec = ModelSpec::read(checkpoint);
  std::vector<std::int64_t> asked;
  expect_counts(predicted("method: gptq\ncalibration: {samples: 128, sequence_length: 512}\n", checkpoint,
                          spec, &asked),
                spec, 65536);
  EXPECT_EQ(asked, (std::vector<std::int64_t>{1, 8, 16}));  // a first, one chunk of 4096 tokens, two
  expect_counts(
      predicted("method: gptq\ncalibration: {samples: 5, sequence_length: 512}\n", checkpoint, spec), spec,
      2560);
}

TEST(TimePrediction, ALargeBlockIsCutToAHalfAndAQuarterOfItsWidth) {
  const Checkpoint checkpoint = checkpoint_of_zeros(1024, 2048, 8, 2);
  const ModelSpec spec = ModelSpec::read(checkpoint);
  expect_counts(
      predicted("method: gptq\ncalibration: {samples: 40, sequence_length: 512}\n", checkpoint, spec), spec,
      20480);
}

TEST(TimePrediction, NormsOverAllHeadsAreCutAsTheHeadsAre) {
  const Checkpoint checkpoint = checkpoint_of_zeros(1024, 2048, 8, 2, 4);
  const ModelSpec spec = ModelSpec::read(checkpoint);
  expect_counts(
      predicted("method: gptq\ncalibration: {samples: 40, sequence_length: 512}\n", checkpoint, spec), spec,
      20480);
}

// What is left alone is passed, but not rounded.
TEST(TimePrediction, OnlyQuantizedWeightsAreRounded) {
  const Checkpoint checkpoint = checkpoint_of_zeros(128, 256, 2, 3);
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const std::string recipe = "method: gptq\ncalibration: {samples: 8, sequence_length: 512}\n";
  const Totals all = predicted(recipe, checkpoint, spec),
               some = predicted(recipe + "ignore: [lm_head, 're:.*layers\\.0\\..*']\n", checkpoint, spec);
  EXPECT_NEAR(some.at("rounding") / all.at("rounding"), 2.0 / 3, 1e-9);
  EXPECT_NEAR(some.at("reading") / all.at("reading"), 1, 1e-9);
}

// The block that is timed goes through what the run goes through.
TEST(TimePrediction, ABlockHasThePartsOfARun) {
  const testing::TemporaryDirectory models;
  const Checkpoint checkpoint = open_checkpoint(system_io(), testing::write_tiny_checkpoint(models));
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const auto backend = make_cpu_backend(1);
  for (const char* method : {"rtn", "awq", "gptq", "smoothquant", "[awq, gptq]"}) {
    const testing::TemporaryDirectory directory;
    testing::SmallJob job{std::string("method: ") + method + "\nscheme: " +
                              (std::string(method) == "smoothquant" ? "w8a8" : "w4a16_g32_sym") + "\n",
                          {directory.path() / "out"}};
    std::set<std::string> names, found;
    for (const auto& [part, seconds] : job.run(system_io(), checkpoint).report.seconds_by_part)
      names.insert(part);
    const Plan plan =
        make_plan(Recipe::parse(job.recipe + "calibration: {samples: 3, sequence_length: 20}\n", "r.yaml"),
                  checkpoint, spec, Compute::kFloat32, 1, 0);
    const TimePrediction prediction = predict_time(plan, estimate_costs(plan, checkpoint, spec, 1),
                                                   checkpoint, spec, *backend, system_io(), directory.path());
    EXPECT_EQ(prediction.unknown, "");
    double sum = 0;
    for (const auto& [part, seconds] : prediction.parts) {
      found.insert(part);
      EXPECT_GE(seconds, 0) << part;
      sum += seconds;
    }
    EXPECT_EQ(found, names) << method;
    EXPECT_NEAR(prediction.seconds, sum, 1e-9);
  }
}

}  // namespace
}  // namespace llmq
