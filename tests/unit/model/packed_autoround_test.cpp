// What AutoRound says in its own container and in AutoAWQ's and GPTQ's, and what is refused. Checkpoints that
// it wrote are read whole by tests/golden/models (autoround-*).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "model/linear_source.h"
#include "packed_model.h"
#include "support/named_parts.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kLessOne = 0, kPlain = 4;  // cases of packed_gptq.json: 4 bits, groups of 8

// What reading block 0's q_proj says; the q_proj are packed as `file` says, in the container that `change`
// makes of its quantization_config.
template <typename Change>
std::string reading_error(const char* file, std::size_t index, const Change& change) {
  ScratchModel model;
  pack_queries(model, load_cases(file).items()[index]);
  change(model.config["quantization_config"]);
  return error_of([&] {
    const Checkpoint checkpoint = model.open();
    const ModelSpec spec = ModelSpec::read(checkpoint);
    LinearSource::open(checkpoint).weight(linear_named(spec.blocks[0], "q_proj"), threads());
  });
}

// Their own container around the words of packed_gptq.json.
Json own_container(bool symmetric, const char* packing) {
  return Json::object({{"quant_method", "auto-round"},
                       {"packing_format", packing},
                       {"bits", 4},
                       {"group_size", 8},
                       {"sym", symmetric},
                       {"data_type", "int"},
                       {"autoround_version", "0.16.1"},
                       {"block_name_to_quantize", "model.layers"},
                       {"enable_quanted_input", false}});
}

TEST(AutoRound, ItsOwnContainerHoldsTheWordsOfOthers) {
  for (const auto& [index, symmetric, packing] :
       {std::tuple{kLessOne, true, "auto_round:auto_gptq"}, std::tuple{kPlain, false, "auto_round:gptqmodel"},
        std::tuple{kPlain, false, "auto_round"}}) {
    SCOPED_TRACE(packing);
    ScratchModel model;
    pack_queries(model, load_cases("packed_gptq.json").items()[index]);
    const QuantizedMatrix expected = LinearSource::open(model.open()).quantized(kModule);
    model.config["quantization_config"] = own_container(symmetric, packing);
    const QuantizedMatrix found = LinearSource::open(model.open()).quantized(kModule);
    EXPECT_EQ(found.codes, expected.codes);
    EXPECT_EQ(found.zeros, expected.zeros);
    EXPECT_EQ(found.scales, expected.scales);
  }
}

TEST(AutoRound, FieldsThatSayWhoMadeItPassInEveryContainer) {
  const Json fields = Json::object({{"autoround_version", "0.16.1"},
                                    {"provider", "auto-round"},
                                    {"data_type", "int"},
                                    {"act_bits", 16},
                                    {"act_data_type", nullptr},
                                    {"act_dynamic", true},
                                    {"to_quant_block_names", "model.layers"},
                                    {"enable_quanted_input", false},
                                    {"enable_norm_bias_tuning", true},
                                    {"iters", 1000},
                                    {"lr", 0.002},
                                    {"minmax_lr", 0.001},
                                    {"nsamples", 512},
                                    {"seqlen", 4096},
                                    {"scale_dtype", "torch.float32"},
                                    {"low_gpu_mem_usage", true},
                                    {"gradient_accumulate_steps", 4},
                                    {"rotation_config", nullptr}});
  const auto signed_by_autoround = [&](Json& q) {
    for (const Json::Member& field : fields.members()) q[field.first] = field.second;
  };
  EXPECT_EQ(reading_error("packed_awq.json", 0, signed_by_autoround), "");
  EXPECT_EQ(reading_error("packed_gptq.json", kLessOne, signed_by_autoround), "");
  EXPECT_EQ(reading_error("packed_gptq.json", kLessOne,
                          [&](Json& q) {
                            q = own_container(true, "auto_round:auto_gptq");
                            signed_by_autoround(q);
                          }),
            "");
}

TEST(AutoRound, FieldsThatChangeTheMathematicsAreRefusedInEveryContainer) {
  struct Case {
    const char* key;
    Json value;
    const char* says;
  };
  const Case cases[] = {
      {"data_type", "mx_fp", "quantization_config.data_type: is \"mx_fp\", which changes the mathematics"},
      {"data_type", "int_sym_dq", "only \"int\" is supported"},
      {"act_bits", 8, "act_bits: is 8; inputs rounded by AutoRound are not supported"},
      {"super_bits", 6, "quantization_config.super_bits: this field is not known"},
      {"rotation_config", Json::object({{"R1", true}}), "rotation_config: this field is not known"},
      {"static_kv_dtype", "fp8", "static_kv_dtype: this field is not known"},
      {"static_attention_dtype", "fp8", "static_attention_dtype: this field is not known"},
      {"codebook", 1, "codebook: this field is not known"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.key);
    const auto add = [&](Json& q) { q[one.key] = one.value; };
    EXPECT_THAT(reading_error("packed_awq.json", 0, add), HasSubstr(one.says));
    EXPECT_THAT(reading_error("packed_gptq.json", kLessOne, add), HasSubstr(one.says));
    EXPECT_THAT(reading_error("packed_gptq.json", kLessOne,
                              [&](Json& q) {
                                q = own_container(true, "auto_round:auto_gptq");
                                add(q);
                              }),
                HasSubstr(one.says));
  }
}

// What reading q_proj says of their own container after `tell` changed it.
template <typename Tell>
std::string own_error(const Tell& tell) {
  return reading_error("packed_gptq.json", kLessOne, [&](Json& q) {
    q = own_container(true, "auto_round:auto_gptq");
    tell(q);
  });
}

TEST(AutoRound, ALieOfItsOwnContainerIsRefused) {
  EXPECT_EQ(own_error([](Json&) {}), "");
  for (const char* packing : {"auto_round:fp8", "auto_round:llm_compressor", "auto_round:mlx", "gptq"})
    EXPECT_THAT(own_error([&](Json& q) { q["packing_format"] = packing; }),
                HasSubstr("packing_format: the format \"" + std::string(packing) + "\" is not known here"));
  EXPECT_THAT(own_error([](Json& q) { q.erase("packing_format"); }), HasSubstr("packing_format: is missing"));
  EXPECT_THAT(own_error([](Json& q) { q.erase("sym"); }), HasSubstr("sym: is missing"));
  EXPECT_THAT(own_error([](Json& q) { q["bits"] = 16; }), HasSubstr("bits: is above 8"));
  EXPECT_THAT(own_error([](Json& q) { q["bits"] = 3; }), HasSubstr("qweight: has shape [2, 16]"));
  EXPECT_THAT(own_error([](Json& q) { q["group_size"] = 16; }), HasSubstr("scales: has shape [2, 16]"));
  // Zeros are stored less one in one container and as they are in another.
  EXPECT_THAT(own_error([](Json& q) { q["packing_format"] = "auto_round:gptqmodel"; }),
              HasSubstr("qzeros: holds a zero other than 8"));
  EXPECT_THAT(own_error([](Json& q) {
                q["packing_format"] = "auto_round:auto_awq";
                q["bits"] = 8;
              }),
              HasSubstr("bits: is 8; auto_round:auto_awq is known for 4 only"));
}

TEST(AutoRound, ModulesWithAnotherSchemeAreNamedOrMatched) {
  const auto extra = [](const char* name, Json value) {
    return [name, value = std::move(value)](Json& q) { q["extra_config"][name] = value; };
  };
  const Json dense = Json::object({{"bits", 16}, {"data_type", "fp"}});
  const std::string stored = "is stored, but no group of quantization_config names its module";
  EXPECT_THAT(own_error(extra(kModule.c_str(), dense)), HasSubstr(stored));
  EXPECT_THAT(own_error(extra("q_proj", dense)), HasSubstr(stored));  // an expression, anywhere in the name
  EXPECT_THAT(own_error(extra(".*layers\\.[0-9]\\.self_attn.*", dense)), HasSubstr(stored));
  EXPECT_EQ(own_error(extra("^q_proj", dense)), "");
  EXPECT_EQ(own_error(extra("k_proj", dense)), "");
  EXPECT_EQ(own_error(extra("q_proj", Json::object())), "");
  EXPECT_THAT(own_error(extra("q_proj", Json::object({{"bits", 8}}))), HasSubstr("scales: has shape"));
  EXPECT_THAT(own_error(extra("(", dense)), HasSubstr("extra_config.("));
  EXPECT_THAT(own_error(extra("q_proj", Json::object({{"act_bits", 8}}))), HasSubstr("act_bits: is 8"));
  EXPECT_THAT(own_error(extra("q_proj", Json::object({{"codebook", 1}}))), HasSubstr("codebook"));
  EXPECT_THAT(own_error([](Json& q) { q["extra_config"] = 3; }),
              HasSubstr("extra_config: expected an object"));
  // A name goes before an expression, and the first expression before later ones.
  EXPECT_EQ(own_error([&](Json& q) {
              q["extra_config"]["q_proj"] = dense;
              for (const std::string& module : {kModule, kOther})
                q["extra_config"][module] = Json::object({{"bits", 4}});
            }),
            "");
  EXPECT_EQ(own_error([&](Json& q) {
              q["extra_config"]["self_attn"] = Json::object({{"bits", 4}});
              q["extra_config"]["q_proj"] = dense;
            }),
            "");
}

}  // namespace
}  // namespace llmq
