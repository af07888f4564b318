// An adapter as a backend holds it, and what it adds to the rows of a batch that asked for it.
//
//   y[t] += B' (A x[t]),   B' = scale B
//
// FP32 whatever the model computes in: x is widened, and nothing is rounded to BF16. The rows of one adapter
// are gathered, go through two products of the backend and are added one by one, so that a row's bits depend
// neither on its batch mates nor on their adapters. Rows without an adapter are not touched, and a batch
// without any costs nothing.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "device/backend.h"
#include "model/adapters/lora_adapter.h"

namespace llmq {

struct PreparedAdapter {
  struct Linear {
    std::unique_ptr<PreparedWeight> down, up;  // A and B'
  };
  // By member of those that the model is divided over, by block, by linear, by part of it: A whole, and the
  // rows of B' of the member's outputs. No parts: the adapter leaves the linear as it is.
  using Block = std::vector<std::vector<Linear>>;
  std::vector<std::vector<Block>> members;
  std::size_t bytes = 0;
  std::uint64_t number = 0;  // no other adapter of the engine that holds it has, or had, this one
};
// `spec`: of the whole model.
PreparedAdapter prepare_adapter(std::span<Backend* const> members, const LoraAdapter& adapter,
                                const ModelSpec& spec);

// Rows [first, first + count) of a batch have this adapter.
struct AdapterRun {
  std::int64_t first = 0, count = 0;
  const PreparedAdapter* adapter = nullptr;
};

// The adapters of the rows from `first` on, in one block.
struct RowAdapters {
  std::span<const AdapterRun> runs;  // rising, none overlaps another
  std::size_t block = 0;
  std::int64_t first = 0;
  std::size_t member = 0;
  RowAdapters from(std::int64_t row) const { return {runs, block, first + row, member}; }
};

// The result of a part of a linear, F32 [T, its rows].
struct PartOutput {
  Part part;
  TensorView y;
};

// For linears that share the input x [T, in], of the compute dtype.
void add_adapters(Backend& backend, const RowAdapters& adapters, const TensorView& x,
                  std::span<const PartOutput> outputs);

}  // namespace llmq
