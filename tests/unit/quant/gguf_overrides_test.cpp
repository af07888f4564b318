// Types of a GGUF that overrides name: what gets them, what keeps the mix's, and what is refused or said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/open_checkpoint.h"
#include "quant/plan/gguf_plan.h"
#include "quant/plan/plan_json.h"

namespace llmq {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// 128 wide, 384 inside, two blocks, F32, its head is its embedding.
const Path kTied = Path(LLMQ_SOURCE_DIR) / "tests/models/tinystories-656k",
           kGolden = Path(LLMQ_SOURCE_DIR) / "tests/golden/models";

GgufPlan typed_plan(const std::string& text, const Path& model = kTied) {
  const Checkpoint checkpoint = open_checkpoint(system_io(), model.string());
  return make_gguf_plan(system_io(), Recipe::parse("format: gguf\n" + text, "r.yaml"), checkpoint,
                        ModelSpec::read(checkpoint), Compute::kFloat32, 0);
}

std::string typed_error(const std::string& text, const Path& model = kTied) {
  try {
    typed_plan(text, model);
    return {};
  } catch (const Error& error) {
    return error.detail().where + ": " + error.detail().message + "; " + error.detail().hint;
  }
}

std::map<std::string, DType> types_of(const GgufPlan& plan) {
  std::map<std::string, DType> types;
  for (const GgufPlan::Tensor& tensor : plan.tensors) types[tensor.name] = tensor.dtype;
  return types;
}

const std::string kMix = "method: rtn\nscheme: q4_k_m\n";

TEST(GgufOverrides, TheLastThatMatchesGivesItsType) {
  const GgufPlan plain = typed_plan(kMix);
  const GgufPlan plan = typed_plan(
      kMix +
      "overrides: [{match: 're:.*down_proj', scheme: q5_1}, {match: 're:.*layers.1.mlp.down_proj', scheme: "
      "Q8_0}, {match: model.embed_tokens, scheme: iq4_nl}, {match: q_proj, scheme: bf16}]\n");
  std::map<std::string, DType> expected = types_of(plain);
  expected["blk.0.ffn_down.weight"] = DType::kQ5_1;
  expected["blk.1.ffn_down.weight"] = DType::kQ8_0;
  expected["token_embd.weight"] = DType::kIQ4_NL;
  expected["blk.0.attn_q.weight"] = expected["blk.1.attn_q.weight"] = DType::kBF16;
  EXPECT_EQ(types_of(plan), expected);
  EXPECT_THAT(plan.warnings, IsEmpty());
  EXPECT_EQ(plan.asked_text(), "BF16 of 2 tensors, Q5_1 of 1 tensor, Q8_0 of 1 tensor, IQ4_NL of 1 tensor");

  std::uint64_t bytes = plain.bytes_out();
  for (std::size_t i = 0; i < plan.tensors.size(); ++i)
    bytes += plan.tensors[i].bytes_out() - plain.tensors[i].bytes_out();
  EXPECT_EQ(plan.bytes_out(), bytes);
  EXPECT_NE(plan.bytes_out(), plain.bytes_out());
  EXPECT_EQ(plan.file_type->name, "Q4_K_M");
}

TEST(GgufOverrides, NameTiedEmbeddingsByEitherName) {
  for (const char* name : {"lm_head", "model.embed_tokens"})
    EXPECT_EQ(types_of(typed_plan(fmt::format("{}overrides: [{{match: {}, scheme: q5_0}}]\n", kMix, name)))
                  .at("token_embd.weight"),
              DType::kQ5_0);
  const std::map<std::string, DType> apart =
      types_of(typed_plan("method: rtn\nscheme: q8_0\noverrides: [{match: lm_head, scheme: f16}]\n",
                          kGolden / "qwen3_moe/model"));
  EXPECT_EQ(apart.at("output.weight"), DType::kF16);
  EXPECT_EQ(apart.at("token_embd.weight"), DType::kQ8_0);
}

// llama-quantize does not count what it is told: there block 1 would be the first, and get Q5_0.
TEST(GgufOverrides, WhatIsNotNamedKeepsTheMix) {
  const std::map<std::string, DType> plain = types_of(typed_plan(kMix));
  ASSERT_EQ(plain.at("blk.0.attn_v.weight"), DType::kQ5_0);
  ASSERT_EQ(plain.at("blk.1.attn_v.weight"), DType::kQ8_0);
  const std::map<std::string, DType> named =
      types_of(typed_plan(kMix + "overrides: [{match: 're:.*layers.0.*v_proj', scheme: q4_0}]\n"));
  EXPECT_EQ(named.at("blk.0.attn_v.weight"), DType::kQ4_0);
  EXPECT_EQ(named.at("blk.1.attn_v.weight"), DType::kQ8_0);
}

TEST(GgufOverrides, RowsThatBlocksDoNotDivideTakeAnotherTypeInWords) {
  const GgufPlan plan =
      typed_plan("method: rtn\nscheme: q4_0\noverrides: [{match: 're:.*mlp', scheme: q6_k}]\n");
  for (const char* name : {"blk.0.ffn_down.weight", "blk.1.ffn_up.weight"})
    EXPECT_EQ(types_of(plan).at(name), DType::kQ8_0) << name;
  EXPECT_THAT(plan.warnings,
              ElementsAre("overrides: blk.0.ffn_down.weight becomes Q8_0, for blocks of Q6_K do "
                          "not divide its rows of 384, and so it is with 5 more"));
}

TEST(GgufOverrides, DenseIsWhatTheCheckpointStores) {
  const std::string left =
      kMix + "overrides: [{match: up_proj, scheme: dense}, {match: q_proj, scheme: dense}]\n";
  EXPECT_EQ(types_of(typed_plan(left)).at("blk.0.ffn_up.weight"), DType::kF32);
  const std::map<std::string, DType> others = types_of(typed_plan(left, kGolden / "gpt_oss-mxfp4/model"));
  EXPECT_EQ(others.at("blk.0.attn_q.weight"), DType::kBF16) << "stored so";
  EXPECT_EQ(others.at("blk.0.ffn_up_exps.weight"), DType::kBF16) << "of codes";
}

// A file of numbers may have tensors in blocks, and importance is for those.
TEST(GgufOverrides, GoWithEveryType) {
  const GgufPlan plan =
      typed_plan("method: imatrix\nscheme: bf16\noverrides: [{match: v_proj, scheme: q4_0}]\n");
  const std::map<std::string, DType> types = types_of(plan);
  EXPECT_EQ(types.at("blk.1.attn_v.weight"), DType::kQ4_0);
  EXPECT_EQ(types.at("blk.1.attn_k.weight"), DType::kBF16);
  EXPECT_EQ(plan.importance, "calibration");
  EXPECT_EQ(types_of(typed_plan("method: rtn\nscheme: q8_0\noverrides: [{match: v_proj, scheme: mxfp4}]\n"))
                .at("blk.0.attn_v.weight"),
            DType::kMXFP4);
  EXPECT_THAT(typed_error("method: imatrix\nscheme: bf16\noverrides: [{match: v_proj, scheme: f16}]\n"),
              HasSubstr("importance changes nothing"));
}

TEST(GgufOverrides, ExpertsOfALayerAreOneTensor) {
  const Path mixture = kGolden / "qwen3_moe/model";
  EXPECT_THAT(
      typed_error(kMix + "overrides: [{match: 're:.*layers.1.*experts.0.up_proj', scheme: q8_0}]\n", mixture),
      AllOf(HasSubstr("overrides: blk.1.ffn_up_exps.weight is one tensor of"),
            HasSubstr("experts.0.up_proj Q8_0, "), HasSubstr("experts.1.up_proj none"),
            HasSubstr("name all of them")));
  const std::map<std::string, DType> types = types_of(
      typed_plan(kMix + "overrides: [{match: 're:.*layers.1.*experts.*up_proj', scheme: q8_0}]\n", mixture));
  const std::map<std::string, DType> plain = types_of(typed_plan(kMix, mixture));
  EXPECT_EQ(types.at("blk.1.ffn_up_exps.weight"), DType::kQ8_0);
  EXPECT_EQ(types.at("blk.0.ffn_up_exps.weight"), plain.at("blk.0.ffn_up_exps.weight"));
  EXPECT_EQ(types.at("blk.1.ffn_gate_inp.weight"), DType::kF32);
}

TEST(GgufOverrides, CodesThatAFileKeepsAreNotRoundedByName) {
  const Path kept = kGolden / "gpt_oss-mxfp4/model";
  const std::string experts = "overrides: [{match: 're:.*experts.*', scheme: ";
  EXPECT_THAT(typed_error("method: rtn\nscheme: q8_0\n" + experts + "q8_0}]\n", kept),
              HasSubstr("keeps its codes of MXFP4"));
  EXPECT_EQ(types_of(typed_plan("method: rtn\nscheme: q8_0\n" + experts + "mxfp4}]\n", kept))
                .at("blk.0.ffn_down_exps.weight"),
            DType::kMXFP4);
  const GgufPlan rounded = typed_plan("method: rtn\nscheme: q4_0\n" + experts + "q8_0}]\n", kept);
  EXPECT_EQ(types_of(rounded).at("blk.0.ffn_down_exps.weight"), DType::kQ8_0);
}

TEST(GgufOverrides, WithoutEffectAreSaid) {
  const auto warned = [&](const std::string& match) {
    return typed_plan(kMix + "overrides: [{match: '" + match + "', scheme: q8_0}]\n").warnings;
  };
  EXPECT_THAT(
      warned("re:.*gate_projection"),
      ElementsAre(HasSubstr("overrides: 're:.*gate_projection' matches no linear of this model, whose "
                            "names are the checkpoint's")));
  EXPECT_THAT(warned("re:.*layernorm"), ElementsAre(AllOf(HasSubstr("'re:.*layernorm' names model.layers.1."),
                                                          HasSubstr("which is never quantized"))));
  EXPECT_THAT(warned("re:.*"), IsEmpty());
}

TEST(GgufOverrides, SayWhatIsNoTypeOfATensor) {
  const auto refused = [&](const std::string& scheme) {
    return typed_error(kMix + "overrides: [{match: q_proj, scheme: " + scheme + "}]\n");
  };
  EXPECT_THAT(refused("w4a16_g64"),
              AllOf(HasSubstr("overrides: 'q_proj' was given a scheme"), HasSubstr("iq4_xs, mxfp4")));
  EXPECT_THAT(refused("q7_k"), AllOf(HasSubstr("'q7_k'"), HasSubstr("in a GGUF f32, f16, bf16, q8_0, q4_0")));
  EXPECT_THAT(refused("q4_k_m"),
              AllOf(HasSubstr("'q4_k_m' is what a whole GGUF mixes"), HasSubstr("q4_k, ")));
  EXPECT_THAT(typed_error(kMix + "ignore: [q_proj]\n"),
              HasSubstr("overrides: [{match: NAME, scheme: bf16}]"));
}

// Its own words in a GGUF; elsewhere what stood there before.
TEST(GgufOverrides, StandInTheRecipeAsTheyWereWritten) {
  const std::string text =
      "overrides: [{match: a, scheme: q6_k}, {match: b, scheme: bf16}, {match: c, scheme: dense}, {match: d, "
      "scheme: mxfp4}]\nmethod: rtn\n";
  const Recipe recipe = Recipe::parse("format: gguf\n" + text, "r.yaml");
  const Json stated = recipe.to_json();
  std::vector<std::string> words;
  for (const Json& one : stated.at("overrides").items()) words.push_back(one.at("scheme").as_string());
  EXPECT_THAT(words, ElementsAre("q6_k", "bf16", "dense", "mxfp4"));
  EXPECT_EQ(Recipe::from_json(stated, "r.yaml").to_json(), stated);

  const Recipe elsewhere = Recipe::parse(
      "method: rtn\noverrides: [{match: b, scheme: bf16}, {match: d, scheme: mxfp4}]\n", "r.yaml");
  const Json list = elsewhere.to_json().at("overrides");
  EXPECT_EQ(list.items()[0].at("scheme"), Json("dense"));
  EXPECT_EQ(list.items()[1].at("scheme").at("type"), Json("float4"));
  EXPECT_EQ(Recipe::from_json(elsewhere.to_json(), "r.yaml").to_json(), elsewhere.to_json());
}

TEST(GgufOverrides, OtherFormatsRefuseTheirTypes) {
  const Checkpoint checkpoint = open_checkpoint(system_io(), kTied.string());
  try {
    make_plan(Recipe::parse("method: rtn\noverrides: [{match: q_proj, scheme: q6_k}]\n", "r.yaml"),
              checkpoint, ModelSpec::read(checkpoint), Compute::kFloat32, 1, 0);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.detail().message,
              "scheme q6_k of 'q_proj' is a type of GGUF, and the format is compressed-tensors");
    EXPECT_EQ(error.detail().hint, "write format: gguf");
  }
}

}  // namespace
}  // namespace llmq
