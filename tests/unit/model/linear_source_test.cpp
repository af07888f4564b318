// LinearSource: packed modules against what their own libraries dequantize (packed_*.json, written by
// tests/interop/make_packed_vectors.py), and every way in which a packed module can lie.
#include "model/linear_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "model/block_weights.h"
#include "scratch_model.h"
#include "support/named_parts.h"
#include "support/tolerance.h"

namespace llmq {
namespace {

ThreadPool& threads() {
  static ThreadPool pool(3);
  return pool;
}

using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kModule = "model.layers.0.self_attn.q_proj";
const std::string kOther = "model.layers.1.self_attn.q_proj";

Json load_cases(const char* file) {
  const Path path = Path(LLMQ_SOURCE_DIR) / "tests/unit/model" / file;
  return Json::parse(read_text(system_io(), path), path.string());
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

// Both blocks' q_proj become the case's packed module.
void pack_queries(ScratchModel& model, const Json& packed_case) {
  model.config["quantization_config"] = packed_case.at("config");
  for (const std::string& module : {kModule, kOther}) {
    model.tensors.erase(module + ".weight");
    for (const auto& [name, value] : packed_case.at("tensors").members()) {
      std::vector<std::int64_t> shape;
      for (const Json& extent : value.at("shape").items()) shape.push_back(extent.as_integer());
      model.tensors[module + "." + name] = {value.at("dtype").as_string(), shape,
                                            from_hex(value.at("hex").as_string())};
    }
  }
}

// AutoAWQ quantizes every linear it does not list; ours reads what is stored, so the others may stay dense.
void expect_weights(const char* file) {
  const Json cases = load_cases(file);
  for (const Json& packed_case : cases.items()) {
    SCOPED_TRACE(packed_case.at("name").as_string());
    ScratchModel model;
    pack_queries(model, packed_case);
    const Checkpoint checkpoint = model.open();
    const ModelSpec spec = ModelSpec::read(checkpoint);
    const LinearSource source = LinearSource::open(checkpoint);
    EXPECT_TRUE(source.is_packed(kModule));
    EXPECT_FALSE(source.is_packed("model.layers.0.mlp.up_proj"));
    const LinearSpec& linear = linear_named(spec.blocks[0], "q_proj");
    EXPECT_FALSE(source.stored(linear).has_value());
    const ZeroedNumbers<float> weight = source.weight(linear, threads());
    const std::string expected = from_hex(packed_case.at("weight").as_string());
    ASSERT_EQ(weight.size() * sizeof(float), expected.size());
    EXPECT_EQ(std::memcmp(weight.data(), expected.data(), expected.size()), 0) << "not bit-equal";
  }
}

TEST(LinearSource, CompressedTensorsModulesDequantizeBitExactly) {
  expect_weights("packed_compressed_tensors.json");
}
TEST(LinearSource, AwqModulesDequantizeBitExactly) { expect_weights("packed_awq.json"); }

TEST(LinearSource, GptqModulesDequantizeBitExactly) { expect_weights("packed_gptq.json"); }

TEST(LinearSource, CodesOfAByteDequantizeBitExactly) { expect_weights("packed_codes.json"); }

std::vector<float> floats(const Json& hex) {
  const std::string bytes = from_hex(hex.as_string());
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// A linear of such a checkpoint rounds its inputs as the library does. The library's numbers are products of
// FP32 roundings of each factor (code times scale), ours scale exact sums: 2 roundings there and at most 3 +
// 2 per group of 8 here, of the sum of the magnitudes; float8 adds the roundings of a sum of 16.
TEST(LinearSource, LinearsRoundTheirInputsAsTheLibraryDoes) {
  const Json cases = load_cases("packed_codes.json");
  for (const Json& packed_case : cases.items()) {
    SCOPED_TRACE(packed_case.at("name").as_string());
    ScratchModel model;
    pack_queries(model, packed_case);
    const Checkpoint checkpoint = model.open();
    const ModelSpec spec = ModelSpec::read(checkpoint);
    const LinearSource source = LinearSource::open(checkpoint);
    const std::vector<float> x = floats(packed_case.at("input")), want = floats(packed_case.at("output")),
                             weight = floats(packed_case.at("weight"));
    const auto backend = make_reference_backend();
    const BlockLinear linear =
        prepare_linear(*backend, Compute::kFloat32, source, linear_named(spec.blocks[0], "q_proj"));
    std::vector<float> got(want.size());
    backend->linear(TensorView(got.data(), DType::kF32, {5, 16}), TensorView(x.data(), DType::kF32, {5, 16}),
                    *linear.parts.front().weight, {});
    for (std::size_t i = 0; i < want.size(); ++i) {
      double magnitude = 0;
      for (std::size_t k = 0; k < 16; ++k)
        magnitude +=
            std::fabs(static_cast<double>(x[i / 16 * 16 + k]) * static_cast<double>(weight[i % 16 * 16 + k]));
      // Rounded inputs may be larger than x by half a step, 1/255 of the greatest; 2 covers that.
      ASSERT_NEAR(got[i], want[i], testing::gamma(2 + 3 + 4 + 16) * 2 * magnitude) << i;
    }
  }
}

TEST(LinearSource, QuantizedKeepsTheSchemeAsStored) {
  const Json cases = load_cases("packed_compressed_tensors.json");
  ScratchModel model;
  pack_queries(model, cases.items()[3]);
  const QuantizedMatrix matrix = LinearSource::open(model.open()).quantized(kModule);
  EXPECT_EQ(matrix.scheme.bits, 3);
  EXPECT_FALSE(matrix.scheme.symmetric);
  EXPECT_EQ(matrix.scheme.group_size, 8);
  EXPECT_EQ(matrix.scheme.scale_dtype, DType::kBF16);
  EXPECT_EQ(matrix.groups(), 2);
}

TEST(LinearSource, DenseWeightsAreGivenWithoutACopy) {
  const ScratchModel model;
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const LinearSource source = LinearSource::open(checkpoint);
  EXPECT_EQ(source.format(), PackedFormat::kNone);
  const LinearSpec& linear = linear_named(spec.blocks[1], "down_proj");
  const auto view = source.stored(linear);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->view.pointer, checkpoint.at(linear.module + ".weight").view.pointer);
  EXPECT_EQ(source.weight(linear, threads())[5], view->view.as<float>()[5]);
  EXPECT_FALSE(source.bias(linear).has_value());
}

TEST(LinearSource, NonFiniteWeightsAreNamed) {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
    ScratchModel model;
    std::string& bytes = model.tensors["model.layers.1.mlp.down_proj.weight"].bytes;
    std::memcpy(bytes.data() + 4 * (24 * 3 + 7), &value, sizeof value);
    const Checkpoint checkpoint = model.open();
    const ModelSpec spec = ModelSpec::read(checkpoint);
    const LinearSource source = LinearSource::open(checkpoint);
    const LinearSpec& linear = linear_named(spec.blocks[1], "down_proj");
    for (const std::string& found :
         {error_of([&] { source.weight(linear, threads()); }), error_of([&] { source.stored(linear); })}) {
      EXPECT_THAT(found, StartsWith("bad input|"));
      EXPECT_THAT(found, HasSubstr("model.layers.1.mlp.down_proj.weight: holds"));
      EXPECT_THAT(found, HasSubstr("row 3, column 7"));
    }
    EXPECT_EQ(error_of([&] { source.weight(linear, threads(), true); }), "");
    EXPECT_EQ(error_of([&] { source.stored(linear, true); }), "");
  }
}

TEST(LinearSource, NonFiniteHalvesAreNamed) {
  for (const auto& [dtype, bits] :
       {std::pair{"BF16", 0x7f80}, std::pair{"F16", 0xfc00}, std::pair{"BF16", 0xffc1}}) {
    ScratchModel model;
    std::vector<std::uint16_t> halves(16 * 24, 0x3c00);
    halves[24] = static_cast<std::uint16_t>(bits);
    model.tensors["model.layers.0.mlp.down_proj.weight"] = scratch_tensor(dtype, {16, 24}, halves);
    const Checkpoint checkpoint = model.open();
    const ModelSpec spec = ModelSpec::read(checkpoint);
    const LinearSource source = LinearSource::open(checkpoint);
    EXPECT_THAT(error_of([&] { source.stored(linear_named(spec.blocks[0], "down_proj")); }),
                HasSubstr("row 1, column 0"));
  }
}

// One lie at a time in an otherwise good packed model.
struct PackedLie {
  const char* name;
  void (*tell)(ScratchModel& model);
  const char* found;
};

// Every column in group 0 but one.
ScratchTensor group_index(std::int64_t columns, std::int32_t third) {
  std::vector<std::int32_t> index(static_cast<std::size_t>(columns));
  index[3] = third;
  return scratch_tensor<std::int32_t>("I32", {columns}, index);
}

Json& weights_of(ScratchModel& model) {
  return model.config["quantization_config"]["config_groups"]["group_0"]["weights"];
}

const PackedLie kLies[] = {
    {"method", [](ScratchModel& m) { m.config["quantization_config"]["quant_method"] = "hqq"; },
     "unsupported|*quant_method: the method \"hqq\""},
    {"format", [](ScratchModel& m) { m.config["quantization_config"]["format"] = "nvfp4-pack-quantized"; },
     "unsupported|*nvfp4-pack-quantized"},
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
     "unsupported|*transform_config"},
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
    const std::string found = error_of([&] { ModelSpec::read(model.open()); });
    const std::string pattern = lie.found;
    const auto star = pattern.find('*');
    EXPECT_THAT(found, StartsWith(pattern.substr(0, star)));
    EXPECT_THAT(found, HasSubstr(pattern.substr(star + 1)));
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
     [](ScratchModel& m) { m.config["quantization_config"]["format"] = "nvfp4-pack-quantized"; },
     "unsupported|*quantization_config.format"},
};

TEST(LinearSource, EveryLieAboutCodesIsRefusedByName) {
  expect_refusals(load_cases("packed_codes.json").items()[1], kCodeLies);
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

TEST(LinearSource, TargetsGoByNameThenPatternThenClass) {
  const Json cases = load_cases("packed_compressed_tensors.json");
  const Json& four = cases.items()[5];
  const Json& three = cases.items()[3];
  ScratchModel model;
  pack_queries(model, four);
  // Block 1 holds three-bit words; a group that names it exactly comes after one whose pattern matches both.
  for (const auto& [name, value] : three.at("tensors").members()) {
    std::vector<std::int64_t> shape;
    for (const Json& extent : value.at("shape").items()) shape.push_back(extent.as_integer());
    model.tensors[kOther + "." + name] = {value.at("dtype").as_string(), shape,
                                          from_hex(value.at("hex").as_string())};
  }
  Json group = three.at("config").at("config_groups").at("group_0");
  group["targets"] = Json::array({kOther});
  model.config["quantization_config"]["config_groups"]["group_1"] = group;
  model.config["quantization_config"]["format"] = "mixed-precision";
  const Checkpoint checkpoint = model.open();
  ModelSpec::read(checkpoint);
  const LinearSource source = LinearSource::open(checkpoint);
  EXPECT_EQ(source.quantized(kModule).scheme.bits, 4);
  EXPECT_EQ(source.quantized(kOther).scheme.bits, 3);
}

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
  for (const auto& [name, value] : cases.items()[5].at("tensors").members()) {
    std::vector<std::int64_t> shape;
    for (const Json& extent : value.at("shape").items()) shape.push_back(extent.as_integer());
    model.tensors[kOther + "." + name] = {value.at("dtype").as_string(), shape,
                                          from_hex(value.at("hex").as_string())};
  }
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
