// Numbers beside a GGUF's weights, which they are multiplied by.
#include <gtest/gtest.h>

#include <limits>

#include "model/open_checkpoint.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/io/small_gguf.h"

namespace llmq {
namespace {

using testing::expect_refusal;
using testing::GgufBytes;
using testing::small_gguf;
using testing::TemporaryDirectory;

class ScaledGguf : public ::testing::Test {
 protected:
  Checkpoint open(const GgufBytes& bytes) {
    disk_.write("m.gguf", bytes.bytes());
    return open_checkpoint(system_io(), (disk_ / "m.gguf").string());
  }
  std::vector<float> values(const GgufBytes& bytes, const std::string& tensor) {
    const Checkpoint checkpoint = open(bytes);
    return checkpoint.read_float32(checkpoint.at(tensor));
  }
  void refused(std::string_view part, ErrorKind kind, const std::string& name,
               const std::vector<std::uint64_t>& shape, const std::vector<float>& scale,
               const std::string& arch = "llama") {
    GgufBytes bytes = small_gguf(arch);
    bytes.tensor(name, shape, scale);
    expect_refusal(kind, part, [&] { open(bytes); });
  }
  TemporaryDirectory disk_;
};

// Rows of q lie in another order there, and that of the model is what is multiplied.
TEST_F(ScaledGguf, MultiplyWhatStandsBesideThem) {
  const std::string query = "model.layers.0.self_attn.q_proj.weight";
  const std::vector<float> plain = values(small_gguf("llama"), query);
  GgufBytes bytes = small_gguf("llama");
  bytes.tensor("blk.0.attn_q.scale", {1}, {0.75f}).tensor("blk.0.attn_q.input_scale", {1}, {3});
  const std::vector<float> scaled = values(bytes, query);
  ASSERT_EQ(scaled.size(), plain.size());
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(scaled[i], plain[i] * 0.75f) << i;
  EXPECT_EQ(open(bytes).tensors().size(), open(small_gguf("llama")).tensors().size());
  EXPECT_EQ(values(bytes, "model.layers.0.self_attn.o_proj.weight"),
            values(small_gguf("llama"), "model.layers.0.self_attn.o_proj.weight"));
}

TEST_F(ScaledGguf, OfAStackAreThoseOfEachMatrix) {
  GgufBytes bytes = small_gguf("llama", 4, false);
  bytes.u32("llama.expert_count", 3)
      .u32("llama.expert_used_count", 2)
      .u32("llama.expert_feed_forward_length", 4);
  bytes.tensor("blk.0.ffn_gate_inp.weight", {8, 3}, std::vector<float>(24));
  bytes.tensor("blk.0.ffn_up_exps.weight", {8, 4, 3}, std::vector<float>(96, 2));
  bytes.tensor("blk.0.ffn_up_exps.scale", {3}, {1, 0.5f, 4});
  const std::string experts = "model.layers.0.block_sparse_moe.experts.";
  EXPECT_EQ(values(bytes, experts + "0.w3.weight"), std::vector<float>(32, 2));
  EXPECT_EQ(values(bytes, experts + "1.w3.weight"), std::vector<float>(32, 1));
  EXPECT_EQ(values(bytes, experts + "2.w3.weight"), std::vector<float>(32, 8));
}

TEST_F(ScaledGguf, RefuseWhatIsNone) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const ErrorKind bad = ErrorKind::kBadInput;
  refused("holds 0 at 0", bad, "blk.0.attn_q.scale", {1}, {0});
  refused("holds -1 at 0", bad, "blk.0.attn_k.input_scale", {1}, {-1});
  refused("holds nan at 0", bad, "blk.0.attn_q.scale", {1}, {kNan});
  refused("a scale is F32 [1]", bad, "blk.0.attn_q.scale", {2}, {1, 1});
  refused("the head alone", ErrorKind::kUnsupported, "token_embd.scale", {1}, {2});
  refused("no tensor of a llama model", ErrorKind::kUnsupported, "blk.0.attn_z.scale", {1}, {2});
  refused("no tensor of a llama model", ErrorKind::kUnsupported, "blk.0.attn_q.scales", {1}, {2});
}

}  // namespace
}  // namespace llmq
