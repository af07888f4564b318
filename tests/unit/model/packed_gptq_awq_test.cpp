// What a packed module of AutoAWQ or GPTQ may say, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "model/linear_source.h"
#include "packed_model.h"
#include "support/named_parts.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;

TEST(LinearSource, AwqLiesAreRefused) {
  const Json cases = load_cases("packed_awq.json");
  const auto found = [&](const auto& tell) {
    ScratchModel model;
    pack_queries(model, cases.items()[0]);
    tell(model);
    return error_of([&] {
      const Checkpoint checkpoint = model.open();
      const ModelSpec spec = ModelSpec::read(checkpoint);
      LinearSource::open(checkpoint).weight(linear_named(spec.blocks[0], "q_proj"), threads());
    });
  };
  EXPECT_EQ(found([](ScratchModel&) {}), "");
  // What other writers, ours among them, add without changing what the words mean.
  EXPECT_EQ(found([](ScratchModel& m) {
              m.config["quantization_config"]["provider"] = "llmq";
              m.config["quantization_config"]["version"] = "GEMM";
              m.config["quantization_config"]["modules_to_not_convert"] = Json::array({"lm_head"});
            }),
            "");
  EXPECT_THAT(found([](ScratchModel& m) { m.config["quantization_config"]["version"] = "gemv"; }),
              HasSubstr("AWQ version \"gemv\""));
  EXPECT_THAT(found([](ScratchModel& m) { m.config["quantization_config"]["bits"] = 8; }),
              HasSubstr("bits: is 8"));
  EXPECT_THAT(found([](ScratchModel& m) { m.config["quantization_config"]["group_size"] = 16; }),
              HasSubstr("scales: has shape [2, 16], expected [1, 16]"));
  EXPECT_THAT(found([](ScratchModel& m) { m.config["quantization_config"]["desc_act"] = true; }),
              HasSubstr("desc_act"));
  EXPECT_THAT(found([](ScratchModel& m) { m.config["quantization_config"]["zero_point"] = false; }),
              HasSubstr("qzeros: holds a zero other than 8"));
  EXPECT_THAT(found([](ScratchModel& m) { m.tensors.erase(kModule + ".qzeros"); }),
              HasSubstr("qzeros: is missing"));
  EXPECT_THAT(found([](ScratchModel& m) { m.tensors[kModule + ".g_idx"] = scratch_ramp({16}); }),
              HasSubstr("g_idx"));
}

// What reading block 0's q_proj of a GPTQ model says after `tell` changed it.
template <typename Tell>
std::string gptq_error(std::size_t index, const Tell& tell) {
  const Json cases = load_cases("packed_gptq.json");
  ScratchModel model;
  pack_queries(model, cases.items()[index]);
  tell(model, model.config["quantization_config"]);
  return error_of([&] {
    const Checkpoint checkpoint = model.open();
    const ModelSpec spec = ModelSpec::read(checkpoint);
    LinearSource::open(checkpoint).weight(linear_named(spec.blocks[0], "q_proj"), threads());
  });
}

TEST(LinearSource, GptqLiesAreRefused) {
  constexpr std::size_t kV1 = 0, kV1Wrapped = 1, kV2 = 4;
  const auto found = [](std::size_t index, const auto& tell) { return gptq_error(index, tell); };
  EXPECT_EQ(found(kV1, [](ScratchModel&, Json&) {}), "");
  EXPECT_THAT(found(kV1, [](ScratchModel&, Json& q) { q["checkpoint_format"] = "marlin"; }),
              HasSubstr("checkpoint_format: the format \"marlin\""));
  EXPECT_THAT(found(kV1, [](ScratchModel&, Json& q) { q["format"] = "gptq_v2"; }),
              HasSubstr("format: is \"gptq_v2\", and checkpoint_format \"gptq\""));
  EXPECT_THAT(found(kV1, [](ScratchModel&, Json& q) { q["bits"] = 5; }), HasSubstr("bits: is 5"));
  EXPECT_THAT(found(kV1, [](ScratchModel&, Json& q) { q["bits"] = 3; }),
              HasSubstr("qweight: has shape [2, 16]"));
  EXPECT_THAT(found(kV1, [](ScratchModel&, Json& q) { q["bits"] = 8, q["group_size"] = 4; }),
              HasSubstr("qzeros: has shape [2, 2], expected [2, 4]"));
  EXPECT_THAT(found(kV1, [](ScratchModel&, Json& q) { q["group_size"] = 0; }), HasSubstr("group_size: is 0"));
  EXPECT_THAT(found(kV1, [](ScratchModel&, Json& q) { q["group_size"] = 16; }),
              HasSubstr("scales: has shape [2, 16], expected [1, 16]"));
  EXPECT_THAT(found(kV1, [](ScratchModel&, Json& q) { q["pack_dtype"] = "int16"; }), HasSubstr("pack_dtype"));
  EXPECT_THAT(found(kV1, [](ScratchModel&, Json& q) { q["rotation"] = "hadamard"; }), HasSubstr("rotation"));
  EXPECT_THAT(found(kV1, [](ScratchModel&, Json& q) { q["checkpoint_format"] = "gptq_v2"; }),
              HasSubstr("qzeros: holds a zero other than 8"));
  EXPECT_THAT(found(kV2, [](ScratchModel&, Json& q) { q["sym"] = true; }),
              HasSubstr("qzeros: holds a zero other than 8"));
  EXPECT_THAT(found(kV1, [](ScratchModel& m, Json&) { m.tensors.erase(kModule + ".qzeros"); }),
              HasSubstr("qzeros: is missing"));
  EXPECT_THAT(found(kV1, [](ScratchModel& m, Json&) { m.tensors[kModule + ".g_idx"] = group_index(16, 7); }),
              HasSubstr("g_idx: puts column 3 into group 7"));
  EXPECT_THAT(
      found(kV1, [](ScratchModel& m, Json&) { m.tensors[kModule + ".qweight"] = scratch_ramp({16}); }),
      HasSubstr("qweight: has shape [16]"));
  EXPECT_THAT(
      found(kV1, [](ScratchModel& m, Json&) { m.tensors[kModule + ".weight_g_idx"] = group_index(16, 0); }),
      HasSubstr("weight_g_idx: has no meaning"));
  EXPECT_THAT(found(kV1, [](ScratchModel&, Json& q) { q["dynamic"]["-:.*q_proj"] = Json::object(); }),
              HasSubstr("is stored, but no group"));
  EXPECT_THAT(found(kV1, [](ScratchModel&, Json& q) { q["dynamic"]["+:("] = Json::object(); }),
              HasSubstr("quantization_config.dynamic.+:("));
  EXPECT_THAT(found(kV1,
                    [](ScratchModel&, Json& q) {
                      q["dynamic"]["q"] = Json::object({{"codebook", 1}});
                    }),
              HasSubstr("codebook"));
  EXPECT_THAT(found(kV1, [](ScratchModel&, Json& q) { q["dynamic"] = 3; }),
              HasSubstr("dynamic: expected an object"));
  // Zeros of 0 in v1 are GPTQModel's own; from anyone else such a field says two things.
  EXPECT_THAT(found(kV1Wrapped, [](ScratchModel&, Json& q) { q["meta"]["quantizer"] = "auto_gptq"; }),
              HasSubstr("qzeros: holds a zero of 16, stored less one: programs disagree"));
}

// Runs of columns that share a group need no index, whatever their groups are called.
TEST(LinearSource, GroupsInAnotherOrderAreRenamed) {
  const Json cases = load_cases("packed_gptq.json");
  ScratchModel model;
  pack_queries(model, cases.items()[0]);  // 4 bits, two groups of 8
  const QuantizedMatrix before = LinearSource::open(model.open()).quantized(kModule);
  std::vector<std::int32_t> index(16, 1);
  std::fill(index.begin() + 8, index.end(), 0);
  model.tensors[kModule + ".g_idx"] = scratch_tensor<std::int32_t>("I32", {16}, index);
  const LinearSource source = LinearSource::open(model.open());
  EXPECT_FALSE(source.packed_shape(kModule).column_groups);
  const QuantizedMatrix after = source.quantized(kModule);
  EXPECT_TRUE(after.column_group.empty());
  for (std::size_t n = 0; n < 16; ++n)
    for (std::size_t g = 0; g < 2; ++g) EXPECT_EQ(after.scales[2 * n + g], before.scales[2 * n + 1 - g]);
  index[3] = 0;  // one column out of its run
  model.tensors[kModule + ".g_idx"] = scratch_tensor<std::int32_t>("I32", {16}, index);
  EXPECT_EQ(LinearSource::open(model.open()).quantized(kModule).column_group, index);
}

TEST(LinearSource, TheFirstGptqRuleThatMatchesHolds) {
  // Block 0 is 4 bits in groups of 8 as the base says; block 1 is 8 bits per channel by a rule.
  const Json cases = load_cases("packed_gptq.json");
  ScratchModel model;
  pack_queries(model, cases.items()[4]);
  add_packed(model, kOther, cases.items()[5]);
  model.config["quantization_config"]["dynamic"] = Json::object(
      {{"-:.*k_proj", Json::object()},
       {"+:^model\\.layers\\.1\\.", Json::object({{"bits", 8}, {"group_size", -1}, {"sym", true}})},
       {".*q_proj", Json::object({{"desc_act", true}})}});
  const Checkpoint checkpoint = model.open();
  ModelSpec::read(checkpoint);
  const LinearSource source = LinearSource::open(checkpoint);
  EXPECT_EQ(source.packed_shape(kModule).scheme.text(), "w4a16_g8_asym");
  EXPECT_TRUE(source.packed_shape(kModule).column_groups);
  EXPECT_EQ(source.quantized(kOther).scheme.text(), "w8a16_channel_sym");
  EXPECT_EQ(source.packed_modules(), (std::vector<std::string>{kModule, kOther}));
}

}  // namespace
}  // namespace llmq
