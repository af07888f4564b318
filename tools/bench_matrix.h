// llmq bench --suite matrix: five configurations of a move to a quantized model under the same loads, and
// what to deploy.
#pragma once
#include "evaluate/migration_study.h"
#include "tools/bench_serve.h"

namespace llmq::tools {

struct MatrixBench {
  std::string quantized, text = "builtin:wikitext-2";
  std::int64_t max_windows = 4;
  std::vector<double> ttft_ms, tolerance_percent;  // empty: the usual ones
};

// The flags of this suite alone.
std::vector<const CLI::Option*> add_matrix_flags(CLI::App& command, MatrixBench& options);
// `batches` ascend. 0; 3 when requests failed, after the figures of the others.
int bench_matrix(const ServeBench& load, const MatrixBench& options, const std::vector<std::int64_t>& batches,
                 const GlobalOptions& globals);

}  // namespace llmq::tools
