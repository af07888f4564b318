#include "tools/print.h"

#include <algorithm>
#include <cstdio>

#include "base/log.h"

namespace llmq::tools {
namespace {

// Display width: code points, which is right for the Latin text and symbols our tables hold.
std::size_t width(const std::string& cell) {
  return static_cast<std::size_t>(std::count_if(
      cell.begin(), cell.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string row_text(const std::vector<std::string>& row, const std::vector<std::size_t>& widths) {
  std::string line;
  for (std::size_t c = 0; c < row.size(); ++c) {
    const std::string space(widths[c] - width(row[c]), ' ');
    line += (c == 0 ? "" : "  ") + (c == 0 ? row[c] + space : space + row[c]);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

// What stands beside the message in a line of JSON.
Json error_fields(const Error& error) {
  Json fields = error_json(error);
  fields.erase("schema");
  fields.erase("message");
  return fields;
}

}  // namespace

void print_line(const std::string& line) { std::printf("%s\n", line.c_str()); }

void print_json(const Json& document) { print_line(document.dump(2)); }

void print_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width(row[c]));
  }
  for (std::size_t r = 0; r < rows.size(); ++r) {
    print_line(row_text(rows[r], widths));
    if (r > 0) continue;
    std::vector<std::string> rule;
    rule.reserve(widths.size());
    for (const std::size_t w : widths) rule.push_back(std::string(w, '-'));
    print_line(row_text(rule, widths));
  }
}

Json error_json(const Error& error) {
  const ErrorDetail& d = error.detail();
  return Json::object({{"schema", "llmq.error/1"},
                       {"kind", kind_name(error.kind())},
                       {"message", d.message},
                       {"file", d.file},
                       {"where", d.where},
                       {"hint", d.hint}});
}

std::string logged_error_text(const Error& error) {
  if (Log::get().format() == LogFormat::kText)
    return fmt::format("llmq: {}\n", without_controls(error.what()));
  return json_log_line({}, "error", error.detail().message, error_fields(error));
}

void print_error(const Error& error, bool json) {
  std::fflush(stdout);
  if (json) return print_json(error_json(error));
  if (Log::get().format() == LogFormat::kText)
    Log::get().error(error.what());
  else
    Log::get().error(error.detail().message, error_fields(error));
}

Json ids_json(std::span<const std::int32_t> ids) { return Json(Json::Array(ids.begin(), ids.end())); }

std::string number_text(double value, int significant) { return fmt::format("{:.{}g}", value, significant); }

}  // namespace llmq::tools
