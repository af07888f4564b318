// Checkpoints of any size in the shape of a real model, for what depends on sizes and not on meaning: memory,
// disk traffic, time.
//
//   W[n, k] = s ( z[n, k] + sum_r a_r u_r[n] v_r[k] ),   s = 0.7 / sqrt(K),
//   a_r = 4 (N^-1/2 + K^-1/2) (r + 1)^-0.7
//
// z, u, v are normal (nearly: sums of four uniform values) and come from the seed, the tensor's name and the
// place alone. The sum gives a few singular values above the noise, falling like a power law, as trained
// linears have; gains are log-normal with one channel in 128 eight times as large, so that inputs have the
// outliers that AWQ is about. Biases are small. BF16, sharded, a tokenizer of byte-level BPE whose tokens are
// all reached by merges.
//
// Never more than a mebibyte of a tensor is in memory.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/io.h"

namespace llmq::testing {

struct SyntheticShape {
  std::string name, family;  // "llama", "mistral", "qwen2", "qwen3", "qwen3_moe"
  std::int64_t hidden = 0, intermediate = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0,
               vocabulary = 0;
  bool tied_head = false;
  std::int64_t experts = 0, experts_of_a_token = 0;  // qwen3_moe: `intermediate` is an expert's
};

// "qwen3-32b", "llama-3-8b", "qwen3-8b", "qwen2-1.5b", "llama-3.2-1b", "mistral-7b", "qwen3-30b-a3b" with
// their published sizes, "256-experts" with the experts of Qwen3.6-35B-A3B behind Qwen3's attention, and
// small ones for tests.
const std::vector<SyntheticShape>& synthetic_shapes();
// Throws std::runtime_error naming the known ones.
SyntheticShape synthetic_shape(const std::string& name);

// A model directory that Checkpoint::open() takes. `directory` must not exist.
void write_synthetic_checkpoint(Io& io, const Path& directory, const SyntheticShape& shape,
                                std::uint64_t seed, std::uint64_t shard_bytes = 5'000'000'000);

}  // namespace llmq::testing
