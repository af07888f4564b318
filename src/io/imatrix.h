// Importance matrices of llama.cpp: for each weight, the sum of squares of each of its inputs over the
// calibration tokens.
//
//   GGUF         general.type "imatrix"; imatrix.datasets, .chunk_count, .chunk_size; tensors
//                <weight>.in_sum2 F32 [matrices, inputs] and <weight>.counts F32 [matrices, 1]: tokens that
//                each matrix saw
//   .dat         the older form: i32 n; n times {i32 bytes, name, i32 calls, i32 values, f32[values]}; i32
//                chunks; {i32 bytes, dataset}. A value is the mean square times `calls`.
//
// Weights have GGUF's names ("blk.0.attn_q.weight"). parse_imatrix() sees memory only.
// Source: llama.cpp's tools/imatrix/imatrix.cpp, common/imatrix-loader.cpp; docs/reference/formats.md.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/io.h"

namespace llmq {

struct ImatrixEntry {
  std::vector<float> sums;    // matrices x inputs
  std::vector<float> counts;  // of each matrix
};

struct Imatrix {
  std::map<std::string, ImatrixEntry, std::less<>> entries;  // by weight
  std::vector<std::string> datasets;
  std::uint32_t chunk_count = 0,
                chunk_size = 0;  // chunks of so many tokens; size 0 where the file does not say

  // Mean square of each input of a matrix of its own; empty where nothing is known of the weight. A matrix
  // that saw no token has 1 for each.
  std::vector<float> importance(std::string_view weight) const;
};

// Either form. Errors: kBadInput.
Imatrix parse_imatrix(std::span<const std::byte> bytes, const std::string& file);
Imatrix load_imatrix(Io& io, const Path& path);

// The older form where the name ends in ".dat". Whole or not at all; an existing file is replaced.
void save_imatrix(Io& io, const Path& path, const Imatrix& imatrix);

}  // namespace llmq
