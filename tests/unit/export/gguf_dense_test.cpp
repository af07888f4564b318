// Families of dense blocks as GGUF: what of their structure stands in keys, and comes back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "export/gguf/family_limits.h"
#include "tests/unit/export/gguf_fixture.h"
#include "tests/unit/io/hostile_bytes.h"
#include "tests/unit/model/scratch_golden.h"

namespace llmq {
namespace {

using testing::expect_refusal;

// A golden model as llama.cpp would have it.
class ScratchDense : public ScratchGolden {
 public:
  explicit ScratchDense(const std::string& name) : ScratchGolden(name) {
    if (name == "smollm3") {
      config["no_rope_layers"] = Json::array({1, 1});
      config["layer_types"] = Json::array({"full_attention", "full_attention"});
      config["use_sliding_window"] = false;
    } else if (name == "olmo3") {
      config["rope_parameters"]["sliding_attention"]["rope_theta"] = 5e5;
    } else if (name.starts_with("cohere")) {
      config["tie_word_embeddings"] = true;
      tensors.erase("lm_head.weight");
    }
    if (name == "cohere2") config["layer_types"] = Json::array({"sliding_attention", "sliding_attention"});
    if (name == "cohere-norms") repeat_first_block(64);
  }

  void repeat_first_block(int blocks) {
    config["num_hidden_layers"] = blocks;
    std::erase_if(tensors, [](const auto& tensor) {
      return tensor.first.starts_with("model.layers.") && !tensor.first.starts_with("model.layers.0.");
    });
    const auto first = tensors;
    for (const auto& [name, tensor] : first)
      for (int i = 1; i < blocks && name.starts_with("model.layers.0."); ++i)
        tensors[fmt::format("model.layers.{}.{}", i, name.substr(15))] = tensor;
  }
};

class DenseGguf : public ::testing::TestWithParam<const char*>, protected testing::WrittenGguf {};

TEST_P(DenseGguf, GivesBackStructureAndWeights) {
  const ScratchDense model(GetParam());
  const Checkpoint before = model.open();
  write(model);
  const Checkpoint after = open_checkpoint(system_io(), path().string());
  const ModelSpec spec = ModelSpec::read(before), read = ModelSpec::read(after);
  EXPECT_EQ(read.family, spec.family);
  EXPECT_EQ(read.tied_head, spec.tied_head);
  EXPECT_EQ(read.final_norm.eps, spec.final_norm.eps);
  EXPECT_EQ(read.final_norm.kind, spec.final_norm.kind);
  EXPECT_EQ(static_cast<float>(read.final_norm.scale), static_cast<float>(spec.final_norm.scale));
  ASSERT_EQ(read.ropes.size(), spec.ropes.size());
  for (std::size_t i = 0; i < spec.ropes.size(); ++i) {
    const RopeTable a = make_rope_table(read.ropes[i], read.max_position, 32),
                    b = make_rope_table(spec.ropes[i], spec.max_position, 32);
    EXPECT_EQ(a.cosines, b.cosines) << i;
    EXPECT_EQ(a.sines, b.sines) << i;
  }
  for (std::size_t i = 0; i < spec.blocks.size(); ++i) {
    const AttentionSpec &a = *read.blocks[i].attention(), &b = *spec.blocks[i].attention();
    EXPECT_EQ(a.rope.dims, b.rope.dims);
    EXPECT_EQ(a.rope.pairs, b.rope.pairs);
    EXPECT_EQ(a.rope.table, b.rope.table);
    EXPECT_EQ(a.query_table, b.query_table);
    EXPECT_EQ(a.window, b.window);
    EXPECT_EQ(a.query_norm.has_value(), b.query_norm.has_value());
    EXPECT_EQ(read.blocks[i].mlp()->activation, spec.blocks[i].mlp()->activation);
  }
  EXPECT_EQ(after.tensors().size(), before.tensors().size());
  for (const StoredTensor& tensor : before.tensors())
    EXPECT_EQ(after.read_float32(after.at(tensor.name)), before.read_float32(tensor)) << tensor.name;
}

INSTANTIATE_TEST_SUITE_P(Families, DenseGguf,
                         ::testing::Values("glm4", "smollm3", "olmo3", "ministral3", "starcoder2", "cohere",
                                           "cohere-norms", "cohere2", "ernie4_5"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class DenseKeys : public ::testing::Test, protected testing::WrittenGguf {};

TEST_F(DenseKeys, Olmo3SaysWhichBlocksHaveItsWindow) {
  ScratchDense model("olmo3");
  model.config["rope_parameters"]["full_attention"]["beta_fast"] = 32;  // what it is where nothing says it
  const GgufFile& file = write(model);
  EXPECT_EQ(file.header.string("general.architecture"), "olmo2");
  EXPECT_EQ(file.header.integer("olmo2.attention.sliding_window"), 7);
  EXPECT_EQ(file.header.integers("olmo2.attention.sliding_window_pattern"),
            (std::vector<std::int64_t>{1, 0}));
  EXPECT_EQ(file.header.number("olmo2.rope.freq_base_swa"), 5e5);
  EXPECT_EQ(file.header.number("olmo2.rope.scaling.yarn_beta_fast"), 32) << "of full attention";
}

TEST_F(DenseKeys, Ministral3SaysHowQueriesGrow) {
  const GgufFile& file = write(ScratchDense("ministral3"));
  EXPECT_EQ(file.header.string("general.architecture"), "mistral3");
  EXPECT_EQ(file.header.number("mistral3.rope.scaling.yarn_log_multiplier"), 1);
  EXPECT_FLOAT_EQ(static_cast<float>(file.header.number("mistral3.attention.temperature_scale")), 0.4f);
}

// Mistral Small 3's decoder is of that architecture in its wrapper alone.
TEST_F(DenseKeys, AMistralInATowerIsAMinistralWithoutYarn) {
  ScratchGolden model("mistral3");
  const GgufFile& file = write(model);
  EXPECT_EQ(file.header.string("general.architecture"), "mistral3");
  EXPECT_EQ(file.header.find("mistral3.attention.temperature_scale"), nullptr);
  const ModelSpec read = ModelSpec::read(open_checkpoint(system_io(), path().string()));
  EXPECT_EQ(read.family, "ministral3");
  ASSERT_EQ(read.ropes.size(), 1u);
  EXPECT_EQ(read.ropes[0].kind, RopeKind::kDefault);
}

TEST_F(DenseKeys, StarCoder2sWindowIsKept) {
  ScratchDense model("starcoder2");
  EXPECT_EQ(write(model).header.integer("starcoder2.attention.sliding_window"), 9);
  model.config["sliding_window"] = Json();
  EXPECT_EQ(write(model).header.find("starcoder2.attention.sliding_window"), nullptr);
  const ModelSpec read = ModelSpec::read(open_checkpoint(system_io(), path().string()));
  EXPECT_EQ(read.family, "starcoder2");
  EXPECT_EQ(read.blocks[0].attention()->window, 0);
}

TEST_F(DenseKeys, CommandRsLogitsAreMultiplied) {
  ScratchDense model("cohere");
  model.config["model_max_length"] = 4096;
  const GgufFile& file = write(model);
  EXPECT_EQ(file.header.string("general.architecture"), "command-r");
  EXPECT_FLOAT_EQ(static_cast<float>(file.header.number("command-r.logit_scale")), 0.3f);
  EXPECT_EQ(file.header.integer("command-r.context_length"), 4096) << "not max_position_embeddings";
  EXPECT_EQ(file.header.string("command-r.rope.scaling.type"), "none");
  EXPECT_EQ(find_gguf_tensor(file.header, "output.weight"), nullptr);
}

TEST_F(DenseKeys, HeadsOfCommandRPlusHaveNormsOfTheirOwn) {
  const ScratchDense model("cohere-norms");
  const Checkpoint source = model.open();
  const GgufFile& file = write(model, "q8_0");
  const GgufTensor& norms = *find_gguf_tensor(file.header, "blk.63.attn_k_norm.weight");
  EXPECT_EQ(norms.shape, (Shape{2, 8}));
  EXPECT_EQ(norms.dtype, DType::kF32);
  EXPECT_EQ(stored("blk.0.attn_q_norm.weight"),
            source.read_float32(source.at("model.layers.0.self_attn.q_norm.weight")));
}

// What follows of yarn's factor anyhow is said where the config says it, as the converter does.
TEST_F(DenseKeys, AnAttentionFactorOfYarnIsSaid) {
  ScratchDense model("olmo3");
  model.config["rope_parameters"]["full_attention"]["attention_factor"] = 0.1 * std::log(2.0) + 1;
  EXPECT_FLOAT_EQ(static_cast<float>(write(model).header.number("olmo2.rope.scaling.yarn_attn_factor")),
                  static_cast<float>(0.1 * std::log(2.0) + 1));
  const ModelSpec read = ModelSpec::read(open_checkpoint(system_io(), path().string()));
  EXPECT_EQ(make_rope_table(read.ropes[0], 64, 8).cosines,
            make_rope_table(ModelSpec::read(model.open()).ropes[0], 64, 8).cosines);
}

TEST(DenseGgufRefusal, OfBlocksThatTurnOtherwise) {
  const ScratchGolden model("smollm3");  // of whose two blocks one does not turn
  expect_refusal(ErrorKind::kUnsupported, "each 4th block does not turn",
                 [&] { check_gguf_family(ModelSpec::read(model.open()), "m"); });
}

TEST(DenseGgufRefusal, OfWhatLlamaCppComputesOtherwise) {
  const auto refused = [](const char* part, const char* name, auto change) {
    SCOPED_TRACE(part);
    ScratchDense model(name);
    change(model);
    expect_refusal(ErrorKind::kUnsupported, part,
                   [&] { check_gguf_family(ModelSpec::read(model.open()), "m"); });
  };
  refused("turns all blocks by one rope_theta, and here are 500000 and 10000", "olmo3",
          [](auto& m) { m.config["rope_parameters"]["sliding_attention"]["rope_theta"] = 1e4; });
  refused("takes mscale for 1, and it is 0.5", "ministral3",
          [](auto& m) { m.config["rope_parameters"]["mscale"] = 0.5; });
  refused("takes mscale for 1, and it is 0", "ministral3",
          [](auto& m) { m.config["rope_parameters"].erase("mscale"); });
  refused("counts in yarn's length how far queries grow", "ministral3", [](auto& m) {
    m.config["rope_parameters"] = Json::object({{"rope_type", "default"},
                                                {"rope_theta", 1e4},
                                                {"llama_4_scaling_beta", 0.1},
                                                {"original_max_position_embeddings", 16}});
  });
  refused("have no sliding windows", "ministral3", [](auto& m) { m.config["sliding_window"] = 5; });
  refused("norms of heads in models of 64 blocks or more, and in no others", "cohere-norms",
          [](auto& m) { m.repeat_first_block(63); });
  refused("norms of heads in models of 64 blocks or more, and in no others", "cohere",
          [](auto& m) { m.repeat_first_block(64); });
  refused("have no head of their own", "cohere2", [](auto& m) {
    m.config["tie_word_embeddings"] = false;
    m.tensors["lm_head.weight"] = m.tensors.at("model.embed_tokens.weight");
  });
  refused("has no bias, and llama.cpp's starcoder2 needs one", "starcoder2", [](auto& m) {
    m.config["use_bias"] = false;
    std::erase_if(m.tensors, [](const auto& tensor) {
      return tensor.first.ends_with("proj.bias") || tensor.first.ends_with("c_fc.bias");
    });
  });
}

}  // namespace
}  // namespace llmq
