// Falcon, Llama 4 and Gemma 4 as GGUF: rows of q, k and v in another order, norms by what stands beside them,
// sizes by kind of block, gate and up of experts as one matrix.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "export/gguf/family_limits.h"
#include "model/gguf/gguf_fields.h"
#include "tests/unit/export/gguf_fixture.h"
#include "tests/unit/io/hostile_bytes.h"
#include "tests/unit/model/scratch_golden.h"
#include "tests/unit/model/scratch_mixture.h"

namespace llmq {
namespace {

using testing::expect_refusal;

// A golden model as llama.cpp would have it.
class LikeLlamaCpp : public ScratchGolden {
 public:
  explicit LikeLlamaCpp(const std::string& name) : ScratchGolden(name) {
    if (name == "llama4_text") {
      config["no_rope_layers"] = Json::array({1, 1});
      config["layer_types"] = Json::array({"chunked_attention", "chunked_attention"});
      config["attention_chunk_size"] = 8192;
      config["rope_parameters"] = Json::object({{"rope_type", "default"}, {"rope_theta", 5e5}});
    }
    if (name == "gemma4_text-shared") {
      config["vocab_size_per_layer_input"] = 97;
      ScratchTensor& table = tensors.at("model.embed_tokens_per_layer.weight");
      table.bytes.resize(table.bytes.size() / 100 * 97);
      table.shape[0] = 97;
    }
  }
};

class KindsGguf : public ::testing::TestWithParam<const char*>, protected testing::WrittenGguf {};

TEST_P(KindsGguf, GivesBackStructureAndWeights) {
  const LikeLlamaCpp model(GetParam());
  const Checkpoint before = model.open();
  write(model);
  const Checkpoint after = open_checkpoint(system_io(), path().string());
  const ModelSpec spec = ModelSpec::read(before), read = ModelSpec::read(after);
  EXPECT_EQ(read.family, spec.family);
  EXPECT_EQ(read.logit_softcap, spec.logit_softcap);
  ASSERT_EQ(read.ropes.size(), spec.ropes.size());
  for (std::size_t i = 0; i < spec.ropes.size(); ++i) {
    EXPECT_EQ(read.ropes[i].theta, spec.ropes[i].theta);
    EXPECT_EQ(read.ropes[i].dims, spec.ropes[i].dims);
    EXPECT_EQ(read.ropes[i].angles, spec.ropes[i].angles);
  }
  ASSERT_EQ(read.blocks.size(), spec.blocks.size());
  for (std::size_t i = 0; i < spec.blocks.size(); ++i) {
    const BlockSpec &a = read.blocks[i], &b = spec.blocks[i];
    EXPECT_EQ(a.sublayers.size(), b.sublayers.size());
    EXPECT_EQ(a.pages.window, b.pages.window);
    EXPECT_EQ(a.pages.chunks, b.pages.chunks);
    EXPECT_EQ(a.attention()->grouped, b.attention()->grouped);
    EXPECT_EQ(a.attention()->kv_heads, b.attention()->kv_heads);
    EXPECT_EQ(a.attention()->head_dim, b.attention()->head_dim);
    EXPECT_EQ(a.attention()->shared_pages, b.attention()->shared_pages);
    EXPECT_EQ(a.attention()->query_norm.has_value(), b.attention()->query_norm.has_value());
    ASSERT_EQ(a.mixture() == nullptr, b.mixture() == nullptr);
    if (b.mixture() == nullptr) continue;
    EXPECT_EQ(a.mixture()->top_k, b.mixture()->top_k);
    EXPECT_EQ(a.mixture()->weighs_input, b.mixture()->weighs_input);
    EXPECT_EQ(a.mixture()->score, b.mixture()->score);
    EXPECT_EQ(a.mixture()->shared_width, b.mixture()->shared_width);
  }
  EXPECT_EQ(after.tensors().size(), before.tensors().size());
  for (const StoredTensor& tensor : before.tensors())
    EXPECT_EQ(after.read_float32(after.at(tensor.name)), before.read_float32(tensor)) << tensor.name;
}

INSTANTIATE_TEST_SUITE_P(Families, KindsGguf,
                         ::testing::Values("falcon", "falcon-40b", "llama4_text", "gemma4_text",
                                           "gemma4_text-moe", "gemma4_text-shared"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

using KindsOfGguf = KindsGguf;

TEST_F(KindsOfGguf, FalconsRowsLieApart) {
  ScratchGolden model("falcon-40b");  // 2 KV heads of 2 queries, 8 channels each
  const GgufFile& file = write(model);
  EXPECT_EQ(file.header.string("falcon.tensor_data_layout"), "jploski");
  EXPECT_EQ(file.header.integer("falcon.attention.head_count_kv"), 2);
  const std::vector<float> together = floats_of(
                               model.tensors.at("transformer.h.1.self_attention.query_key_value.weight")),
                           apart = stored("blk.1.attn_qkv.weight");
  constexpr std::size_t kDim = 8, kWide = 32, kGroup = 4 * kDim;
  // Of q, k and v, the first row of the second KV head.
  for (const auto& [there, here] : {std::pair{2 * kDim, kGroup},
                                    {4 * kDim + kDim, kGroup + 2 * kDim},
                                    {6 * kDim + kDim, kGroup + 3 * kDim}})
    for (std::size_t c = 0; c < kWide; ++c)
      EXPECT_EQ(apart[there * kWide + c], together[here * kWide + c]) << there;
  EXPECT_EQ(stored("blk.0.attn_norm.weight"), floats_of(model.tensors.at("transformer.h.0.ln_mlp.weight")));
  EXPECT_EQ(stored("blk.0.attn_norm_2.bias"), floats_of(model.tensors.at("transformer.h.0.ln_attn.bias")));
}

TEST_F(KindsOfGguf, MinusZeroKeepsItsSign) {
  ScratchGolden model("falcon");
  ScratchTensor& up = model.tensors.at("transformer.h.0.mlp.dense_h_to_4h.weight");
  const std::size_t size = up.bytes.size() / static_cast<std::size_t>(up.shape[0] * up.shape[1]);
  std::fill_n(up.bytes.begin(), size, '\0');
  up.bytes[size - 1] = '\x80';
  write(model);
  EXPECT_EQ(stored("blk.0.ffn_up.weight").front(), 0);
  EXPECT_TRUE(std::signbit(stored("blk.0.ffn_up.weight").front()));
}

TEST_F(KindsOfGguf, FalconsRopeIsToldWhereItIsAnother) {
  ScratchGolden model("falcon-40b");
  EXPECT_EQ(write(model).header.find("falcon.rope.freq_base"), nullptr) << "as the converter";
  model.config["rope_parameters"]["rope_theta"] = 500042;
  EXPECT_EQ(write(model).header.number("falcon.rope.freq_base"), 500042);
}

TEST_F(KindsOfGguf, GateAndUpOfAnExpertAreOneMatrix) {
  ScratchGolden model("gemma4_text-moe");  // 5 experts of 24 channels
  write(model);
  EXPECT_EQ(find_gguf_tensor(file_->header, "blk.1.ffn_gate_up_exps.weight")->shape, (Shape{5, 48, 32}));
  EXPECT_EQ(stored("blk.1.ffn_gate_up_exps.weight"),
            floats_of(model.tensors.at("model.layers.1.experts.gate_up_proj")));
  EXPECT_EQ(stored("blk.1.ffn_gate_inp.scale"), floats_of(model.tensors.at("model.layers.1.router.scale")));
  const std::vector<float> factors = stored("rope_freqs.weight");
  EXPECT_EQ(factors,
            (std::vector<float>{1, 1, 1, 1e30f, 1e30f, 1e30f, 1e30f, 1e30f, 1e30f, 1e30f, 1e30f, 1e30f}));
  EXPECT_EQ(file_->header.integer("gemma4.attention.key_length"), 24);
  EXPECT_EQ(file_->header.integer("gemma4.attention.key_length_swa"), 12);
  EXPECT_EQ(file_->header.string("tokenizer.ggml.model"), "gemma4");
}

TEST_F(KindsOfGguf, KeysThatNobodyReadsAreWritten) {
  LikeLlamaCpp model("gemma4_text-shared");
  const char* const name = "model.layers.3.self_attn.k_proj.weight";
  model.tensors[name] = noise_tensor({48, 32}, 1);
  write(model);
  EXPECT_EQ(stored("blk.3.attn_k.weight"), floats_of(model.tensors.at(name)));
  EXPECT_EQ(file_->header.integers("gemma4.feed_forward_length"),
            (std::vector<std::int64_t>{40, 40, 80, 80}));
  EXPECT_TRUE(ModelSpec::read(open_checkpoint(system_io(), path().string())).carried.carries(name));
}

TEST_F(KindsOfGguf, BlocksThatShareAreSomeOfTheModels) {
  write(LikeLlamaCpp("gemma4_text-shared"));
  const std::string key = "gemma4.attention.shared_kv_layers";
  std::fstream file(path().string(), std::ios::in | std::ios::out | std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const std::size_t at = bytes.find(key);
  ASSERT_NE(at, std::string::npos);
  file.seekp(static_cast<std::streamoff>(at + key.size()));
  file.write("\5\0\0\0\xfb\xff\xff\xff", 8);  // I32: -5
  file.close();
  expect_refusal(ErrorKind::kBadInput, key + ": is -5 of 4 blocks",
                 [&] { open_checkpoint(system_io(), path().string()); });
}

TEST_F(KindsOfGguf, Gemma4IsWrittenWithoutItsTower) {
  const ScratchGolden model("gemma4");
  const Checkpoint before = model.open();
  write(model);
  const Checkpoint after = open_checkpoint(system_io(), path().string());
  EXPECT_EQ(ModelSpec::read(after).family, "gemma4_text");
  for (const StoredTensor& tensor : after.tensors())
    EXPECT_EQ(after.read_float32(tensor),
              before.read_float32(before.at("model.language_model" + tensor.name.substr(5))))
        << tensor.name;
}

TEST_F(KindsOfGguf, RefusesWhatLlamaCppDoesNotCompute) {
  const auto refused = [](const char* part, const char* name, auto change) {
    SCOPED_TRACE(part);
    LikeLlamaCpp model(name);
    change(model);
    expect_refusal(ErrorKind::kUnsupported, part,
                   [&] { check_gguf_family(ModelSpec::read(model.open()), "m"); });
  };
  refused("no place for this bias", "falcon-11b", [](auto&) {});
  refused("have chunks of 8192 positions", "llama4_text",
          [](auto& m) { m.config["attention_chunk_size"] = 16; });
  refused("takes the length of heads but in models of 128", "llama4_text",
          [](auto& m) { m.config["use_qk_norm"] = false; });
  refused("each 4th block does not turn", "llama4_text", [](auto& m) {
    m.config["no_rope_layers"] = Json::array({0, 1});
    m.config["layer_types"] = Json::array({"full_attention", "chunked_attention"});
    m.config["floor_scale"] = 8192, m.config["attn_scale"] = 0.1;
  });
  refused("looks as many tokens up as there are", "gemma4_text-shared", [](auto& m) {
    m.config["vocab_size_per_layer_input"] = 98;
    ScratchTensor& table = m.tensors.at("model.embed_tokens_per_layer.weight");
    table.bytes.resize(table.bytes.size() / 97 * 98);
    table.shape[0] = 98;
  });
  refused("looks at the last two that have some", "gemma4_text-shared", [](auto& m) {
    m.config["num_kv_shared_layers"] = 1;  // so that block 2 of a window is the last one
    for (const char* const name : {"k_proj", "v_proj", "k_norm"}) {
      const std::string own = std::string("model.layers.2.self_attn.") + name + ".weight";
      m.tensors[own] = m.tensors.at(std::string("model.layers.0.self_attn.") + name + ".weight");
    }
    for (const char* const name : {"gate_proj", "up_proj", "down_proj"}) {
      const std::string of = std::string(".mlp.") + name + ".weight";
      m.tensors["model.layers.2" + of] = m.tensors.at("model.layers.0" + of);
    }
  });
  refused("no place for this bias", "gemma4_text-biases", [](auto&) {});
}

}  // namespace
}  // namespace llmq
