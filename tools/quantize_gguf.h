// The part of llmq quantize that writes a GGUF: recipe -> plan -> importance -> one file, its report beside it; then the recipe's own evaluation.
#pragma once
#include "quant/recipe.h"
#include "tools/command.h"

namespace llmq::tools {

struct GgufQuantizeFlags {
  bool dry_run = false, overwrite = false;
  std::string metrics_out;
};

// Exit code. The report lies beside the file as NAME.gguf.report.json.
int quantize_to_gguf(const Recipe& recipe, const GgufQuantizeFlags& flags, const Session& session);

}  // namespace llmq::tools
