// Directories of NVIDIA's ModelOpt: what their tensors and their two configs mean, and every way in which
// they can lie.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/half.h"
#include "model/linear_source.h"
#include "packed_model.h"
#include "support/named_parts.h"
#include "tensor/mxfp4.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;

// The case of packed_modelopt.json with this algorithm.
Json modelopt_case(const std::string& algorithm) {
  const Json cases = load_cases("packed_modelopt.json");
  for (const Json& one : cases.items())
    if (one.at("name").as_string() == algorithm) return one;
  throw std::runtime_error("no case of " + algorithm);
}

Json& quantization_of(ScratchModel& model) { return model.config["quantization_config"]; }

TEST(Modelopt, AFactorIsMultipliedAndNotDividedBy) {
  ScratchModel model;
  pack_queries(model, modelopt_case("NVFP4"));
  model.tensors[kModule + ".weight_scale_2"] = scratch_tensor<float>("F32", {}, {0.3f});
  const Checkpoint checkpoint = model.open();
  const LinearSource source = LinearSource::open(checkpoint);
  EXPECT_EQ(source.format(), PackedFormat::kModelopt);
  EXPECT_EQ(source.packed_modules(), (std::vector<std::string>{kModule, kOther}));
  const QuantizedMatrix matrix = source.quantized(kModule);
  EXPECT_EQ(matrix.scheme.text(), "nvfp4");
  EXPECT_EQ(matrix.global_form, GlobalForm::kFactor);
  EXPECT_EQ(matrix.global_scale, 0.3f);
  const std::string& bytes = model.tensors[kModule + ".weight_scale"].bytes;
  for (std::size_t row = 0; row < 16; ++row)
    EXPECT_EQ(matrix.scales[row], to_float(Float8{static_cast<std::uint8_t>(bytes[row])}) * 0.3f) << row;
  EXPECT_EQ(matrix.input_scale > 0, true) << "what scales of inputs are multiplied by";
}

TEST(Modelopt, SchemesAreThoseOfTheAlgorithms) {
  const std::vector<std::pair<const char*, const char*>> kSchemes = {{"NVFP4", "nvfp4"},
                                                                     {"W4A16_NVFP4", "nvfp4a16"},
                                                                     {"FP8", "fp8_static"},
                                                                     {"FP8_PER_CHANNEL_PER_TOKEN", "fp8"},
                                                                     {"FP8_PB_WO", "fp8_block"}};
  for (const auto& [algorithm, scheme] : kSchemes) {
    SCOPED_TRACE(algorithm);
    ScratchModel model;
    pack_queries(model, modelopt_case(algorithm));
    EXPECT_EQ(error_of([&] { ModelSpec::read(model.open()); }), "");
    EXPECT_EQ(LinearSource::open(model.open()).packed_shape(kModule).scheme.text(), scheme);
    std::string small = algorithm;
    for (char& c : small) c = static_cast<char>(std::tolower(c));
    quantization_of(model)["quant_algo"] = small;
    EXPECT_EQ(LinearSource::open(model.open()).packed_shape(kModule).scheme.text(), scheme);
  }
}

TEST(Modelopt, TheOlderFileSaysTheSameInItsOwnWords) {
  ScratchModel model;
  Json one = modelopt_case("NVFP4");
  pack_queries(model, one);
  model.config.erase("quantization_config");
  const Path directory = model.open().path();
  const auto open_beside = [&](const Json& file) {
    std::ofstream(directory / "hf_quant_config.json") << file.dump(1);
    return open_checkpoint(system_io(), directory.string());
  };
  Json said = Json::object({{"quant_algo", "NVFP4"},
                            {"kv_cache_quant_algo", nullptr},
                            {"group_size", 16},
                            {"exclude_modules", Json::array({"lm_head", "*mlp*"})}});
  const auto file = [&] {
    return Json::object(
        {{"producer", Json::object({{"name", "modelopt"}, {"version", "0.25.0"}})}, {"quantization", said}});
  };
  EXPECT_EQ(LinearSource::open(open_beside(file())).packed_shape(kModule).scheme.text(), "nvfp4");
  EXPECT_EQ(error_of([&] { ModelSpec::read(open_beside(file())); }), "");
  EXPECT_THAT(open_beside(file()).config_files(),
              ::testing::ElementsAre(directory / "config.json", directory / "hf_quant_config.json"))
      << "of which a job's identity is made";
  const auto refused = [&](const char* key, const Json& value) {
    const Json before = said;
    said[key] = value;
    const std::string found = error_of([&] { ModelSpec::read(open_beside(file())); });
    said = before;
    return found;
  };
  EXPECT_THAT(
      refused("exclude_modules", "lm_head"),
      HasSubstr("hf_quant_config.json: quantization.exclude_modules: expected an array of wildcards"));
  EXPECT_THAT(refused("exclude_modules", Json::array({7})), HasSubstr("exclude_modules: expected strings"));
  EXPECT_THAT(refused("exclude_modules", Json::array({"model.layers.0.*"})),
              HasSubstr("q_proj.weight: is stored, but no group of quantization_config names its module"));
  EXPECT_THAT(refused("kv_cache_quant_algo", "NVFP4"),
              HasSubstr("kv_cache_quant_algo: a KV cache of type \"NVFP4\""));
  EXPECT_THAT(refused("group_size", 32), HasSubstr("group_size: is 32; NVFP4 is read in groups of 16"));
  EXPECT_THAT(refused("pre_quant_scale", true), HasSubstr("pre_quant_scale: is true"));
  EXPECT_THAT(refused("smoothing", 1), HasSubstr("smoothing: this field is not known"));
  // config.json has the say where both speak.
  model.config["quantization_config"] = one.at("config");
  model.open();
  EXPECT_EQ(error_of([&] { ModelSpec::read(open_beside(Json::object())); }), "");
}

TEST(Modelopt, WildcardsMeanWholeNames) {
  const auto excluded = [](const char* wildcard) {
    ScratchModel model;
    pack_queries(model, modelopt_case("FP8"));
    quantization_of(model)["ignore"] = Json::array({wildcard});
    return !error_of([&] { LinearSource::open(model.open()).packed_shape(kModule); }).empty();
  };
  for (const char* hit : {"*", "model.layers.0*", "*q_proj", "model.layers.?.self_attn.q_proj", "*.[pq]_proj",
                          "*[!p]_proj", "model.layers.0.self_attn.q_proj"})
    EXPECT_TRUE(excluded(hit)) << hit;
  for (const char* miss : {"", "model.layers.0", "q_proj", "*q_pro", "model?layers?0", "*.[!pq]_proj",
                           "model.layers.00.*", "*[q_proj", "model-layers-0-self_attn-q_proj"})
    EXPECT_FALSE(excluded(miss)) << miss;
}

TEST(Modelopt, MixedPrecisionGoesByItsTable) {
  ScratchModel model;
  pack_queries(model, modelopt_case("NVFP4"));
  for (const char* ending : {".weight_scale_2", ".weight_scale", ".input_scale"})
    model.tensors.erase(kOther + ending);
  add_packed(model, kOther, modelopt_case("FP8"));
  const auto layers = [&](const char* other) {
    quantization_of(model) =
        Json::object({{"quant_method", "modelopt"},
                      {"quant_algo", "MIXED_PRECISION"},
                      {"quantized_layers",
                       Json::object({{kModule, Json::object({{"quant_algo", "NVFP4"}, {"group_size", 16}})},
                                     {other, Json::object({{"quant_algo", "FP8"}})}})}});
  };
  layers(kOther.c_str());
  EXPECT_EQ(error_of([&] { ModelSpec::read(model.open()); }), "");
  const LinearSource source = LinearSource::open(model.open());
  EXPECT_EQ(source.packed_shape(kModule).scheme.text(), "nvfp4");
  EXPECT_EQ(source.packed_shape(kOther).scheme.text(), "fp8_static");
  layers("model.layers.1.self_attn.o_proj");
  EXPECT_THAT(error_of([&] { ModelSpec::read(model.open()); }),
              HasSubstr("layers.1.self_attn.q_proj.weight: is stored, but no group"));
  quantization_of(model)["quantized_layers"] = Json::object();
  EXPECT_THAT(error_of([&] { ModelSpec::read(model.open()); }),
              HasSubstr("quantized_layers: is missing or empty"));
  quantization_of(model)["quantized_layers"] =
      Json::object({{kModule, Json::object({{"quant_algo", "W4A16_AWQ"}})}});
  EXPECT_THAT(error_of([&] { ModelSpec::read(model.open()); }),
              HasSubstr("quantized_layers.model.layers.0.self_attn.q_proj.quant_algo: the algorithm "
                        "\"W4A16_AWQ\" is not known here"));
}

TEST(Modelopt, ScalesOfACacheAreFoundInTheProjections) {
  ScratchModel model;
  pack_queries(model, modelopt_case("FP8"));
  quantization_of(model)["kv_cache_scheme"] =
      Json::object({{"dynamic", false}, {"num_bits", 8}, {"type", "float"}});
  EXPECT_THAT(error_of([&] { ModelSpec::read(model.open()); }), HasSubstr("self_attn.k_scale: is missing"));
  model.add_to_blocks("self_attn.k_proj.k_scale", scratch_tensor<float>("F32", {}, {0.25f}));
  model.add_to_blocks("self_attn.v_proj.v_scale", scratch_tensor<float>("F32", {1}, {0.5f}));
  const Checkpoint checkpoint = model.open();
  EXPECT_EQ(error_of([&] { ModelSpec::read(checkpoint); }), "");
  const LinearSource source = LinearSource::open(checkpoint);
  EXPECT_EQ(source.kv_cache(), KvCacheType::kFloat8);
  EXPECT_EQ(source.tensor("model.layers.1.self_attn.k_scale"), (std::vector<float>{0.25f}));
  EXPECT_EQ(source.tensor("model.layers.0.self_attn.v_scale"), (std::vector<float>{0.5f}));
}

struct ModeloptLie {
  const char* algorithm;
  void (*tell)(ScratchModel& model);
  const char* found;
};

const ModeloptLie kModeloptLies[] = {
    {"NVFP4", [](ScratchModel& m) { m.tensors.erase(kModule + ".weight_scale_2"); },
     "bad input|*q_proj.weight_scale_2: is missing"},
    {"NVFP4", [](ScratchModel& m) { m.tensors[kModule + ".weight_scale_2"] = scratch_ramp({16}); },
     "bad input|*q_proj.weight_scale_2: has shape [16], expected []"},
    {"NVFP4", [](ScratchModel& m) { m.tensors.erase(kModule + ".input_scale"); },
     "bad input|*q_proj.input_scale: is missing"},
    {"NVFP4",
     [](ScratchModel& m) {
       m.tensors[kModule + ".input_global_scale"] = scratch_tensor<float>("F32", {1}, {448.0f});
     },
     "bad input|*q_proj.input_global_scale: is stored, although quantization_config asks for no such scale"},
    {"NVFP4",
     [](ScratchModel& m) {
       m.tensors[kModule + ".weight_scale"].shape = {8, 2};
     },
     "bad input|*q_proj.weight_scale: has shape [8, 2], expected [16, 1]"},
    {"NVFP4", [](ScratchModel& m) { m.tensors[kModule + ".weight"].shape = {128}; },
     "bad input|*q_proj.weight: has shape [128], expected [out, in/2]"},
    {"NVFP4", [](ScratchModel& m) { m.tensors[kModule + ".pre_quant_scale"] = scratch_ramp({16}); },
     "unsupported|*q_proj.pre_quant_scale: inputs that are scaled before they meet the weight"},
    {"NVFP4", [](ScratchModel& m) { quantization_of(m)["quant_algo"] = "FP8"; },
     "unsupported|*q_proj.weight_scale_2: is stored, although quantization_config says no weights of two"},
    {"NVFP4", [](ScratchModel& m) { quantization_of(m)["quant_algo"] = "NVFP4_AWQ"; },
     "unsupported|*quant_algo: the algorithm \"NVFP4_AWQ\" is not known here"},
    {"NVFP4", [](ScratchModel& m) { quantization_of(m).erase("quant_algo"); }, "bad input|*quant_algo"},
    {"NVFP4",
     [](ScratchModel& m) {
       m.tensors["model.layers.0.mlp.experts.gate_up_proj_weight_scale"] = scratch_ramp({1});
     },
     "unsupported|*gate_up_proj_weight_scale: belongs to experts that modelopt stored as one stack"},
    {"FP8", [](ScratchModel& m) { m.tensors.erase(kModule + ".input_scale"); },
     "bad input|*q_proj.input_scale: is missing"},
    {"FP8", [](ScratchModel& m) { m.tensors.erase(kModule + ".weight_scale"); },
     "bad input|*q_proj.weight_scale: is missing"},
    {"FP8", [](ScratchModel& m) { quantization_of(m)["quant_algo"] = "NVFP4"; },
     "unsupported|*q_proj.weight: is stored as F8_E4M3, expected U8"},
    {"FP8_PER_CHANNEL_PER_TOKEN",
     [](ScratchModel& m) { m.tensors[kModule + ".weight_scale"] = scratch_ramp({8}); },
     "bad input|*q_proj.weight_scale: has shape [8], expected [16, 1]"},
    {"FP8_PER_CHANNEL_PER_TOKEN",
     [](ScratchModel& m) { m.tensors[kModule + ".input_scale"] = scratch_ramp({1}); },
     "bad input|*q_proj.input_scale: is stored, although"},
    {"FP8_PB_WO",
     [](ScratchModel& m) {
       m.tensors[kModule + ".weight_scale"] = scratch_ramp({1, 1, 2, 1});
     },
     "bad input|*q_proj.weight_scale: has shape [1, 1, 2, 1], expected [1, 1]"},
};

TEST(Modelopt, EveryLieIsRefusedByName) {
  for (const ModeloptLie& lie : kModeloptLies) {
    SCOPED_TRACE(lie.found);
    ScratchModel model;
    pack_queries(model, modelopt_case(lie.algorithm));
    lie.tell(model);
    expect_refused(model, lie.found);
  }
}

TEST(Modelopt, NumbersThatAreNoScalesAreNamed) {
  const auto refusal = [](const char* tensor, const std::string& bytes) {
    ScratchModel model;
    pack_queries(model, modelopt_case("NVFP4"));
    model.tensors[kModule + tensor].bytes.replace(0, bytes.size(), bytes);
    return error_of([&] { LinearSource::open(model.open()).quantized(kModule); });
  };
  const std::string zero(4, '\0'), negative("\0\0\x80\xbf", 4), nan("\0\0\xc0\x7f", 4);
  EXPECT_THAT(refusal(".weight_scale_2", zero),
              HasSubstr("weight_scale_2: is 0; scales are multiplied by it, and it is above 0"));
  EXPECT_THAT(refusal(".weight_scale_2", negative), HasSubstr("weight_scale_2: is -1;"));
  EXPECT_THAT(refusal(".weight_scale_2", nan), HasSubstr("weight_scale_2: is nan;"));
  EXPECT_THAT(refusal(".weight_scale", "\x7f"),
              HasSubstr("weight_scale: has the byte 127 at row 0, group 0, which is no scale"));
  EXPECT_THAT(refusal(".input_scale", zero), HasSubstr("input_scale: is 0; a scale is above 0"));
}

}  // namespace
}  // namespace llmq
