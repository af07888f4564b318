#include "base/prometheus_text.h"

#include <fmt/core.h>

namespace llmq {

std::string prometheus_label(std::string_view name, std::string_view text) {
  std::string label = fmt::format("{}=\"", name);
  for (const char c : text) {
    if (c == '\\' || c == '"') label += '\\';
    if (c == '\n')
      label += "\\n";
    else
      label += c;
  }
  return label + '"';
}

std::string prometheus_head(std::string_view name, std::string_view type, std::string_view help) {
  return fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

std::string prometheus_sample(std::string_view name, std::string_view labels, std::string_view value) {
  return labels.empty() ? fmt::format("{} {}\n", name, value)
                        : fmt::format("{}{{{}}} {}\n", name, labels, value);
}

}  // namespace llmq
