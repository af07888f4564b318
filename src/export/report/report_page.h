// What report.html shows, read out of a report: the linears with the place that their names tell, and the
// sections that show them side by side, as documents for the template (report.html beside this file).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace llmq::html {

// Reading what may be absent or of another kind.
std::optional<double> number_of(const Json& object, std::string_view key);
const Json::Array& list_of(const Json& object, std::string_view key);

std::string amount(const std::optional<double>& value);  // "3.000e-04"; a dash where there is none

// One linear, with the place that its name tells: "model.layers.3.self_attn.q_proj" is q_proj of block 3.
struct Module {
  std::string name, role;
  std::int64_t block = 0;
  std::string method, scheme;
  std::int64_t bits = 16;
  std::optional<double> loss, rtn_loss, relative_error, weight_error;
  const Json* scales = nullptr;
};

struct Page {
  const Json& report;
  std::vector<Module> modules;
  std::vector<std::string> roles;  // in order of appearance, those left dense too
  std::vector<std::int64_t> blocks;
  std::vector<Module> dense;
  bool calibrated = false;  // losses were measured
};

Page read_page(const Json& report);

// Lists, empty where the report has nothing for them: {role, svg} of each chart; {role, cells: [{low, text}
// or null, one a block]} of each role.
Json losses(const Page& page);
// Relative errors of each role and block, for the macro heat_map(); null where none was measured.
Json error_map(const Page& page);
// Resident memory over the run beside its plan and its limit, for xy_chart(); null where it was not looked
// at.
Json memory_chart(const Json& report);
Json bits_by_layer(const Page& page);
Json scales(const Page& page);

}  // namespace llmq::html
