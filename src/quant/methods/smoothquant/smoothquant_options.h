// What a recipe may say of SmoothQuant: its keys smoothquant.*.
#pragma once
#include <optional>

namespace llmq {

struct SmoothQuantOptions {
  std::optional<double> alpha;  // none: searched
  bool operator==(const SmoothQuantOptions&) const = default;
};

}  // namespace llmq
