#include "export/report/report_page.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/json_text.h"

namespace llmq::html {

std::optional<double> number_of(const Json& object, std::string_view key) {
  const Json* found = object.find(key);
  if (found == nullptr || !found->is_number()) return std::nullopt;
  return found->as_double();
}
const Json::Array& list_of(const Json& object, std::string_view key) {
  static const Json::Array kNone;
  const Json* found = object.find(key);
  return found != nullptr && found->is_array() ? found->items() : kNone;
}

std::string amount(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? fmt::format("{:.3e}", *value) : "–";
}

namespace {

void place(Module& module) {
  std::size_t begin = 0;
  bool found = false;
  while (begin <= module.name.size()) {
    const std::size_t end = std::min(module.name.find('.', begin), module.name.size());
    const std::string part = module.name.substr(begin, end - begin);
    const bool digits =
        !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
    if (digits && !found) {
      module.block = std::stoll(part);
      found = true;
    }
    module.role = part;
    begin = end + 1;
  }
}

}  // namespace

Page read_page(const Json& report) {
  Page page{report, {}, {}, {}, {}, false};
  const auto note = [&page](Module& module) {
    place(module);
    if (std::find(page.roles.begin(), page.roles.end(), module.role) == page.roles.end())
      page.roles.push_back(module.role);
    page.blocks.push_back(module.block);
  };
  for (const Json& entry : list_of(report, "modules")) {
    Module m;
    m.name = text_at(entry, "module");
    m.method = text_at(entry, "method");
    m.scheme = text_at(entry, "scheme");
    m.bits = static_cast<std::int64_t>(number_of(entry, "bits").value_or(0));
    m.loss = number_of(entry, "loss");
    m.rtn_loss = number_of(entry, "rtn_loss");
    m.relative_error = number_of(entry, "relative_error");
    m.weight_error = number_of(entry, "weight_error");
    m.scales = entry.find("scale_histogram");
    note(m);
    page.calibrated = page.calibrated || m.rtn_loss.value_or(0) > 0;
    page.modules.push_back(std::move(m));
  }
  for (const Json& name : list_of(report, "left_dense")) {
    if (!name.is_string()) continue;
    Module m;
    m.name = name.as_string();
    note(m);
    page.dense.push_back(std::move(m));
  }
  std::sort(page.blocks.begin(), page.blocks.end());
  page.blocks.erase(std::unique(page.blocks.begin(), page.blocks.end()), page.blocks.end());
  return page;
}

}  // namespace llmq::html
