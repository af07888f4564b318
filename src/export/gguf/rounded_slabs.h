// The tensors of a GGUF cut into slabs of rows, and one slab read and rounded, or copied: what one process
// does one after another, and what ranks are dealt in turn.
//
// A slab is of one matrix of one tensor and holds so many values at most, one row at least. Every row is
// rounded by itself, so no bit depends on how tensors are cut.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/threads.h"
#include "export/gguf/tensor_source.h"
#include "tensor/ggml_quantize.h"

namespace llmq {

struct GgufSlab {
  std::size_t tensor = 0;             // its number in the source
  std::int64_t first = 0, count = 0;  // rows, over all matrices of the tensor
  bool last = false;                  // of the tensor
};

// Of tensor number `tensor`, in the order of its rows; `values` in each at most.
std::vector<GgufSlab> slabs_of(const Shape& shape, std::size_t tensor, std::int64_t values);
// Of several ranks slab i of all that are to be rounded is that of this one.
inline int rank_of_slab(std::size_t i, int ranks) {
  return static_cast<int>(i % static_cast<std::size_t>(ranks));
}

// Whether a tensor's bytes go out as they are stored: always of MXFP4, whose codes no rounding would give
// again; where `copies`, of every type but the plain ones, which are as exact by their values.
bool is_copied(const GgufMixTensor& tensor, DType type, bool copies);
// Rows of such a tensor. Error(kBadInput) for values that are NaN or infinite.
std::vector<std::byte> copied_slab(GgufTensorSource& source, const GgufSlab& slab);

// Its rows in `type`. `importance`: of the tensor's inputs, of each matrix where it has several; empty: none.
// Error(kBadInput) for NaN and infinity.
std::vector<std::byte> rounded_slab(GgufTensorSource& source, const GgufSlab& slab, DType type,
                                    std::span<const float> importance, BlockSearch search, ThreadPool& pool);

// The most that a slab of so many values takes as it is stored.
std::uint64_t largest_slab_bytes(const Shape& shape, DType type, std::int64_t values);

}  // namespace llmq
