// Gemma 2 and 3 as GGUF: norms are stored as what they multiply by, and what llama.cpp takes for granted is
// held to it.
#include <gtest/gtest.h>

#include "model/gguf/gguf_fields.h"
#include "tests/unit/export/gguf_fixture.h"
#include "tests/unit/io/hostile_bytes.h"

namespace llmq {
namespace {

using testing::expect_refusal;
using testing::golden_model;
using testing::TemporaryDirectory;
using testing::to_gguf;

// A golden model as llama.cpp would have it: scaled by its heads, all of its two blocks within the first
// period.
std::string gemma_model(const TemporaryDirectory& disk, const std::string& name,
                        const std::vector<std::pair<std::string, Json>>& more = {}) {
  const std::string model = golden_model(disk, name);
  const Path file = Path(model) / "config.json";
  Json config = Json::parse(read_text(system_io(), file), file.string());
  config["query_pre_attn_scalar"] = config.at("head_dim");
  if (name == "gemma3_text") config["layer_types"] = Json::array({"sliding_attention", "sliding_attention"});
  for (const auto& [key, value] : more) config[key] = value;
  write_text_atomically(system_io(), file, config.dump());
  return model;
}

class GemmaGguf : public ::testing::TestWithParam<const char*> {};

TEST_P(GemmaGguf, GivesBackStructureAndWeights) {
  TemporaryDirectory disk;
  const std::string source = gemma_model(disk, GetParam());
  to_gguf(system_io(), source, disk / "m.gguf", "f32");
  const Checkpoint before = open_checkpoint(system_io(), source),
                   after = open_checkpoint(system_io(), (disk / "m.gguf").string());
  const ModelSpec spec = ModelSpec::read(before), read = ModelSpec::read(after);
  EXPECT_EQ(read.family, spec.family);
  EXPECT_EQ(read.logit_softcap, spec.logit_softcap);
  EXPECT_TRUE(read.tied_head);
  ASSERT_EQ(read.ropes.size(), spec.ropes.size());
  for (std::size_t i = 0; i < read.ropes.size(); ++i) {
    EXPECT_EQ(read.ropes[i].theta, spec.ropes[i].theta);
    EXPECT_EQ(read.ropes[i].factor, spec.ropes[i].factor);
  }
  for (std::size_t i = 0; i < spec.blocks.size(); ++i) {
    const AttentionSpec &a = *read.blocks[i].attention(), &b = *spec.blocks[i].attention();
    EXPECT_EQ(a.window, b.window);
    EXPECT_EQ(a.scale, b.scale);
    EXPECT_EQ(a.softcap, b.softcap);
    EXPECT_EQ(a.rope.table, b.rope.table);
    for (const NormSpec& norm : spec.blocks[i].norms) {
      const std::vector<float> stored = before.read_float32(before.at(norm.gain.tensor)),
                               found = after.read_float32(after.at(norm.gain.tensor));
      for (std::size_t k = 0; k < stored.size(); ++k)  // 1 + w is rounded once
        EXPECT_NEAR(found[k], stored[k], 0x1p-23f * 2) << norm.gain.tensor;
    }
    for (const LinearSpec& linear : spec.blocks[i].linears)
      EXPECT_EQ(after.read_float32(after.at(linear.weight.tensor)),
                before.read_float32(before.at(linear.weight.tensor)));
  }
  const GgufFile file = open_gguf(system_io(), disk / "m.gguf");
  const GgufTensor& norm = *find_gguf_tensor(file.header, "blk.0.ffn_norm.weight");
  float first = 0;
  std::memcpy(&first, norm.data, sizeof first);
  EXPECT_EQ(first, 1 + before.read_float32(before.at("model.layers.0.pre_feedforward_layernorm.weight"))[0]);
  EXPECT_EQ(find_gguf_tensor(file.header, "output.weight"), nullptr);
  EXPECT_FALSE(file.header.boolean("tokenizer.ggml.add_space_prefix"));
}

INSTANTIATE_TEST_SUITE_P(Families, GemmaGguf, ::testing::Values("gemma2", "gemma3_text"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST(GemmaGgufRefusal, OfWhatLlamaCppTakesForGranted) {
  for (const auto& [name, key, value, part] :
       {std::tuple<const char*, const char*, Json, const char*>{"gemma2", "query_pre_attn_scalar", 20,
                                                                "llama.cpp's gemma2 takes 12"},
        {"gemma2", "rope_parameters", Json::object({{"rope_type", "default"}, {"rope_theta", 500.0}}),
         "is 500, and GGUF's gemma2 models have no place for it"},
        {"gemma2", "layer_types", Json::array({"full_attention", "sliding_attention"}),
         "full attention in every 2th block"},
        {"gemma3_text", "layer_types", Json::array({"sliding_attention", "full_attention"}),
         "full attention in every 6th block"}}) {
    SCOPED_TRACE(part);
    TemporaryDirectory disk;
    const std::string source = gemma_model(disk, name, {{key, value}});
    expect_refusal(ErrorKind::kUnsupported, part,
                   [&] { to_gguf(system_io(), source, disk / "m.gguf", "f32"); });
  }
}

}  // namespace
}  // namespace llmq
