// inspect and diff on checkpoints whose answers are known.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "export/convert.h"
#include "export/diff.h"
#include "export/inspect.h"
#include "model/open_checkpoint.h"
#include "tests/unit/export/tiny_checkpoint.h"

namespace llmq::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Two blocks of 64*64 + 2*32*64 + 64*64 + 3*64*128 weights and 2*64 gains; embedding 96*64; one norm.
constexpr std::int64_t kLinearWeights = 2 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 64 * 128);
constexpr std::int64_t kTinyParameters = kLinearWeights + 2 * 2 * 64 + 96 * 64 + 64;

class InspectTest : public ::testing::Test {
 protected:
  InspectTest() : source_(write_tiny_checkpoint(disk_)) {}

  std::string pack(const std::string& name, const QuantScheme& scheme) {
    const Checkpoint checkpoint = open_checkpoint(system_io(), source_);
    write_packed(system_io(), "compressed-tensors", {disk_ / name, true}, checkpoint,
                 every_linear(ModelSpec::read(checkpoint), scheme));
    return (disk_ / name).string();
  }

  TemporaryDirectory disk_;
  std::string source_;
};

TEST_F(InspectTest, ADenseCheckpoint) {
  const Inspection found = inspect(system_io(), source_, false);
  EXPECT_EQ(found.family, "llama");
  EXPECT_EQ(found.architecture, "LlamaForCausalLM");
  EXPECT_EQ(found.format, "dense");
  EXPECT_EQ(found.scheme, "bf16");
  EXPECT_EQ(found.parameters, kTinyParameters);
  EXPECT_EQ(found.bytes, static_cast<std::uint64_t>(2 * kTinyParameters));
  EXPECT_EQ(found.bits_per_weight, 16);
  EXPECT_EQ(found.bits_per_weight_total, 16);
  EXPECT_EQ(found.tensors.size(), tiny_tensors().size());
  EXPECT_TRUE(found.modules.empty());
}

// Codes of MXFP4 have an exponent beside each 16 bytes of theirs.
TEST(Inspect, ListsEveryByte) {
  const Path models = Path(LLMQ_SOURCE_DIR) / "tests/golden/models";
  const Inspection found = inspect(system_io(), (models / "gpt_oss-mxfp4/model").string(), false);
  std::uint64_t listed = 0;
  for (const auto& tensor : found.tensors) listed += tensor.bytes;
  EXPECT_EQ(listed, found.bytes);
}

// Rules of loaders are known for the containers that llmq writes; AutoRound's own goes by others.
TEST(Inspect, NamesNoLoaderOfAForeignContainer) {
  const Path models = Path(LLMQ_SOURCE_DIR) / "tests/golden/models";
  const Inspection own = inspect(system_io(), (models / "autoround-own-awq/model").string(), false);
  EXPECT_EQ(own.scheme, "w4a16_g32_asym");
  EXPECT_THAT(own.loaders, IsEmpty());
  const Inspection gptq = inspect(system_io(), (models / "autoround-auto-gptq/model").string(), false);
  EXPECT_EQ(gptq.scheme, "w4a16_g32_sym");
  ASSERT_FALSE(gptq.loaders.empty());
  EXPECT_TRUE(gptq.loaders.front().fits) << gptq.loaders.front().reason;
}

TEST_F(InspectTest, APackedCheckpoint) {
  const Inspection found = inspect(system_io(), pack("packed", scheme_of(4, 32, true)), false);
  EXPECT_EQ(found.format, "compressed-tensors");
  EXPECT_EQ(found.scheme, "w4a16_g32_sym");
  EXPECT_EQ(found.parameters, kTinyParameters);
  EXPECT_EQ(found.bits_per_weight, 4.5);
  // codes and scales, 16 bytes of shape a linear, and the rest at 16 bits
  const std::uint64_t bytes = kLinearWeights * 9 / 16 + 14 * 16 + 2 * (kTinyParameters - kLinearWeights);
  EXPECT_EQ(found.bytes, bytes);
  EXPECT_EQ(found.modules.size(), 14u);
  EXPECT_EQ(found.to_json(true, false).at("tensors").items().size(), found.tensors.size());
}

TEST_F(InspectTest, QualityComesFromTheReport) {
  const std::string packed = pack("packed", scheme_of(4, 32, true));
  EXPECT_THROW(inspect(system_io(), packed, true), Error);  // this report.json lists no modules
  disk_.write(
      "packed/report.json",
      R"({"schema":"llmq.report/1","modules":[{"module":"model.layers.0.mlp.up_proj","relative_error":0.25}]})");
  const Json json = inspect(system_io(), packed, true).to_json(false, true);
  for (const Json& module : json.at("modules").items()) {
    const bool reported = module.at("module").as_string() == "model.layers.0.mlp.up_proj";
    ASSERT_EQ(module.find("relative_error") != nullptr, reported);
    if (reported) {
      EXPECT_EQ(module.at("relative_error").as_double(), 0.25);
    }
  }
}

TEST_F(InspectTest, AModelOfAnUnknownFamilyIsStillListed) {
  Json config = Json::parse(kTinyConfig, "config.json");
  config["model_type"] = "novel";
  config["architectures"] = Json::array({"NovelForCausalLM"});
  disk_.write("tiny/config.json", config.dump());
  const Inspection found = inspect(system_io(), source_, false);
  EXPECT_EQ(found.family, "novel");
  EXPECT_EQ(found.parameters, kTinyParameters);
  EXPECT_FALSE(found.note.empty());
}

TEST_F(InspectTest, ACheckpointDoesNotDifferFromItself) {
  const std::string packed = pack("packed", scheme_of(4, 32, true));
  EXPECT_TRUE(diff(system_io(), packed, packed).equal());
  EXPECT_TRUE(diff(system_io(), source_, source_).equal());
}

TEST_F(InspectTest, APackedCheckpointMeansWhatItsDenseTwinHolds) {
  const std::string packed = pack("packed", scheme_of(4, 32, false));
  ConvertRequest request;
  request.source = packed;
  request.target.directory = disk_ / "twin";
  convert(system_io(), open_checkpoint(system_io(), request.source), request);
  const CheckpointDiff found = diff(system_io(), packed, request.target.directory.string());
  EXPECT_THAT(found.only_a, IsEmpty());
  EXPECT_THAT(found.only_b, IsEmpty());
  EXPECT_EQ(found.tensors.size(), tiny_tensors().size());
  for (const TensorDifference& tensor : found.tensors) EXPECT_TRUE(tensor.equal) << tensor.name;
  EXPECT_FALSE(found.equal());  // stored otherwise, and the configs differ
}

TEST_F(InspectTest, DifferencesAreNamedAndMeasured) {
  disk_.write("a/config.json", R"({"model_type": "llama", "rope": {"theta": 1, "kind": "x"}, "only": 1})");
  disk_.write("b/config.json", R"({"model_type": "llama", "rope": {"theta": 2, "kind": "x"}})");
  const auto write = [&](const char* name, std::vector<float> values, const char* extra) {
    SafetensorsWriter writer(system_io(), disk_ / name / "model.safetensors",
                             {{"w", DType::kF32, {2, 2}}, {extra, DType::kF32, {1}}}, {});
    const std::vector<float> one = {1};
    writer.add("w", std::as_bytes(std::span(values)));
    writer.add(extra, std::as_bytes(std::span(one)));
    writer.finish();
  };
  write("a", {3, 4, 0, 0}, "x");
  write("b", {3, 4, 0, 1}, "y");
  const CheckpointDiff found = diff(system_io(), (disk_ / "a").string(), (disk_ / "b").string());
  EXPECT_THAT(found.only_a, ElementsAre("x"));
  EXPECT_THAT(found.only_b, ElementsAre("y"));
  ASSERT_EQ(found.tensors.size(), 1u);
  EXPECT_FALSE(found.tensors[0].equal);
  EXPECT_EQ(found.tensors[0].relative_error, 0.2);  // 1 / 5
  EXPECT_EQ(found.tensors[0].max_abs_error, 1);
  ASSERT_EQ(found.config.size(), 2u);
  EXPECT_EQ(found.config[0].key, "only");
  EXPECT_TRUE(found.config[0].b.is_null());
  EXPECT_EQ(found.config[1].key, "rope.theta");
}

}  // namespace
}  // namespace llmq::testing
