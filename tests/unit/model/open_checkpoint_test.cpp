// Opening a GGUF as a model: rows and biases in Hugging Face's order.
#include "model/open_checkpoint.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"
#include "tests/unit/io/small_gguf.h"

namespace llmq {
namespace {

using testing::TemporaryDirectory;

TEST(OpenCheckpoint, OpensGgufWithRowsInHuggingFaceOrder) {
  TemporaryDirectory directory;
  const Path path = directory.write("m.gguf", testing::small_gguf("llama").bytes());
  const Checkpoint checkpoint = open_checkpoint(system_io(), path.string());
  EXPECT_TRUE(checkpoint.is_gguf());
  EXPECT_EQ(checkpoint.tensors().size(), 11u);
  EXPECT_TRUE(checkpoint.companion_files().empty());
  // Heads of 4: Hugging Face's rows 0 1 2 3 are rows 0 2 1 3 of the file.
  const auto q = checkpoint.read_float32(checkpoint.at("model.layers.0.self_attn.q_proj.weight"));
  const std::size_t order[8] = {0, 2, 1, 3, 4, 6, 5, 7};
  for (std::size_t r = 0; r < 8; ++r)
    for (std::size_t c = 0; c < 8; ++c) EXPECT_EQ(q[r * 8 + c], testing::placed(3, order[r], c));
  const auto v = checkpoint.read_float32(checkpoint.at("model.layers.0.self_attn.v_proj.weight"));
  EXPECT_EQ(v[8], testing::placed(5, 1, 0));
}

TEST(OpenCheckpoint, PermutesBiasesLikeWeights) {
  TemporaryDirectory directory;
  testing::GgufBytes bytes = testing::small_gguf("llama");
  const std::vector<float> bias{0, 1, 2, 3, 4, 5, 6, 7};
  bytes.tensor("blk.0.attn_q.bias", {8}, bias).tensor("blk.0.attn_k.bias", {4}, {0, 1, 2, 3});
  bytes.tensor("blk.0.attn_v.bias", {4}, {0, 1, 2, 3}).tensor("blk.0.attn_output.bias", {8}, bias);
  const Path path = directory.write("m.gguf", bytes.bytes());
  const Checkpoint checkpoint = open_checkpoint(system_io(), path.string());
  EXPECT_TRUE(checkpoint.config().at("attention_bias").as_bool());
  EXPECT_EQ(checkpoint.read_float32(checkpoint.at("model.layers.0.self_attn.q_proj.bias")),
            (std::vector<float>{0, 2, 1, 3, 4, 6, 5, 7}));
  EXPECT_EQ(checkpoint.read_float32(checkpoint.at("model.layers.0.self_attn.o_proj.bias")), bias);
}

}  // namespace
}  // namespace llmq
