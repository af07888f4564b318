// Vision-language checkpoints: which names a decoder has in each layout, what is carried along, and what is
// refused. Logits are golden (tests/golden/models).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/families/wrapper.h"
#include "scratch_model.h"
#include "support/named_parts.h"

namespace llmq {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A LLaVA around ScratchModel's Llama, in one of the three layouts of names; a tower of two blocks.
class ScratchLlava : public ScratchModel {
 public:
  explicit ScratchLlava(const std::string& prefix = "language_model.model",
                        const std::string& head = "language_model.lm_head", const std::string& above = "")
      : ScratchModel("llava", "LlavaForConditionalGeneration") {
    config = llava_config(config);
    std::map<std::string, ScratchTensor> named;
    for (auto& [name, tensor] : tensors)
      named[name.starts_with("model.") ? prefix + name.substr(5) : head + name.substr(7)] = tensor;
    tensors = std::move(named);
    for (const char* block : {"0", "1"})
      for (const char* name : {".self_attn.q_proj.weight", ".mlp.fc1.bias"})
        tensors[above + "vision_tower.encoder.layers." + block + name] = scratch_ramp({4});
    tensors[above + "multi_modal_projector.linear_1.weight"] = scratch_ramp({16, 4});
  }
};

std::string llava_refusal(const ScratchLlava& model) {
  return error_of([&] { ModelSpec::read(model.open()); });
}

TEST(Wrapper, NamesOfEachLayoutAreReadAsTheyAre) {
  struct Layout {
    const char *prefix, *head, *above;
  };
  for (const Layout& layout :
       {Layout{"language_model.model", "language_model.lm_head", ""},
        Layout{"model.language_model", "lm_head", "model."}, Layout{"model", "lm_head", ""}}) {
    const ScratchLlava model(layout.prefix, layout.head, layout.above);
    const ModelSpec spec = ModelSpec::read(model.open());
    const std::string prefix = layout.prefix;
    EXPECT_EQ(spec.family, "llava");
    EXPECT_EQ(spec.architecture, "LlavaForConditionalGeneration");
    EXPECT_EQ(spec.embedding.tensor, prefix + ".embed_tokens.weight");
    EXPECT_EQ(spec.final_norm.gain.tensor, prefix + ".norm.weight");
    EXPECT_EQ(spec.head, std::string(layout.head) + ".weight");
    EXPECT_EQ(spec.blocks[1].prefix, prefix + ".layers.1");
    const LinearSpec& down = linear_named(spec.blocks[1], "down_proj");
    EXPECT_EQ(down.module, prefix + ".layers.1.mlp.down_proj");
    EXPECT_EQ(down.weight.tensor, down.module + ".weight");
    EXPECT_THAT(spec.eos_ids, ElementsAre(2, 3));
    ASSERT_TRUE(spec.wrapper.has_value());
    EXPECT_EQ(spec.wrapper->decoder, "llama");
    EXPECT_EQ(spec.wrapper->prefix, prefix);
    EXPECT_THAT(spec.carried.parts, ElementsAre(std::string(layout.above) + "vision_tower",
                                                std::string(layout.above) + "multi_modal_projector"));
    EXPECT_EQ(spec.carried.tensors, 5);
    EXPECT_EQ(spec.carried.parameters, 4 * 4 + 64);
    EXPECT_EQ(spec.carried.bytes, 4u * (4 * 4 + 64));
    EXPECT_EQ(spec.parameters(), ModelSpec::read(ScratchModel().open()).parameters());  // the decoder's
  }
}

TEST(Wrapper, ADecoderThatIsNotKnownIsRefusedByName) {
  ScratchLlava model;
  model.config["text_config"]["model_type"] = "gpt9";
  EXPECT_THAT(llava_refusal(model),
              HasSubstr("text_config.model_type: the decoder \"gpt9\" of a llava is not "
                        "known here; known: llama, mistral, qwen2, qwen3"));
  model.config.erase("text_config");
  EXPECT_THAT(llava_refusal(model), HasSubstr("text_config: is missing"));
}

TEST(Wrapper, KeysOfTheDecoderAreReadAsStrictlyAsAlone) {
  ScratchLlava model;
  model.config["text_config"]["new_mathematics"] = 3;
  EXPECT_THAT(llava_refusal(model), HasSubstr("text_config.new_mathematics: this field is not known"));
  ScratchLlava outside;
  outside.config["new_mathematics"] = 3;
  EXPECT_THAT(llava_refusal(outside), HasSubstr("config.json: new_mathematics: this field is not known"));
}

// Transformers 4 repeated the decoder's keys beside text_config.
TEST(Wrapper, ARepeatedKeyMayNotDiffer) {
  ScratchLlava model;
  model.config["hidden_size"] = 16;
  EXPECT_EQ(llava_refusal(model), "");
  model.config["hidden_size"] = 32;
  EXPECT_THAT(llava_refusal(model), HasSubstr("hidden_size: this field is not known"));
}

TEST(Wrapper, ATowerThatIsNotWholeIsRefused) {
  ScratchLlava model;
  model.tensors.erase("vision_tower.encoder.layers.1.mlp.fc1.bias");
  EXPECT_THAT(llava_refusal(model), HasSubstr("vision_tower.encoder.layers.1.mlp.fc1.bias: is missing, and "
                                              "other blocks of the tower have it"));
  model.tensors.erase("vision_tower.encoder.layers.1.self_attn.q_proj.weight");
  EXPECT_THAT(llava_refusal(model),
              HasSubstr("vision_tower.encoder.layers.1: is missing, and the tower has 2 blocks"));
  ScratchLlava longer;
  longer.config["vision_config"]["num_hidden_layers"] = 1;
  EXPECT_THAT(llava_refusal(longer), HasSubstr("is there, and vision_config says 1 blocks"));
  ScratchLlava without;
  without.tensors.erase("multi_modal_projector.linear_1.weight");
  EXPECT_THAT(llava_refusal(without),
              HasSubstr("multi_modal_projector: a llava has this part, and no tensor of it is stored"));
}

TEST(Wrapper, TensorsOfNobodyAndTwoLayoutsAreRefused) {
  ScratchLlava model;
  model.tensors["vision_towers.weight"] = scratch_ramp({4});
  EXPECT_THAT(llava_refusal(model), HasSubstr("vision_towers.weight: nothing in this family reads this"));
  ScratchLlava mixed;
  mixed.tensors["model.language_model.layers.0.input_layernorm.weight"] = scratch_ramp({16});
  EXPECT_THAT(llava_refusal(mixed), HasSubstr("in two layouts of names"));
}

TEST(Wrapper, SizesThatATextConfigLeavesOutAreItsClasss) {
  ScratchLlava model;
  model.config["text_config"].erase("hidden_size");
  EXPECT_THAT(llava_refusal(model), HasSubstr("4096"));
}

// A text has one position three times, so sections that are all angles turn it as plain rope does.
TEST(Wrapper, SectionsOfRopeAreAllAngles) {
  ScratchLlava model;
  const auto as_qwen = [&](const Json& rope) {
    model.config["model_type"] = "qwen2_vl";
    model.config["architectures"] = Json::array({"Qwen2VLForConditionalGeneration"});
    model.config["text_config"]["model_type"] = "qwen2_vl_text";
    model.config["text_config"]["rope_scaling"] = rope;
    return llava_refusal(model);
  };
  const auto with = [](Json sections) {
    return Json::object({{"type", "mrope"}, {"mrope_section", std::move(sections)}});
  };
  EXPECT_THAT(as_qwen(with(Json::array({1, 0, 2}))), HasSubstr("text_config.rope_scaling.mrope_section"));
  EXPECT_THAT(as_qwen(with(Json::array({1, 1}))), HasSubstr("mrope_section"));
  EXPECT_THAT(as_qwen(with(Json::array({3, -1, 0}))), HasSubstr("mrope_section"));
  EXPECT_THAT(as_qwen(with(Json("all"))), HasSubstr("mrope_section"));
  EXPECT_THAT(as_qwen(with(Json::array({1, 1, 0}))), Not(HasSubstr("mrope_section")));
  // A decoder without sections has no rope of that name.
  ScratchLlava plain;
  plain.config["text_config"]["rope_scaling"] = with(Json::array({1, 1, 0}));
  EXPECT_THAT(llava_refusal(plain), HasSubstr("\"mrope\", a rope scaling that is not known here"));
}

}  // namespace
}  // namespace llmq
