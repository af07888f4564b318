// A method sees numbers only: weight, statistics, scheme, backend -> codes, scales, zeros. It never sees a
// file, a name or a model.
#pragma once
#include <memory>
#include <span>

#include "calibration/input_stats.h"
#include "device/backend.h"
#include "ranks/ranks.h"
#include "tensor/quantized_matrix.h"

namespace llmq {

class GramLoss;

// What a method works out about an input alone: whoever keeps the input's statistics keeps it beside them,
// for the other linears that read the input.
class PreparedInput {
 public:
  virtual ~PreparedInput() = default;
};

struct RoundingProblem {
  std::span<const float> weight;  // [out, in]
  std::int64_t out_features = 0, in_features = 0;
  const InputStats* stats = nullptr;  // of this linear's input; null without calibration
  QuantScheme scheme;
  GramLoss* gram = nullptr;  // of `stats`, shared by the linears that read them; null: made where needed
  std::unique_ptr<PreparedInput>* prepared = nullptr;  // of `stats`, likewise; filled by the method
  // These may take rows beside the backend; they are always the same ones for one `prepared`.
  std::span<const std::shared_ptr<Backend>> further_devices = {};
  Ranks* ranks = nullptr;  // that have the same problem, and may take rows of it each; null: nobody
  float global_scale = 0;  // of a scheme of two levels: what this linear shares with those it is fused with
};

// The loss of `matrix` on the problem's input; Problem::stats must be there.
double rounding_loss(const RoundingProblem& problem, const QuantizedMatrix& matrix, Backend& backend,
                     Compute compute);

class Method {
 public:
  virtual ~Method() = default;
  virtual QuantizedMatrix quantize(const RoundingProblem& problem, Backend& backend) const = 0;
};

}  // namespace llmq
