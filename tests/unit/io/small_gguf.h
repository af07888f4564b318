// A model of one block, hidden size 8 (or what is asked), two heads, one key-value head, five tokens; every
// value of a tensor tells its place. Without `mlp` what stands there is to be added.
#pragma once
#include <string>
#include <vector>

#include "tests/unit/io/hostile_bytes.h"

namespace llmq::testing {

// Value of row r and column c of the tensor that comes n-th.
inline float placed(std::size_t n, std::size_t r, std::size_t c) {
  return static_cast<float>(n * 10'000 + r * 100 + c);
}

inline GgufBytes small_gguf(const std::string& arch, std::uint64_t head_dim = 4, bool mlp = true) {
  const std::uint64_t hidden = 2 * head_dim;
  GgufBytes file;
  file.text("general.architecture", arch).u32(arch + ".block_count", 1).u32(arch + ".context_length", 64);
  file.u32(arch + ".embedding_length", static_cast<std::uint32_t>(hidden))
      .u32(arch + ".feed_forward_length", 12);
  file.u32(arch + ".attention.head_count", 2).u32(arch + ".attention.head_count_kv", 1);
  file.f32(arch + ".attention.layer_norm_rms_epsilon", 0.5f);
  std::size_t n = 0;
  const auto add = [&](const std::string& name, std::uint64_t rows, std::uint64_t cols) {
    std::vector<float> values;
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < cols; ++c) values.push_back(placed(n, r, c));
    ++n;
    file.tensor(name, rows == 1 ? std::vector<std::uint64_t>{cols} : std::vector<std::uint64_t>{cols, rows},
                values);
  };
  add("token_embd.weight", 5, hidden);
  add("output_norm.weight", 1, hidden);
  add("blk.0.attn_norm.weight", 1, hidden);
  add("blk.0.attn_q.weight", hidden, hidden);
  add("blk.0.attn_k.weight", head_dim, hidden);
  add("blk.0.attn_v.weight", head_dim, hidden);
  add("blk.0.attn_output.weight", hidden, hidden);
  add("blk.0.ffn_norm.weight", 1, hidden);
  if (!mlp) return file;
  add("blk.0.ffn_gate.weight", 12, hidden);
  add("blk.0.ffn_up.weight", 12, hidden);
  add("blk.0.ffn_down.weight", hidden, 12);
  return file;
}

}  // namespace llmq::testing
