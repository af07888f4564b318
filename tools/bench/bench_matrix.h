// llmq bench --suite matrix: five configurations of a move to a quantized model under the same loads, and
// what to deploy.
#pragma once
#include "tools/bench/matrix_options.h"
#include "tools/command.h"

namespace llmq::tools {

// `batches` ascend. 0; 3 when requests failed, after the figures of the others.
int bench_matrix(const ServeBench& load, const MatrixBench& options, const std::vector<std::int64_t>& batches,
                 const GlobalOptions& globals);

}  // namespace llmq::tools
