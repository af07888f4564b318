// Two checkpoints side by side: what their configs, tensors and linears differ in. Packed linears are
// compared by the weights they mean.
//
//   relative error of a tensor = ||A - B||_F / ||A||_F, in double from the exact FP32 values; 0 where all
//   values are equal
#pragma once
#include <string>
#include <vector>

#include "base/io.h"
#include "base/json.h"
#include "tensor/tensor_view.h"

namespace llmq {

struct ConfigDifference {
  std::string key;  // dotted path
  Json a, b;        // null where absent
};

struct TensorDifference {
  std::string name;                // a packed linear's is module + ".weight"
  std::string stored_a, stored_b;  // "BF16", or the scheme of a packed linear
  Shape shape_a, shape_b;
  bool equal = false;                            // all values equal
  double relative_error = 0, max_abs_error = 0;  // of equal shapes; infinity where A is zero and B is not
};

struct CheckpointDiff {
  std::string a, b;
  std::uint64_t bytes_a = 0, bytes_b = 0;  // of all tensors
  std::vector<ConfigDifference> config;
  std::vector<std::string> only_a, only_b;
  std::vector<TensorDifference> tensors;  // of both, by name
  bool equal() const;                     // nothing differs, though containers may
  Json to_json() const;                   // schema llmq.diff/1
};

CheckpointDiff diff(Io& io, const std::string& a, const std::string& b);

}  // namespace llmq
