// Softcaps and sinks: which families have them, where a config says otherwise, and what is refused. Their
// numbers are held by tests/golden/models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scratch_gpt_oss.h"
#include "support/named_parts.h"

namespace llmq {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string softcap_refusal(const ScratchModel& model) {
  return error_of([&] { ModelSpec::read(model.open()); });
}

// ScratchModel as a Gemma 2: norms of 1 + w before and behind each mixer.
class ScratchGemma2 : public ScratchModel {
 public:
  ScratchGemma2() : ScratchModel("gemma2", "Gemma2ForCausalLM") {
    for (const char* norm : {"pre_feedforward_layernorm", "post_feedforward_layernorm"})
      add_to_blocks(norm + std::string(".weight"), scratch_ramp({16}));
    config["head_dim"] = 4;
    config["hidden_act"] = nullptr;
    config["query_pre_attn_scalar"] = 16;
    config["sliding_window"] = 5;
  }
};

TEST(Gemma2, CapsScoresAndLogits) {
  ScratchGemma2 model;
  const ModelSpec absent = ModelSpec::read(model.open());
  EXPECT_EQ(absent.logit_softcap, 30);
  EXPECT_EQ(absent.blocks[1].attention()->softcap, 50);
  EXPECT_EQ(absent.blocks[1].attention()->scale, 0.25f);
  EXPECT_EQ(absent.embedding.scale, 4);
  EXPECT_TRUE(absent.embedding.scale_in_table_type);
  EXPECT_THAT(windows_of(absent), ElementsAre(5, 0)) << "every other block has one";
  for (const NormSpec& norm : absent.blocks[0].norms) EXPECT_EQ(norm.offset, 1) << norm.gain.tensor;
  model.config["attn_logit_softcapping"] = 2.5;
  model.config["final_logit_softcapping"] = nullptr;
  const ModelSpec given = ModelSpec::read(model.open());
  EXPECT_EQ(given.blocks[0].attention()->softcap, 2.5f);
  EXPECT_EQ(given.logit_softcap, 0) << "null is none";
}

TEST(Gemma2, OtherFormsAreRefusedByName) {
  for (const auto& [key, value] : {std::pair<const char*, Json>{"attn_logit_softcapping", 0.0},
                                   {"final_logit_softcapping", -30.0},
                                   {"final_logit_softcapping", "30"},
                                   {"use_bidirectional_attention", true},
                                   {"hidden_activation", "silu"},
                                   {"sliding_window", nullptr}}) {
    ScratchGemma2 model;
    model.config[key] = value;
    EXPECT_THAT(softcap_refusal(model), HasSubstr(key));
  }
}

TEST(GptOss, HasSinksBiasesAndAClampedMixture) {
  const ScratchGptOss model;
  const ModelSpec spec = ModelSpec::read(model.open());
  const BlockSpec& block = spec.blocks[1];
  EXPECT_EQ(block.at(block.attention()->sinks.value()).place.tensor, "model.layers.1.self_attn.sinks");
  EXPECT_TRUE(block.at(*block.attention()->sinks).by_heads);
  EXPECT_THAT(windows_of(spec), ElementsAre(6, 0));
  EXPECT_FALSE(spec.ropes.at(0).truncate);
  const MixtureSpec& mixture = *block.mixture();
  EXPECT_EQ(mixture.activation, Activation::kClampedSwiglu);
  EXPECT_TRUE(mixture.normalized);
  EXPECT_EQ(block.at(mixture.router).bias.tensor, "model.layers.1.mlp.router.bias");
  EXPECT_EQ(block.at(mixture.experts[1].up.linear).bias.tensor, "model.layers.1.mlp.experts.1.up_proj.bias");
  for (const ExpertSpec& expert : mixture.experts)
    EXPECT_TRUE(std::holds_alternative<std::monostate>(block.at(expert.inner).producer))
        << "no scale passes a clamp and a sum";
}

// Of expert e the column 2 r of a stored row is gate's row r, the next one up's; biases alike.
TEST(GptOss, GateAndUpTakeTurns) {
  const ScratchGptOss model;
  const Checkpoint checkpoint = model.open();
  const auto values = [&](const char* name) {
    return checkpoint.read_float32(checkpoint.at(std::string("model.layers.0.mlp.experts.") + name));
  };
  const auto ramp = [](std::int64_t i) { return 0.001f * static_cast<float>(i % 977) - 0.4f; };
  const std::vector<float> up = values("1.up_proj.weight"), bias = values("1.up_proj.bias"),
                           gate = values("0.gate_proj.weight"), down = values("1.down_proj.weight");
  for (std::int64_t r = 0; r < 32; ++r) {
    EXPECT_EQ(bias[static_cast<std::size_t>(r)], ramp(64 + 2 * r + 1));
    for (std::int64_t c = 0; c < 32; ++c) {
      const auto at = static_cast<std::size_t>(r * 32 + c);
      ASSERT_EQ(gate[at], ramp(c * 64 + 2 * r)) << r << " " << c;
      ASSERT_EQ(up[at], ramp(2048 + c * 64 + 2 * r + 1)) << r << " " << c;
      ASSERT_EQ(down[at], ramp(1024 + c * 32 + r)) << r << " " << c;
    }
  }
}

TEST(GptOss, Mxfp4IsReadAsTheNumbersItStandsFor) {
  ScratchGptOss model;
  model.as_mxfp4();
  const Checkpoint checkpoint = model.open();
  ModelSpec::read(checkpoint);
  constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const auto expected = [&](std::int64_t row, std::int64_t column) {
    const int code = ScratchGptOss::code(row, column);
    return std::ldexp(code < 8 ? kValues[code] : -kValues[code - 8], ScratchGptOss::exponent(row) - 127);
  };
  for (const auto& [name, turn] : {std::pair{"1.gate_proj.weight", 0}, {"1.up_proj.weight", 1}}) {
    const std::vector<float> values =
        checkpoint.read_float32(checkpoint.at(std::string("model.layers.1.mlp.experts.") + name));
    ASSERT_EQ(values.size(), 32u * 32u);
    for (std::int64_t i = 0; i < 32 * 32; ++i)
      ASSERT_EQ(values[static_cast<std::size_t>(i)], expected(64 + 2 * (i / 32) + turn, i % 32)) << name << i;
  }
}

TEST(GptOss, WhatIsNoMxfp4IsRefused) {
  ScratchGptOss model;
  model.as_mxfp4();
  const std::string scales = "model.layers.1.mlp.experts.down_proj_scales";
  const ScratchTensor kept = model.tensors.at(scales);
  model.tensors.erase(scales);
  EXPECT_THAT(softcap_refusal(model), HasSubstr("has no exponents beside it: " + scales));
  model.tensors[scales] = scratch_tensor("U8", {2, 16, 2}, std::vector<std::uint8_t>(64));
  EXPECT_THAT(softcap_refusal(model), HasSubstr("MXFP4 is U8 [matrices, rows, blocks, 16]"));
  model.tensors[scales] = kept;
  model.tensors["model.layers.1.mlp.experts.down_proj_blocks"] =
      scratch_tensor("U8", {2, 32, 16}, std::vector<std::uint8_t>(1024));
  EXPECT_THAT(softcap_refusal(model), HasSubstr("MXFP4 is U8 [matrices, rows, blocks, 16]"));
}

// E8M0 has no infinity, and 255 is its NaN. Row 3 of up is row 7 of the stored ones of its expert.
TEST(GptOss, AnExponentThatIsNoNumberIsRefusedWithItsPlace) {
  ScratchGptOss model;
  model.as_mxfp4();
  ScratchTensor& scales = model.tensors.at("model.layers.1.mlp.experts.gate_up_proj_scales");
  scales.bytes.at(64 + 7) = static_cast<char>(255);
  const Checkpoint checkpoint = model.open();
  const auto read = [&](const char* name) {
    return checkpoint.read_float32(checkpoint.at(std::string("model.layers.1.mlp.experts.") + name));
  };
  EXPECT_EQ(read("1.gate_proj.weight").size(), 1024u) << "the rows beside it are whole";
  EXPECT_EQ(read("0.up_proj.weight").size(), 1024u);
  try {
    read("1.up_proj.weight");
    ADD_FAILURE() << "read";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("model.layers.1.mlp.experts.1.up_proj.weight"));
    EXPECT_THAT(error.what(), HasSubstr("has the exponent byte 255 at row 3, block 0"));
  }
}

TEST(GptOss, OtherFormsAreRefusedByName) {
  for (const auto& [key, value] : {std::pair<const char*, Json>{"swiglu_limit", 8.0},
                                   {"swiglu_alpha", 1.5},
                                   {"hidden_act", "gelu_pytorch_tanh"},
                                   {"sliding_window", nullptr},
                                   {"rope_scaling", nullptr}}) {
    ScratchGptOss model;
    model.config[key] = value;
    EXPECT_THAT(softcap_refusal(model), HasSubstr(key));
  }
  ScratchGptOss model;
  model.add_to_blocks("self_attn.sinks", scratch_ramp({5}));
  EXPECT_THAT(softcap_refusal(model), HasSubstr("self_attn.sinks: has shape [5]"));
}

TEST(GptOss, ItsCheckpointsAreMxfp4Alone) {
  const ScratchGptOss model;
  const ModelSpec spec = ModelSpec::read(model.open());
  EXPECT_THAT(error_of([&] { require_written(spec, "compressed-tensors", "r.yaml"); }),
              HasSubstr("no checkpoint of family gpt_oss is written as compressed-tensors"));
  EXPECT_EQ(error_of([&] { require_written(spec, "mxfp4", "r.yaml"); }), "");
  EXPECT_EQ(error_of([&] { require_written(ModelSpec::read(ScratchGemma2().open()), "awq", "r.yaml"); }), "");
}

// Bytes of a stack stay what they were, whatever names its parts have here.
TEST(GptOss, StacksAreKeptBesideTheirParts) {
  ScratchGptOss model;
  EXPECT_EQ(model.open().stacks().size(), 8u);
  model.as_mxfp4();
  const Checkpoint checkpoint = model.open();
  ASSERT_EQ(checkpoint.stacks().size(), 8u) << "matrices and biases of two blocks";
  const StoredStack& stack = checkpoint.stacks()[static_cast<std::size_t>(
      checkpoint.at("model.layers.1.mlp.experts.0.up_proj.weight").stack)];
  EXPECT_EQ(stack.name, "model.layers.1.mlp.experts.gate_up_proj");
  EXPECT_THAT(stack.parts, ElementsAre(HasSubstr("0.gate_proj.weight"), HasSubstr("0.up_proj.weight"),
                                       HasSubstr("1.gate_proj.weight"), HasSubstr("1.up_proj.weight")));
  const StoredTensor& codes = checkpoint.at(stack.name + "_blocks");
  EXPECT_EQ(codes.view.shape, (Shape{2, 64, 1, 16}));
  EXPECT_EQ(std::string(codes.view.as<const char>(), codes.view.bytes()),
            model.tensors.at(stack.name + "_blocks").bytes);
}

}  // namespace
}  // namespace llmq
