// A vision tower beside a decoder, rounded to 8 bits on request: which of its matrices are, what is written
// of them, what configs list, and what is refused.
#include <gmock/gmock.h>

#include <cmath>

#include "base/pattern.h"
#include "captured_output.h"
#include "export/formats/packed_formats.h"
#include "model/families/tower.h"
#include "support/named_parts.h"
#include "tests/unit/model/scratch_mixture.h"

namespace llmq {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kLayers = "vision_tower.vision_model.encoder.layers.";

// A LLaVA around ScratchModel's Llama, with CLIP's names.
class LlavaWithTower : public ScratchModel {
 public:
  LlavaWithTower() : ScratchModel("llava", "LlavaForConditionalGeneration") {
    config = llava_config(config);
    std::map<std::string, ScratchTensor> named;
    for (auto& [name, tensor] : tensors) named["language_model." + name] = tensor;
    tensors = std::move(named);
    std::uint32_t seed = 50;
    for (const char* block : {"0", "1"}) {
      for (const char* linear : {".self_attn.q_proj", ".mlp.fc1"}) {
        tensors[kLayers + std::string(block) + linear + ".weight"] = noise_tensor({12, 8}, ++seed);
        tensors[kLayers + std::string(block) + linear + ".bias"] = noise_tensor({12}, ++seed);
      }
      tensors[kLayers + std::string(block) + ".layer_norm1.weight"] = noise_tensor({8}, ++seed);
    }
    tensors["vision_tower.vision_model.embeddings.position_embedding.weight"] = noise_tensor({5, 8}, ++seed);
    tensors["vision_tower.vision_model.head.mlp.fc1.weight"] = noise_tensor({8, 8}, ++seed);
    tensors["multi_modal_projector.linear_1.weight"] = noise_tensor({16, 8}, ++seed);
  }
};

Plan tower_planned(const ScratchModel& model, const std::string& recipe) {
  const Checkpoint checkpoint = model.open();
  return make_plan(Recipe::parse("method: rtn\nscheme: w4a16_g8_sym\n" + recipe, "r.yaml"), checkpoint,
                   ModelSpec::read(checkpoint), Compute::kFloat32, 1, 0);
}

TEST(Tower, ItsLinearsAreTheMatricesOfItsBlocks) {
  const LlavaWithTower model;
  const Checkpoint checkpoint = model.open();
  const Tower tower = find_tower(checkpoint, ModelSpec::read(checkpoint));
  std::vector<std::string> names;
  for (const LinearSpec& linear : tower.linears) {
    names.push_back(linear.module.substr(std::string_view(kLayers).size()));
    EXPECT_EQ(linear.out_features, 12);
    EXPECT_EQ(linear.in_features, 8);
  }
  EXPECT_THAT(names, ElementsAre("0.mlp.fc1", "0.self_attn.q_proj", "1.mlp.fc1", "1.self_attn.q_proj"));
  EXPECT_THAT(tower.beside,
              ElementsAre("vision_tower.vision_model.embeddings", "vision_tower.vision_model.head"));
  const ScratchModel decoder;
  const Checkpoint alone = decoder.open();
  EXPECT_TRUE(find_tower(alone, ModelSpec::read(alone)).linears.empty());
}

TEST(Tower, IsRoundedOnRequestAndElseItsBytesStay) {
  const LlavaWithTower model;
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  for (const bool calibrated : {false, true})
    for (const bool asked : {false, true}) {
      const std::string method = calibrated ? "method: gptq\n" : "method: rtn\n";
      const Plan plan = make_plan(
          Recipe::parse(method + "scheme: w4a16_g8_sym\ncalibration: {samples: 2, sequence_length: 8}\n" +
                            (asked ? "vision: w8a16\n" : ""),
                        "r.yaml"),
          checkpoint, spec, Compute::kFloat32, 1, 0);
      EXPECT_EQ(plan.tower.size(), asked ? 4u : 0u);
      CapturedOutput output;
      CalibrationSet samples = some_samples(2, 8);
      for (std::vector<std::int32_t>& ids : samples.samples)
        for (std::int32_t& id : ids) id %= 32;
      const QuantizeReport report =
          run_pipeline(plan, checkpoint, spec, samples, *make_cpu_backend(1), output, {});
      EXPECT_EQ(report.modules.size(), plan.packed().size());
      for (const auto& [name, tensor] : model.tensors) {
        if (!spec.carried.carries(name)) continue;
        const std::string module = name.substr(0, name.rfind('.'));
        const bool packed = asked && name.starts_with(kLayers) && tensor.shape.size() == 2;
        ASSERT_EQ(output.dense.count(name), packed ? 0u : 1u) << name;
        ASSERT_TRUE(!packed || output.quantized.count(module) == 1) << name;
        if (!packed) {
          EXPECT_EQ(std::memcmp(output.dense.at(name).bytes.data(), tensor.bytes.data(), tensor.bytes.size()),
                    0);
          continue;
        }
        const QuantizedMatrix& matrix = output.quantized.at(module);
        EXPECT_EQ(matrix.scheme.bits, 8);
        EXPECT_EQ(matrix.scheme.granularity, Granularity::kChannel);
        std::vector<float> values(matrix.codes.size());
        ThreadPool one(1);
        dequantize(matrix, values, one);
        const std::vector<float> was = floats_of(tensor);
        for (std::size_t i = 0; i < was.size(); ++i)  // noise is below 0.5: half a step, and a rounded scale
          EXPECT_NEAR(values[i], was[i], 0.5 / 127 * 0.51 + 0.5 / 256) << name;
      }
    }
}

TEST(Tower, ConfigsNameItsLinearsAndWhatLiesBesideThem) {
  const LlavaWithTower model;
  const Plan plan = tower_planned(model, "vision: w8a16\n");
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const std::vector<PlannedModule> packed = plan.packed();
  const Tower tower = find_tower(checkpoint, spec);
  const Json config =
      packed_format("compressed-tensors").config({packed, {}, &*spec.wrapper, &spec.carried, tower.beside});
  const auto fits = [](const Json& list, const std::string& name) {
    return std::any_of(list.items().begin(), list.items().end(),
                       [&](const Json& text) { return NamePattern(text.as_string()).matches(name); });
  };
  const Json& eight = config.at("config_groups").at("group_1");
  EXPECT_EQ(eight.at("weights").at("num_bits").as_integer(), 8);
  EXPECT_EQ(eight.at("targets").items().size(), 2u) << "one expression for each linear of a block";
  // The checkpoint and vLLM; Transformers.
  for (const char* root : {"vision_tower.vision_model.", "model.vision_tower."}) {
    const std::string at = root;
    EXPECT_TRUE(fits(eight.at("targets"), at + "encoder.layers.1.self_attn.q_proj"));
    EXPECT_FALSE(fits(config.at("ignore"), at + "encoder.layers.1.self_attn.q_proj"));
    EXPECT_FALSE(fits(eight.at("targets"), at + "head.mlp.fc1"));
    EXPECT_TRUE(fits(config.at("ignore"), at + "head.mlp.fc1"));
    EXPECT_TRUE(fits(config.at("ignore"), at + "embeddings.position_embedding"));
  }
  EXPECT_TRUE(fits(config.at("ignore"), "model.multi_modal_projector.linear_1"));
  EXPECT_FALSE(fits(eight.at("targets"), "language_model.model.layers.0.mlp.up_proj"));
}

TEST(Tower, FewerBitsAndFormatsWithoutAPlaceAreRefused) {
  const LlavaWithTower model;
  const auto refusal = [&](const std::string& recipe) {
    return error_of([&] { tower_planned(model, recipe); });
  };
  EXPECT_THAT(refusal("vision: w4a16\n"), HasSubstr("a vision tower is rounded to 8 bits and to no others"));
  EXPECT_THAT(refusal("vision: w8a8\n"), HasSubstr("inputs of 8 bits of a vision tower"));
  EXPECT_THAT(refusal("vision: w8a16_g5\n"), HasSubstr("group_size 5 does not divide the 8 input features"));
  EXPECT_THAT(refusal("vision: w8a16\nformat: gptq\n"), HasSubstr("vLLM leaves the vision tower of a GPTQ"));
  EXPECT_THAT(refusal("vision: w8a16\nformat: gptq_v2\n"),
              HasSubstr("vLLM leaves the vision tower of a GPTQ"));
  EXPECT_THAT(refusal("vision: w8a16\nignore: ['re:.*vision_tower.*']\n"), HasSubstr("left alone by ignore"));
  EXPECT_THAT(error_of([] { tower_planned(ScratchModel(), "vision: w8a16\n"); }),
              HasSubstr("family llama has no vision tower to round"));
  for (const char* scheme : {"w8a16", "w8a16_g8", "w8a16_channel_asym"}) {
    const Plan plan = tower_planned(model, std::string("vision: ") + scheme + "\n");
    EXPECT_EQ(plan.tower.size(), 4u) << scheme;
    EXPECT_EQ(plan.bits_per_weight(), tower_planned(model, "").bits_per_weight());
  }
}

}  // namespace
}  // namespace llmq
