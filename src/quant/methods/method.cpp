#include "quant/methods/method.h"

#include <optional>

#include "quant/methods/gram_loss.h"

namespace llmq {

double rounding_loss(const RoundingProblem& problem, const QuantizedMatrix& matrix, Backend& backend,
                     Compute compute) {
  std::optional<GramLoss> made;
  GramLoss& gram = gram_of(problem, made, backend, compute);
  return sum_in_order(row_losses(matrix, problem.weight, gram, backend.workers()));
}

}  // namespace llmq
