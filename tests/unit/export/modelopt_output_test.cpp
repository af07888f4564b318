// Directories as ModelOpt's are written, read back, and changed into compressed-tensors' and back.
#include <gmock/gmock.h>

#include "model/linear_source.h"
#include "tests/unit/export/convert_fixture.h"
#include "tests/unit/export/named_scheme.h"
#include "tests/unit/export/stored_matrix.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;

class ModeloptOutputTest : public ConvertTest {
 protected:
  // Linears of the first block by one scheme, of the second by another.
  std::vector<PlannedModule> write(const char* format, const char* first, const char* second,
                                   float global = 8, std::optional<KvCacheType> cache = {}) {
    std::filesystem::remove_all(disk_ / "packed");
    const Checkpoint checkpoint = open_checkpoint(system_io(), source_);
    const ModelSpec spec = ModelSpec::read(checkpoint);
    std::vector<PlannedModule> modules = every_linear(spec, scheme_named(first));
    for (PlannedModule& m : modules)
      if (m.module.starts_with("model.layers.1.")) m.scheme = scheme_named(second);
    const auto writer = open_writer(system_io(), format, {disk_ / "packed", true}, checkpoint, spec, modules,
                                    {}, {cache, {}});
    add_dense_tensors(*writer, checkpoint, modules);
    for (std::size_t i = 0; i < modules.size(); ++i)
      writer->add_quantized(modules[i].module, stored_matrix(modules[i], i + 1, global));
    if (cache)
      for (const BlockSpec& block : spec.blocks)
        for (const char* which : {"k_scale", "v_scale"}) {
          const float scale = which[0] == 'k' ? 0.25f : 0.5f;
          writer->add_dense(kv_scale_name(block, which), DType::kF32, {1},
                            std::as_bytes(std::span(&scale, 1)));
        }
    writer->finish({});
    return modules;
  }
  std::string refused(const char* first, const char* second, std::optional<KvCacheType> cache = {}) {
    try {
      write("modelopt", first, second, 8, cache);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  Json quantization(const char* name) { return open(name).config().at("quantization_config"); }
};

TEST_F(ModeloptOutputTest, WhatIsWrittenReadsBack) {
  struct Form {
    const char *scheme, *algorithm;
    Shape scales;  // of q_proj, 64 x 64
    const char* further;
  };
  for (const Form& form :
       {Form{"nvfp4a16", "W4A16_NVFP4", {64, 4}, ".weight_scale_2"},
        Form{"nvfp4", "NVFP4", {64, 4}, ".input_scale"}, Form{"fp8_static", "FP8", {}, ".input_scale"},
        Form{"fp8", "FP8_PER_CHANNEL_PER_TOKEN", {64}, ".weight"}}) {
    SCOPED_TRACE(form.scheme);
    const std::vector<PlannedModule> modules = write("modelopt", form.scheme, form.scheme);
    const Checkpoint checkpoint = open("packed");
    EXPECT_EQ(quantization("packed").at("quant_algo").as_string(), form.algorithm);
    EXPECT_EQ(quantization("packed").at("ignore"), Json::array({"lm_head"}));
    EXPECT_EQ(checkpoint.config().at("torch_dtype").as_string(), "bfloat16") << "the model's own";
    const std::string query = "model.layers.0.self_attn.q_proj";
    EXPECT_EQ(checkpoint.at(query + ".weight_scale").view.shape, form.scales);
    if (const StoredTensor& one = checkpoint.at(query + form.further); one.view.dtype == DType::kF32) {
      EXPECT_EQ(one.view.shape, Shape{});
    }
    ModelSpec::read(checkpoint);
    const LinearSource source = LinearSource::open(checkpoint);
    for (std::size_t i = 0; i < modules.size(); ++i) {
      const QuantizedMatrix wanted = stored_matrix(modules[i], i + 1, 8),
                            found = source.quantized(modules[i].module);
      EXPECT_EQ(found.codes, wanted.codes);
      EXPECT_EQ(found.scales, wanted.scales);
      const bool is_factor = std::string(form.scheme) == "nvfp4";
      EXPECT_EQ(found.input_scale, is_factor ? 1 / wanted.input_scale : wanted.input_scale);
      EXPECT_EQ(found.scheme.text(), form.scheme);
    }
    const Json file =
        Json::parse(read_text(system_io(), disk_ / "packed/hf_quant_config.json"), "hf_quant_config.json");
    const Json& said = file.at("quantization");
    EXPECT_EQ(said.at("quant_algo").as_string(), form.algorithm);
    EXPECT_EQ(said.at("exclude_modules"), Json::array({"lm_head"}));
    const bool groups = std::string(form.scheme).starts_with("nvfp4");
    EXPECT_EQ(said.at("group_size"), groups ? Json(16) : Json());
    EXPECT_TRUE(said.at("kv_cache_quant_algo").is_null());
  }
}

TEST_F(ModeloptOutputTest, TwoSchemesAreATableOfLayers) {
  const std::vector<PlannedModule> modules = write("modelopt", "nvfp4a16", "fp8_static");
  EXPECT_EQ(quantization("packed").at("quant_algo").as_string(), "MIXED_PRECISION");
  EXPECT_EQ(quantization("packed").at("quantized_layers").members().size(), modules.size());
  const LinearSource source = LinearSource::open(open("packed"));
  for (const PlannedModule& m : modules)
    EXPECT_EQ(source.packed_shape(m.module).scheme.text(), m.scheme.text()) << m.module;
}

TEST_F(ModeloptOutputTest, ScalesOfACacheLieInTheProjections) {
  write("modelopt", "fp8_static", "fp8_static", 8, KvCacheType::kFloat8);
  const std::string header = read_text(system_io(), disk_ / "packed/model.safetensors");
  EXPECT_NE(header.find("model.layers.1.self_attn.k_proj.k_scale"), std::string::npos);
  EXPECT_NE(header.find("model.layers.0.self_attn.v_proj.v_scale"), std::string::npos);
  const Checkpoint checkpoint = open("packed");
  ModelSpec::read(checkpoint);
  EXPECT_EQ(LinearSource::open(checkpoint).kv_cache(), KvCacheType::kFloat8);
  EXPECT_EQ(checkpoint.read_float32(checkpoint.at("model.layers.1.self_attn.v_scale")),
            std::vector<float>{0.5f});
  EXPECT_THAT(read_text(system_io(), disk_ / "packed/hf_quant_config.json"),
              HasSubstr("\"kv_cache_quant_algo\": \"FP8\""));
  run(disk_ / "packed", disk_ / "other", "compressed-tensors");
  EXPECT_EQ(LinearSource::open(open("other")).kv_cache(), KvCacheType::kFloat8);
  EXPECT_THAT(refused("fp8_static", "fp8_static", KvCacheType::kInt8),
              HasSubstr("format modelopt has a KV cache of FP8 alone"));
}

// A power of two says the same in both; of another number the bytes stay, and scales lose their last bit.
TEST_F(ModeloptOutputTest, BytesStayInCompressedTensorsAndBack) {
  for (const auto& [global, scheme] :
       std::vector<std::pair<float, const char*>>{{8.0f, "nvfp4a16"}, {0.3f, "nvfp4a16"}, {8.0f, "nvfp4"}}) {
    SCOPED_TRACE(global);
    const std::vector<PlannedModule> modules = write("modelopt", scheme, scheme, global);
    for (const char* name : {"there", "back"}) std::filesystem::remove_all(disk_ / name);
    run(disk_ / "packed", disk_ / "there", "compressed-tensors");
    run(disk_ / "there", disk_ / "back", "modelopt");
    const Checkpoint first = open("packed"), there = open("there"), back = open("back");
    for (const PlannedModule& m : modules) {
      const auto bytes = [&](const Checkpoint& from, const std::string& name) {
        const TensorView& view = from.at(m.module + name).view;
        return std::string(view.as<const char>(), view.bytes());
      };
      EXPECT_EQ(bytes(there, ".weight_packed"), bytes(first, ".weight"));
      EXPECT_EQ(bytes(there, ".weight_scale"), bytes(first, ".weight_scale"));
      EXPECT_EQ(bytes(back, ".weight"), bytes(first, ".weight"));
      EXPECT_EQ(bytes(back, ".weight_scale"), bytes(first, ".weight_scale"));
      const std::vector<float> a = LinearSource::open(first).quantized(m.module).scales,
                               b = LinearSource::open(there).quantized(m.module).scales;
      for (std::size_t i = 0; i < a.size(); ++i)  // the reciprocal, the product and the quotient round
        ASSERT_NEAR(a[i], b[i], global == 8 ? 0 : 3 * 0x1p-24f * a[i]);
      if (!m.scheme.calibrates_inputs()) continue;
      EXPECT_EQ(there.read_float32(there.at(m.module + ".input_global_scale")), std::vector<float>{32.0f});
      EXPECT_EQ(there.find(m.module + ".input_scale"), nullptr);
      EXPECT_EQ(back.read_float32(back.at(m.module + ".input_scale")), std::vector<float>{0.03125f});
      EXPECT_EQ(back.find(m.module + ".input_global_scale"), nullptr);
    }
  }
}

TEST_F(ModeloptOutputTest, WhatLoadersDoNotTakeIsRefusedByName) {
  EXPECT_THAT(refused("w4a16_g32_sym", "w4a16_g32_sym"),
              HasSubstr("format modelopt stores fp8, fp8_static, fp8_block, nvfp4 and nvfp4a16, and not "
                        "w4a16_g32"));
  EXPECT_THAT(refused("mxfp4", "mxfp4"), HasSubstr("and not mxfp4"));
  EXPECT_THAT(refused("fp8_static", "fp8"),
              HasSubstr("loaders of modelopt mix fp8_static, nvfp4 and nvfp4a16 alone"));
  EXPECT_THAT(refused("fp8_block", "fp8_block"),
              HasSubstr("inputs in groups of 128 do not divide the 64 input features"));
}

}  // namespace
}  // namespace llmq::testing
