// The flags of suite matrix of `llmq bench`, and what they mean.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "evaluate/migration_study.h"
#include "tools/bench/load_options.h"

namespace llmq::tools {

struct MatrixBench {
  std::string quantized, text = "builtin:wikitext-2";
  std::int64_t max_windows = 4;
  std::vector<double> ttft_ms, tolerance_percent;  // empty: the usual ones
};

// Those of this suite alone.
std::vector<const CLI::Option*> add_matrix_flags(CLI::App& command, MatrixBench& options);
// Error(kUsage) for a load or a study that is none.
void check_matrix(const ServeBench& load, const MatrixBench& options);
DecisionTargets targets_of(const MatrixBench& options);

}  // namespace llmq::tools
