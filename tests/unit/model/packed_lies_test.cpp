// Every way in which a packed module can lie: each is refused by what is wrong with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <string>

#include "base/half.h"
#include "model/linear_source.h"
#include "packed_model.h"
#include "support/named_parts.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;

// One lie at a time in an otherwise good packed model.
struct PackedLie {
  const char* name;
  void (*tell)(ScratchModel& model);
  const char* found;
};

Json& weights_of(ScratchModel& model) {
  return model.config["quantization_config"]["config_groups"]["group_0"]["weights"];
}

const PackedLie kLies[] = {
    {"method", [](ScratchModel& m) { m.config["quantization_config"]["quant_method"] = "hqq"; },
     "unsupported|*quant_method: the method \"hqq\""},
    {"format", [](ScratchModel& m) { m.config["quantization_config"]["format"] = "mxfp6-pack-quantized"; },
     "unsupported|*mxfp6-pack-quantized"},
    {"group format",
     [](ScratchModel& m) {
       m.config["quantization_config"]["config_groups"]["group_0"]["format"] = "marlin-24";
     },
     "unsupported|*group_0.format: the format \"marlin-24\""},
    {"status",
     [](ScratchModel& m) { m.config["quantization_config"]["quantization_status"] = "calibration"; },
     "unsupported|*quantization_status"},
    {"transform",
     [](ScratchModel& m) {
       m.config["quantization_config"]["transform_config"] = Json::object({{"R1", 1}});
     },
     "bad input|*transform_config: is no object with `config_groups`"},
    {"transform beside others",
     [](ScratchModel& m) {
       m.config["quantization_config"]["transform_config"] =
           Json::object({{"config_groups", Json::object()}, {"online", true}});
     },
     "unsupported|*transform_config.online: is not known here; config_groups is read"},
    {"transform of inputs",
     [](ScratchModel& m) {
       const Json apply =
           Json::array({Json::object({{"location", "weight_input"}}), Json::object({{"location", "input"}})});
       m.config["quantization_config"]["transform_config"] =
           Json::object({{"config_groups", Json::object({{"R4", Json::object({{"apply", apply}})}})}});
     },
     "unsupported|*config_groups.R4.apply: a transform at \"input\" is not in the weights already"},
    {"transform without a location",
     [](ScratchModel& m) {
       const Json apply = Json::array({Json::object({{"location", 5}})});
       m.config["quantization_config"]["transform_config"] =
           Json::object({{"config_groups", Json::object({{"R2", Json::object({{"apply", apply}})}})}});
     },
     "bad input|*transform_config.config_groups.R2.apply: names no location; weight_input and weight_output"},
    {"transform without places",
     [](ScratchModel& m) {
       m.config["quantization_config"]["transform_config"] =
           Json::object({{"config_groups", Json::object({{"R1", 1}})}});
     },
     "bad input|*transform_config.config_groups.R1: has no list `apply`"},
    {"kv cache of 4 bits",
     [](ScratchModel& m) {
       m.config["quantization_config"]["kv_cache_scheme"] = Json::object({{"num_bits", 4}});
     },
     "unsupported|*kv_cache_scheme.num_bits"},
    {"kv cache by head",
     [](ScratchModel& m) {
       m.config["quantization_config"]["kv_cache_scheme"] = Json::object({{"strategy", "attn_head"}});
     },
     "unsupported|*kv_cache_scheme.strategy"},
    {"kv cache without scales",
     [](ScratchModel& m) {
       m.config["quantization_config"]["kv_cache_scheme"] =
           Json::object({{"num_bits", 8}, {"type", "float"}});
     },
     "bad input|*layers.0.self_attn.k_scale: is missing"},
    {"kv cache with a scale of 0",
     [](ScratchModel& m) {
       m.config["quantization_config"]["kv_cache_scheme"] =
           Json::object({{"num_bits", 8}, {"type", "float"}});
       m.tensors["model.layers.0.self_attn.k_scale"] = scratch_tensor<float>("F32", {1}, {0.0f});
     },
     "bad input|*layers.0.self_attn.k_scale: is 0; a scale is above 0 and finite"},
    {"kv cache with an infinite scale",
     [](ScratchModel& m) {
       m.config["quantization_config"]["kv_cache_scheme"] =
           Json::object({{"num_bits", 8}, {"type", "float"}});
       m.tensors["model.layers.0.self_attn.k_scale"] = scratch_tensor<float>("F32", {1}, {HUGE_VALF});
     },
     "bad input|*layers.0.self_attn.k_scale: holds an infinity"},
    {"scales without a kv cache",
     [](ScratchModel& m) { m.tensors["model.layers.0.self_attn.k_scale"] = scratch_ramp({1}); },
     "unsupported|*k_scale: nothing in this family reads"},
    {"new key", [](ScratchModel& m) { m.config["quantization_config"]["rotation"] = true; },
     "unsupported|*quantization_config.rotation"},
    {"new weights key", [](ScratchModel& m) { weights_of(m)["codebook"] = "nf4"; },
     "unsupported|*weights.codebook"},
    {"activations",
     [](ScratchModel& m) {
       m.config["quantization_config"]["config_groups"]["group_0"]["input_activations"] =
           Json::object({{"num_bits", 16}});
     },
     "unsupported|*input_activations.num_bits: is 16"},
    {"strategy", [](ScratchModel& m) { weights_of(m)["strategy"] = "block"; },
     "unsupported|*strategy \"block\""},
    {"type", [](ScratchModel& m) { weights_of(m)["type"] = "complex"; }, "unsupported|*type \"complex\""},
    {"act-order", [](ScratchModel& m) { weights_of(m)["actorder"] = "random"; }, "unsupported|*actorder"},
    {"bits", [](ScratchModel& m) { weights_of(m)["num_bits"] = 16; }, "unsupported|*num_bits: is 16"},
    {"other bits", [](ScratchModel& m) { weights_of(m)["num_bits"] = 8; },
     "bad input|*weight_packed: has shape [16, 2], expected [16, 4]"},
    {"group size 0", [](ScratchModel& m) { weights_of(m)["group_size"] = 0; }, "bad input|*group_size: is 0"},
    {"group size 7", [](ScratchModel& m) { weights_of(m)["group_size"] = 7; },
     "bad input|*group_size 7 does not divide"},
    {"group size huge", [](ScratchModel& m) { weights_of(m)["group_size"] = std::int64_t{1} << 40; },
     "bad input|*group_size"},
    {"g_idx of floats", [](ScratchModel& m) { m.tensors[kModule + ".weight_g_idx"] = scratch_ramp({16}); },
     "unsupported|*weight_g_idx: is stored as F32"},
    {"g_idx too short", [](ScratchModel& m) { m.tensors[kModule + ".weight_g_idx"] = group_index(15, 0); },
     "bad input|*weight_g_idx: has shape [15], expected [16]"},
    {"g_idx out of range", [](ScratchModel& m) { m.tensors[kModule + ".weight_g_idx"] = group_index(16, 2); },
     "bad input|*weight_g_idx: puts column 3 into group 2, and there are 2"},
    {"g_idx negative", [](ScratchModel& m) { m.tensors[kModule + ".weight_g_idx"] = group_index(16, -1); },
     "bad input|*weight_g_idx: puts column 3 into group -1"},
    {"g_idx of another format", [](ScratchModel& m) { m.tensors[kModule + ".g_idx"] = group_index(16, 0); },
     "unsupported|*q_proj.g_idx: has no meaning"},
    {"no scale", [](ScratchModel& m) { m.tensors.erase(kModule + ".weight_scale"); },
     "bad input|*weight_scale: is missing"},
    {"no shape", [](ScratchModel& m) { m.tensors.erase(kModule + ".weight_shape"); },
     "bad input|*weight_shape: is missing"},
    {"no zeros", [](ScratchModel& m) { m.tensors.erase(kModule + ".weight_zero_point"); },
     "bad input|*weight_zero_point: is missing"},
    {"scale shape",
     [](ScratchModel& m) {
       m.tensors[kModule + ".weight_scale"] = scratch_ramp({16, 4});
     },
     "bad input|*weight_scale: has shape [16, 4], expected [16, 2]"},
    {"scale dtype",
     [](ScratchModel& m) {
       m.tensors[kModule + ".weight_scale"] =
           scratch_tensor<std::int32_t>("I32", {16, 2}, std::vector<std::int32_t>(32));
     },
     "unsupported|*weight_scale: scales stored as I32"},
    {"shape says 2^40",
     [](ScratchModel& m) {
       m.tensors[kModule + ".weight_shape"] =
           scratch_tensor<std::int64_t>("I64", {2}, {std::int64_t{1} << 40, 16});
     },
     "bad input|*weight_shape: describes"},
    {"shape negative",
     [](ScratchModel& m) {
       m.tensors[kModule + ".weight_shape"] = scratch_tensor<std::int64_t>("I64", {2}, {-16, 16});
     },
     "bad input|*weight_shape"},
    {"shape of another model",
     [](ScratchModel& m) { m.config["num_attention_heads"] = 2, m.config["head_dim"] = 4; },
     "bad input|*weight_packed: holds a weight of shape [16, 16]"},
    {"not targeted",
     [](ScratchModel& m) { m.config["quantization_config"]["ignore"] = Json::array({"re:.*layers.0.*"}); },
     "bad input|*layers.0.self_attn.q_proj.weight_packed: is stored, but no group"},
    {"targeted but dense",
     [](ScratchModel& m) {
       m.config["quantization_config"]["config_groups"]["group_0"]["targets"] = Json::array({"Linear"});
     },
     "bad input|*k_proj.weight_packed: is missing, although"},
    {"bad pattern",
     [](ScratchModel& m) { m.config["quantization_config"]["ignore"] = Json::array({"re:("}); },
     "bad input|*quantization_config.ignore"},
    {"no config at all", [](ScratchModel& m) { m.config.erase("quantization_config"); },
     "bad input|*weight_packed: is a packed weight, but"},
};

// Each lie about an honest packed model is refused by what it expects.
void expect_refusals(const Json& honest, std::span<const PackedLie> lies) {
  for (const PackedLie& lie : lies) {
    SCOPED_TRACE(lie.name);
    ScratchModel model;
    pack_queries(model, honest);
    ASSERT_EQ(error_of([&] { ModelSpec::read(model.open()); }), "");
    lie.tell(model);
    expect_refused(model, lie.found);
  }
}

TEST(LinearSource, EveryLieIsRefusedByName) {
  expect_refusals(load_cases("packed_compressed_tensors.json").items()[5],
                  kLies);  // 4 bits, groups of 8, asymmetric
}

const PackedLie kCodeLies[] = {
    // of 8-bit codes with a static input scale
    {"no input scale", [](ScratchModel& m) { m.tensors.erase(kModule + ".input_scale"); },
     "bad input|*q_proj.input_scale: is missing"},
    {"input scale of two", [](ScratchModel& m) { m.tensors[kModule + ".input_scale"] = scratch_ramp({2}); },
     "bad input|*input_scale: has shape [2]"},
    {"input scale though dynamic",
     [](ScratchModel& m) {
       Json& inputs = m.config["quantization_config"]["config_groups"]["group_0"]["input_activations"];
       inputs["strategy"] = "token", inputs["dynamic"] = true;
     },
     "bad input|*input_scale: is stored, although"},
    {"zeros though symmetric",
     [](ScratchModel& m) {
       m.tensors[kModule + ".weight_zero_point"] =
           scratch_tensor<std::int8_t>("I8", {16, 1}, std::vector<std::int8_t>(16));
     },
     "bad input|*weight_zero_point: is stored, although"},
    {"weight of float8", [](ScratchModel& m) { m.tensors[kModule + ".weight"].dtype = "F8_E4M3"; },
     "unsupported|*q_proj.weight: is stored as F8_E4M3, expected I8"},
    {"asymmetric inputs",
     [](ScratchModel& m) {
       m.config["quantization_config"]["config_groups"]["group_0"]["input_activations"]["symmetric"] = false;
     },
     "unsupported|*input_activations.symmetric: is false"},
    {"inputs of 4 bits",
     [](ScratchModel& m) {
       m.config["quantization_config"]["config_groups"]["group_0"]["input_activations"]["num_bits"] = 4;
     },
     "unsupported|*input_activations.num_bits: is 4"},
    {"float inputs",
     [](ScratchModel& m) {
       m.config["quantization_config"]["config_groups"]["group_0"]["input_activations"]["type"] = "float";
     },
     "unsupported|*input_activations.type: inputs of type"},
    {"inputs in groups",
     [](ScratchModel& m) {
       Json& inputs = m.config["quantization_config"]["config_groups"]["group_0"]["input_activations"];
       inputs["strategy"] = "group", inputs["dynamic"] = true, inputs["group_size"] = 128;
     },
     "unsupported|*input_activations.strategy: the strategy \"group\", dynamic"},
    {"a zero point of the inputs",
     [](ScratchModel& m) { m.tensors[kModule + ".input_zero_point"] = scratch_ramp({1}); },
     "unsupported|*input_zero_point"},
    {"another format",
     [](ScratchModel& m) { m.config["quantization_config"]["format"] = "mxfp6-pack-quantized"; },
     "unsupported|*quantization_config.format"},
};

TEST(LinearSource, EveryLieAboutCodesIsRefusedByName) {
  expect_refusals(load_cases("packed_codes.json").items()[1], kCodeLies);
}

// NVFP4 of 16 x 16: codes 0 .. 15 in turn, the scale of row n is n + 1 over a global one of 8.
Json two_levels() {
  const auto tensor = [](const char* dtype, Json shape, const std::string& hex) {
    return Json::object({{"dtype", dtype}, {"shape", std::move(shape)}, {"hex", hex}});
  };
  std::string codes, scales;
  for (int n = 0; n < 16; ++n) {
    codes += "1032547698badcfe";
    scales += fmt::format("{:02x}", to_float8(static_cast<float>(n + 1)).bits);
  }
  const Json weights = Json::object({{"num_bits", 4},
                                     {"type", "float"},
                                     {"strategy", "tensor_group"},
                                     {"group_size", 16},
                                     {"scale_dtype", "torch.float8_e4m3fn"}});
  const Json group = Json::object(
      {{"targets", Json::array({"re:.*q_proj"})}, {"format", "nvfp4-pack-quantized"}, {"weights", weights}});
  return Json::object(
      {{"config", Json::object({{"quant_method", "compressed-tensors"},
                                {"format", "nvfp4-pack-quantized"},
                                {"config_groups", Json::object({{"group_0", group}})}})},
       {"tensors", Json::object({{"weight_packed", tensor("U8", Json::array({16, 8}), codes)},
                                 {"weight_scale", tensor("F8_E4M3", Json::array({16, 1}), scales)},
                                 {"weight_global_scale", tensor("F32", Json::array({1}), "00000041")}})}});
}

Json& inputs_of(ScratchModel& model) {
  return model.config["quantization_config"]["config_groups"]["group_0"]["input_activations"];
}

Json rounded_inputs() {
  return Json::object({{"num_bits", 4},
                       {"type", "float"},
                       {"strategy", "tensor_group"},
                       {"group_size", 16},
                       {"dynamic", "local"}});
}

Json with(Json arguments, const char* key, const Json& value) {
  arguments[key] = value;
  return arguments;
}

const PackedLie kTwoLevelLies[] = {
    {"no global scale", [](ScratchModel& m) { m.tensors.erase(kModule + ".weight_global_scale"); },
     "bad input|*q_proj.weight_global_scale: is missing"},
    {"a global scale for each row",
     [](ScratchModel& m) { m.tensors[kModule + ".weight_global_scale"] = scratch_ramp({16}); },
     "bad input|*weight_global_scale: has shape [16], expected [1]"},
    {"scales by two",
     [](ScratchModel& m) {
       m.tensors[kModule + ".weight_scale"].shape = {8, 2};
     },
     "bad input|*weight_scale: has shape [8, 2], expected [16, 1]"},
    {"exponents", [](ScratchModel& m) { m.tensors[kModule + ".weight_scale"].dtype = "U8"; },
     "unsupported|*weight_scale: is stored as U8, expected F8_E4M3"},
    {"codes in one row", [](ScratchModel& m) { m.tensors[kModule + ".weight_packed"].shape = {128}; },
     "bad input|*weight_packed: has shape [128], expected [out, in/2]"},
    {"codes of 20 columns",
     [](ScratchModel& m) {
       m.tensors[kModule + ".weight_packed"].shape = {16, 10};
       m.tensors[kModule + ".weight_packed"].bytes.resize(160);
     },
     "bad input|*weight_packed: has 20 input columns, which group_size 16 does not divide"},
    {"of another model",
     [](ScratchModel& m) { m.config["num_attention_heads"] = 2, m.config["head_dim"] = 4; },
     "bad input|*weight_packed: holds a weight of shape [16, 16]"},
    {"inputs of 4 bits without their global scale", [](ScratchModel& m) { inputs_of(m) = rounded_inputs(); },
     "bad input|*q_proj.input_global_scale: is missing"},
    {"inputs of 8 bits", [](ScratchModel& m) { inputs_of(m) = with(rounded_inputs(), "num_bits", 8); },
     "unsupported|*input_activations.num_bits: is 8, and inputs beside nvfp4a16 have 4"},
    {"inputs of integers", [](ScratchModel& m) { inputs_of(m) = with(rounded_inputs(), "type", "int"); },
     "unsupported|*input_activations.type: is \"int\", and inputs beside nvfp4a16 have \"float\""},
    {"inputs per token", [](ScratchModel& m) { inputs_of(m) = with(rounded_inputs(), "strategy", "token"); },
     "unsupported|*input_activations.strategy: is \"token\""},
    {"inputs in groups of 32",
     [](ScratchModel& m) { inputs_of(m) = with(rounded_inputs(), "group_size", 32); },
     "unsupported|*input_activations.group_size: is 32"},
    {"inputs without a calibrated scale",
     [](ScratchModel& m) { inputs_of(m) = with(rounded_inputs(), "dynamic", true); },
     "unsupported|*input_activations.dynamic: is true, and inputs beside nvfp4a16 have \"local\""},
    {"asymmetric inputs", [](ScratchModel& m) { inputs_of(m) = with(rounded_inputs(), "symmetric", false); },
     "unsupported|*input_activations.symmetric: is false"},
    {"a global scale of inputs that stay",
     [](ScratchModel& m) { m.tensors[kModule + ".input_global_scale"] = scratch_ramp({1}); },
     "bad input|*input_global_scale: is stored, although quantization_config asks for no such scale"},
    {"groups of 32", [](ScratchModel& m) { weights_of(m)["group_size"] = 32; },
     "unsupported|*weights.strategy: \"tensor_group\" is read of floats of 4 bits in groups of 16"},
    {"exponents by their type", [](ScratchModel& m) { weights_of(m)["strategy"] = "group"; },
     "unsupported|*weights.group_size: is 16; floats in groups of 32"},
    {"by channel",
     [](ScratchModel& m) {
       weights_of(m)["strategy"] = "channel";
       weights_of(m).erase("group_size");
     },
     "unsupported|*weights.strategy: floats of 4 bits by channel"},
    {"floats of 6 bits", [](ScratchModel& m) { weights_of(m)["num_bits"] = 6; },
     "unsupported|*weights.num_bits: is 6; floats of 4 and 8 bits"},
};

TEST(LinearSource, EveryLieAboutTwoLevelsIsRefusedByName) { expect_refusals(two_levels(), kTwoLevelLies); }

TEST(LinearSource, TwoLevelsMeanTheirProductAndAreNumbers) {
  const auto open = [](const auto& tell) {
    ScratchModel model;
    pack_queries(model, two_levels());
    tell(model);
    return LinearSource::open(model.open()).quantized(kModule);
  };
  const QuantizedMatrix matrix = open([](ScratchModel&) {});
  EXPECT_EQ(matrix.scheme.text(), "nvfp4a16");
  EXPECT_EQ(matrix.global_scale, 8);
  std::vector<float> values(256);
  dequantize(matrix, values);
  EXPECT_EQ(values[16 * 3 + 7], 6 * 0.5f) << "row 3, the code of 6, a scale of 4 / 8";
  EXPECT_EQ(values[16 * 7 + 10], -1) << "the second half of a byte comes second";
  const auto refusal = [&](const char* tensor, const std::string& bytes, std::size_t at) {
    return error_of([&] {
      open([&](ScratchModel& m) { m.tensors[kModule + tensor].bytes.replace(at, bytes.size(), bytes); });
    });
  };
  EXPECT_THAT(refusal(".weight_scale", "\x7f", 5),
              HasSubstr("q_proj.weight_scale: has the byte 127 at row 5, group 0, which is no scale"));
  EXPECT_THAT(refusal(".weight_scale", "\xb8", 2), HasSubstr("has the byte 184 at row 2"));
  const std::string zero(4, '\0'), negative("\0\0\x80\xbf", 4), nan("\0\0\xc0\x7f", 4),
      infinite("\0\0\x80\x7f", 4), tiny("\1\0\0\0", 4);
  EXPECT_THAT(refusal(".weight_global_scale", zero, 0), HasSubstr("weight_global_scale: is 0;"));
  EXPECT_THAT(refusal(".weight_global_scale", negative, 0), HasSubstr("weight_global_scale: is -1;"));
  EXPECT_THAT(refusal(".weight_global_scale", nan, 0), HasSubstr("weight_global_scale: is nan;"));
  EXPECT_THAT(refusal(".weight_global_scale", infinite, 0), HasSubstr("weight_global_scale: is inf;"));
  EXPECT_THAT(refusal(".weight_global_scale", tiny, 0),
              HasSubstr("weight_global_scale: is 1e-45, and 1 / it is no number"));
  const std::string small = scratch_tensor<float>("F32", {1}, {1e-38f}).bytes;
  EXPECT_THAT(refusal(".weight_global_scale", small, 0), HasSubstr("row 3, group 0, which is no scale"))
      << "4 / 1e-38 is above all numbers of FP32";
}

// Beside inputs of 4 bits: what their scales are divided by.
TEST(LinearSource, TheGlobalScaleOfInputsIsANumberAboveZero) {
  const auto open = [](float scale, std::vector<std::int64_t> shape = {1}) {
    ScratchModel model;
    pack_queries(model, two_levels());
    inputs_of(model) = rounded_inputs();
    for (const std::string& module : {kModule, kOther})
      model.tensors[module + ".input_global_scale"] = scratch_tensor<float>("F32", {1}, {scale});
    model.tensors[kModule + ".input_global_scale"].shape = std::move(shape);
    ModelSpec::read(model.open());
    return LinearSource::open(model.open()).quantized(kModule);
  };
  const QuantizedMatrix matrix = open(96);
  EXPECT_EQ(matrix.scheme.text(), "nvfp4");
  EXPECT_EQ(matrix.input_scale, 96);
  EXPECT_EQ(matrix.global_form, GlobalForm::kDivisor);
  struct Hostile {
    float scale;
    const char* said;
  };
  for (const Hostile& one :
       {Hostile{0.0f, "is 0; a scale is above 0"}, Hostile{-0.0f, "is -0; a scale"},
        Hostile{-3.0f, "is -3; a scale"}, Hostile{HUGE_VALF, "is inf; a scale"},
        Hostile{-HUGE_VALF, "is -inf; a scale"}, Hostile{std::nanf(""), "is nan; a scale"},
        Hostile{1e-40f, "is 1e-40, and 1 / it is no number"}})
    EXPECT_THAT(error_of([&] { open(one.scale); }),
                HasSubstr(std::string("input_global_scale: ") + one.said));
}

// Each pattern is small enough for RE2, and a config may hold hundreds of thousands.
TEST(LinearSource, PatternsHaveABoundTogether) {
  ScratchModel model;
  pack_queries(model, two_levels());
  Json& ignored = model.config["quantization_config"]["ignore"];
  ignored = Json::array();
  for (int i = 0; i < 2000; ++i) ignored.push_back("re:.{999}");
  EXPECT_THAT(error_of([&] { LinearSource::open(model.open()); }),
              HasSubstr("quantization_config.ignore: with 're:.{999}' the patterns are too large together"));
}

TEST(LinearSource, CodesAndScalesThatAreNoNumbersAreNamed) {
  const Json cases = load_cases("packed_codes.json");
  const auto found = [&](std::size_t which, const auto& tell) {
    ScratchModel model;
    pack_queries(model, cases.items()[which]);
    tell(model);
    return error_of([&] { LinearSource::open(model.open()).quantized(kModule); });
  };
  EXPECT_THAT(found(8, [](ScratchModel& m) { m.tensors[kModule + ".weight"].bytes[17] = '\xff'; }),
              HasSubstr("q_proj.weight: holds NaN at row 1, column 1"));
  EXPECT_THAT(found(5, [](ScratchModel& m) { m.tensors[kModule + ".weight"].bytes[3] = 8; }),
              HasSubstr("q_proj.weight: holds 8, which 4 bits do not"));
  EXPECT_THAT(
      found(1, [](ScratchModel& m) { m.tensors[kModule + ".input_scale"].bytes = std::string(2, '\0'); }),
      HasSubstr("q_proj.input_scale: is 0; a scale is above 0"));
}

TEST(LinearSource, NonFiniteScalesAreNamed) {
  const Json cases = load_cases("packed_compressed_tensors.json");
  ScratchModel model;
  pack_queries(model, cases.items()[5]);
  model.tensors[kModule + ".weight_scale"].bytes[3] =
      '\x7f';  // BF16 0x7f..: an infinity or NaN needs the low byte's top bit too
  model.tensors[kModule + ".weight_scale"].bytes[2] = '\x80';
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const LinearSource source = LinearSource::open(checkpoint);
  EXPECT_THAT(error_of([&] { source.weight(linear_named(spec.blocks[0], "q_proj"), threads()); }),
              HasSubstr("q_proj.weight_scale: holds an infinity"));
  EXPECT_THAT(error_of([&] { source.quantized(kModule); }), HasSubstr("row 0, column 1"));
  EXPECT_EQ(error_of([&] { source.weight(linear_named(spec.blocks[0], "q_proj"), threads(), true); }), "");
}

}  // namespace
}  // namespace llmq
