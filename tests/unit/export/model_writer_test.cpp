// What a writer publishes, read back through the same reader every other part of llmq uses.
#include "export/output/model_writer.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/sha256.h"
#include "export/formats/packed_formats.h"
#include "export/output/packed_writer.h"
#include "model/linear_source.h"
#include "model/open_checkpoint.h"
#include "tests/support/failing_io.h"
#include "tests/unit/export/tiny_checkpoint.h"

namespace llmq::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ModelWriterTest : public ::testing::Test {
 protected:
  ModelWriterTest()
      : source_(open_checkpoint(system_io(), write_tiny_checkpoint(disk_))),
        spec_(ModelSpec::read(source_)) {}

  void expect_read_back(const std::string& format, const std::vector<PlannedModule>& modules,
                        std::span<const std::string> ignored = {}) {
    const Path out = disk_ / "out";
    write_packed(system_io(), format, {out, true}, source_, modules, ignored);
    const Checkpoint written = open_checkpoint(system_io(), out.string());
    const LinearSource linears = LinearSource::open(written);
    EXPECT_EQ(format_name(linears.format()), format);
    for (std::size_t i = 0; i < modules.size(); ++i) {
      SCOPED_TRACE(modules[i].module);
      ASSERT_TRUE(linears.is_packed(modules[i].module));
      const QuantizedMatrix wanted = tiny_matrix(modules[i], i + 1),
                            found = linears.quantized(modules[i].module);
      EXPECT_EQ(found.codes, wanted.codes);
      EXPECT_EQ(found.scales, wanted.scales);
      EXPECT_EQ(found.zeros, wanted.zeros);
      EXPECT_EQ(found.scheme.scale_dtype, wanted.scheme.scale_dtype);
      EXPECT_EQ(found.scheme.bits, wanted.scheme.bits);
    }
    for (const StoredTensor& tensor : source_.tensors()) {
      const StoredTensor* copy = written.find(tensor.name);
      const bool packed = std::any_of(modules.begin(), modules.end(), [&](const PlannedModule& m) {
        return m.module + ".weight" == tensor.name;
      });
      ASSERT_EQ(copy == nullptr, packed) << tensor.name;
      if (packed) continue;
      EXPECT_EQ(copy->view.dtype, tensor.view.dtype);
      EXPECT_EQ(std::memcmp(copy->view.pointer, tensor.view.pointer, tensor.view.bytes()), 0) << tensor.name;
    }
    EXPECT_EQ(disk_.read("out/tokenizer.json"), disk_.read("tiny/tokenizer.json"));
    EXPECT_EQ(disk_.read("out/generation_config.json"), disk_.read("tiny/generation_config.json"));
  }

  std::string failure(const std::string& format, const std::vector<PlannedModule>& modules) {
    try {
      check_expressible(format, modules);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      return std::string(error.what()) + " | " + error.detail().where + " | " + error.detail().hint;
    }
    return "";
  }

  TemporaryDirectory disk_;
  Checkpoint source_;
  ModelSpec spec_;
};

TEST_F(ModelWriterTest, CompressedTensorsReadsBack) {
  for (const int bits : {2, 3, 4, 5, 8})
    for (const int group : {0, 32})
      for (const bool symmetric : {true, false})
        for (const DType scales : {DType::kBF16, DType::kF16, DType::kF32}) {
          SCOPED_TRACE(fmt::format("{} bits, group {}, symmetric {}, scales {}", bits, group, symmetric,
                                   dtype_row(scales).name));
          expect_read_back("compressed-tensors",
                           every_linear(spec_, scheme_of(bits, group, symmetric, scales)));
        }
}

TEST_F(ModelWriterTest, AwqReadsBack) {
  for (const int group : {0, 16, 64})
    for (const bool symmetric : {true, false}) {
      SCOPED_TRACE(fmt::format("group {}, symmetric {}", group, symmetric));
      expect_read_back("awq", every_linear(spec_, scheme_of(4, group, symmetric, DType::kF16)));
    }
}

TEST_F(ModelWriterTest, MixedSchemesAndDenseLinearsReadBack) {
  std::vector<PlannedModule> modules = every_linear(spec_, scheme_of(4, 32, false));
  modules.erase(modules.begin() + 2);  // v_proj of the first block stays dense
  modules.back().scheme = scheme_of(8, 0, true);
  const std::vector<std::string> ignored = {"model.layers.0.self_attn.v_proj"};
  expect_read_back("compressed-tensors", modules, ignored);
  const Json config = Json::parse(disk_.read("out/config.json"), "config.json").at("quantization_config");
  EXPECT_EQ(config.at("config_groups").members().size(), 2u);
  EXPECT_EQ(config.at("config_groups").at("group_1").at("targets"),
            Json::array({"model.layers.1.mlp.down_proj"}));
  EXPECT_EQ(config.at("config_groups").at("group_0").at("targets").items().size(), 12u);
  EXPECT_EQ(config.at("ignore"), Json::array({"model.layers.0.self_attn.v_proj", "lm_head"}));
}

// Columns that stayed as they were are kept by the dense format and refused by the packed ones.
TEST_F(ModelWriterTest, DenseWeightsAreWhatTheCodesMean) {
  std::vector<PlannedModule> modules = every_linear(spec_, scheme_of(3, 32, false));
  modules.erase(modules.begin());
  std::vector<QuantizedMatrix> matrices;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    QuantizedMatrix& matrix = matrices.emplace_back(tiny_matrix(modules[i], i));
    matrix.kept_columns = {1, 40};
    for (std::int64_t n = 0; n < 2 * matrix.out_features; ++n)
      matrix.kept_weights.push_back(static_cast<float>(n) / 3.0f);
  }
  const Path out = disk_ / "dense";
  const auto writer = open_writer(system_io(), "safetensors", {out, false}, source_, spec_, modules, {});
  for (const StoredTensor& tensor : source_.tensors())
    if (std::none_of(modules.begin(), modules.end(),
                     [&](const PlannedModule& m) { return m.module + ".weight" == tensor.name; }))
      writer->add_dense(tensor.name, tensor.view.dtype, tensor.view.shape,
                        {static_cast<const std::byte*>(tensor.view.pointer),
                         static_cast<std::size_t>(tensor.view.bytes())});
  for (std::size_t i = 0; i < modules.size(); ++i) writer->add_quantized(modules[i].module, matrices[i]);
  writer->finish({});
  const Checkpoint written = open_checkpoint(system_io(), out.string());
  EXPECT_EQ(LinearSource::open(written).format(), PackedFormat::kNone);
  EXPECT_EQ(written.config().find("quantization_config"), nullptr);
  EXPECT_EQ(written.config().at("torch_dtype").as_string(), "float32");
  EXPECT_EQ(written.tensors().size(), source_.tensors().size());
  for (std::size_t i = 0; i < modules.size(); ++i) {
    SCOPED_TRACE(modules[i].module);
    std::vector<float> wanted(matrices[i].codes.size());
    dequantize(matrices[i], wanted);
    const auto columns = static_cast<std::size_t>(modules[i].in_features);
    EXPECT_EQ(wanted[columns + 40], 1.0f) << "row 1's second kept weight, 3 / 3";
    EXPECT_EQ(written.read_float32(written.at(modules[i].module + ".weight")), wanted);
  }
  const auto packing =
      open_writer(system_io(), "compressed-tensors", {disk_ / "packed", false}, source_, spec_, modules, {});
  EXPECT_THROW(packing->add_quantized(modules[0].module, matrices[0]), Error);
}

TEST_F(ModelWriterTest, ConfigKeepsTheSourceAndSaysTheScalesType) {
  write_packed(system_io(), "awq", {disk_ / "out", false}, source_,
               every_linear(spec_, scheme_of(4, 32, false, DType::kF16)));
  const Json config = Json::parse(disk_.read("out/config.json"), "config.json");
  EXPECT_EQ(config.at("torch_dtype").as_string(), "float16");
  EXPECT_EQ(config.at("hidden_size").as_integer(), 64);
  EXPECT_EQ(
      config.at("quantization_config"),
      Json::parse(
          R"({"bits":4,"group_size":32,"modules_to_not_convert":["lm_head"],"quant_method":"awq","version":"gemm","zero_point":true})",
          "wanted"));
}

TEST_F(ModelWriterTest, SaysWhichFormatCanExpressTheScheme) {
  EXPECT_EQ(failure("compressed-tensors", every_linear(spec_, scheme_of(4, 32, false))), "");
  EXPECT_EQ(failure("awq", every_linear(spec_, scheme_of(4, 32, true, DType::kF16))), "");
  EXPECT_THAT(failure("awq", every_linear(spec_, scheme_of(8, 32, false, DType::kF16))),
              HasSubstr("format: compressed-tensors"));
  EXPECT_THAT(failure("awq", every_linear(spec_, scheme_of(4, 32, false))), HasSubstr("F16"));
  std::vector<PlannedModule> modules = every_linear(spec_, scheme_of(4, 32, false, DType::kF16));
  modules[5].scheme.group_size = 16;
  EXPECT_THAT(failure("awq", modules), HasSubstr("model.layers.0.mlp.up_proj"));
  EXPECT_EQ(failure("compressed-tensors", modules), "");
  modules[0].out_features = 12;
  EXPECT_THAT(failure("awq", modules), HasSubstr("not a multiple of 8"));
  EXPECT_THAT(failure("compressed-tensors", every_linear(spec_, scheme_of(4, 48, true))),
              HasSubstr("does not divide"));
  EXPECT_THAT(failure("gguf", modules), HasSubstr("compressed-tensors, awq"));
  QuantScheme activations = scheme_of(8, 0, true);
  activations.activation_bits = 8;
  activations.activation_scale = ActivationScale::kToken;
  EXPECT_EQ(failure("compressed-tensors", every_linear(spec_, activations)), "");
  for (const char* format : {"awq", "gptq"}) {
    EXPECT_THAT(failure(format, every_linear(spec_, activations)), HasSubstr("no quantized activations"));
    EXPECT_THAT(failure(format, every_linear(spec_, activations)), HasSubstr("format: compressed-tensors"));
  }
}

TEST_F(ModelWriterTest, ShardsGiveTheSameTensors) {
  const std::vector<PlannedModule> modules = every_linear(spec_, scheme_of(4, 32, false));
  OutputTarget target{disk_ / "out", false};
  target.shard_bytes = 40'000;
  write_packed(system_io(), "compressed-tensors", target, source_, modules);
  const Checkpoint written = open_checkpoint(system_io(), (disk_ / "out").string());
  EXPECT_GT(written.shards().size(), 2u);
  for (const Path& shard : written.shards())
    EXPECT_LE(system_io().open(shard)->size(), target.shard_bytes) << shard;
  EXPECT_EQ(LinearSource::open(written).quantized(modules[8].module).codes, tiny_matrix(modules[8], 9).codes);
}

TEST_F(ModelWriterTest, TheSameInputGivesTheSameDigestWhateverTheReportSays) {
  const std::vector<PlannedModule> modules = every_linear(spec_, scheme_of(4, 32, false));
  for (const char* name : {"a", "b"})
    write_packed(system_io(), "compressed-tensors", {disk_ / name, false}, source_, modules);
  disk_.write("b/report.json", "{\"schema\": \"llmq.report/1\", \"seconds\": 12}");
  const std::string digest = output_digest(system_io(), disk_ / "a");
  EXPECT_EQ(digest, output_digest(system_io(), disk_ / "b"));
  std::string lines;
  for (const char* name : {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}) {
    const std::string text = disk_.read(Path("a") / name);
    lines += sha256_hex(std::as_bytes(std::span(text))) + "  " + name + "\n";
  }
  EXPECT_EQ(digest, "sha256:" + sha256_hex(std::as_bytes(std::span(lines))));
  disk_.write("b/tokenizer.json", "{}");
  EXPECT_NE(digest, output_digest(system_io(), disk_ / "b"));
}

// A whole run with every call to the disk failing in turn: always an Error, never the output's name.
TEST(WrittenOrder, ComparesDigitsAsNumbers) {
  const std::vector<std::string> ordered = {
      "lm_head.weight",           "model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight",
      "model.layers.2.mlp",       "model.layers.2.mlp.a",      "model.layers.2a",
      "model.layers.9.z",         "model.layers.10.a",         "model.layers.10.b",
      "model.layers.100.a.1.b.2", "model.layers.100.a.1.b.10", "model.norm.weight"};
  std::vector<TensorDeclaration> tensors;
  for (auto name = ordered.rbegin(); name != ordered.rend(); ++name)
    tensors.push_back({*name, DType::kF32, {1}});
  written_order(tensors);
  std::vector<std::string> names;
  for (const TensorDeclaration& tensor : tensors) names.push_back(tensor.name);
  EXPECT_EQ(names, ordered);
}

TEST_F(ModelWriterTest, NoFailureLeavesTheOutputsName) {
  const std::vector<PlannedModule> modules = every_linear(spec_, scheme_of(4, 32, false));
  int failures = 0;
  for (int k = 0;; ++k) {
    SCOPED_TRACE(k);
    ASSERT_LT(k, 1000);
    FailingIo io(k);
    OutputTarget target{disk_ / "out", false};
    target.shard_bytes = 100'000;
    bool failed = false;
    try {
      write_packed(io, "compressed-tensors", target, source_, modules);
    } catch (const Error&) {
      failed = true;
    }
    if (!io.failed()) break;
    ++failures;
    EXPECT_TRUE(failed);
    EXPECT_THAT(system_io().list(disk_.path()), ElementsAre("tiny"));
  }
  EXPECT_GT(failures, 60);
}

}  // namespace
}  // namespace llmq::testing
