// The figures of a page that show a whole run: how large the error of each linear is, and how much memory was
// in use when.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/amount_text.h"
#include "base/utf8_sequence.h"
#include "export/report/chart.h"
#include "export/report/report_page.h"

namespace llmq::html {
namespace {

constexpr int kShades = 8;        // q0 .. q7 of style.css
constexpr int kHeatCell = 14;     // with the gap to the next
constexpr int kHeatLetters = 20;  // of a role's name that is shown

// The first letters of a name, which is hostile: no longer than the drawing has room for.
std::string shortened(const std::string& name) {
  std::size_t at = 0;
  for (int letters = 0; at < name.size(); ++letters) {
    if (letters == kHeatLetters) return name.substr(0, at) + "…";
    at += static_cast<std::size_t>(std::max(utf8_length(name, at), 1));
  }
  return name;
}

struct ErrorScale {
  double least = 0, most = 0;
  double bound(int shade) const {  // the smallest error of a shade
    return least * std::pow(most / least, static_cast<double>(shade) / kShades);
  }
  int shade(double error) const {
    if (!(most > least)) return kShades / 2;
    return std::clamp(static_cast<int>(kShades * std::log(error / least) / std::log(most / least)), 0,
                      kShades - 1);
  }
};

using ErrorMap = std::map<std::pair<std::string, std::int64_t>, double>;  // by role and block: the largest

ErrorMap errors_of(const Page& page) {
  ErrorMap errors;
  for (const Module& m : page.modules)
    if (m.relative_error && std::isfinite(*m.relative_error) && *m.relative_error > 0) {
      double& worst = errors[{m.role, m.block}];
      worst = std::max(worst, *m.relative_error);
    }
  return errors;
}

Json error_rows(const Page& page, const ErrorMap& errors, const ErrorScale& scale, int left, int& height) {
  Json rows = Json::array();
  for (const std::string& role : page.roles) {
    Json cells = Json::array();
    for (std::size_t i = 0; i < page.blocks.size(); ++i) {
      const auto found = errors.find({role, page.blocks[i]});
      if (found == errors.end()) continue;
      cells.push_back(Json::object(
          {{"x", left + static_cast<int>(i) * kHeatCell},
           {"shade", scale.shade(found->second)},
           {"words", fmt::format("{}, block {}: {:.3e}", role, page.blocks[i], found->second)}}));
    }
    if (cells.items().empty()) continue;
    rows.push_back(Json::object(
        {{"name", shortened(role)}, {"top", height}, {"middle", height + kHeatCell / 2}, {"cells", cells}}));
    height += kHeatCell;
  }
  return rows;
}

// Numbers of blocks below the map, as many as have room.
Json block_ticks(const Page& page, int left) {
  Json ticks = Json::array();
  const std::size_t step = page.blocks.size() > 16 ? 4 : page.blocks.size() > 6 ? 2 : 1;
  for (std::size_t i = 0; i < page.blocks.size(); i += step)
    ticks.push_back(Json::object({{"at", left + static_cast<int>(i) * kHeatCell + kHeatCell / 2 - 1},
                                  {"text", std::to_string(page.blocks[i])}}));
  return ticks;
}

// A sample of MemoryTrace, where it is one.
struct MemorySample {
  double seconds, most;
};
std::vector<MemorySample> memory_samples(const Json& memory) {
  std::vector<MemorySample> samples;
  for (const Json& one : list_of(memory, "samples"))
    if (const auto seconds = number_of(one, "seconds"), most = number_of(one, "most_bytes");
        seconds && most && *seconds >= 0 && *most >= 0)
      samples.push_back({*seconds, *most});
  return samples;
}

}  // namespace

Json error_map(const Page& page) {
  const ErrorMap errors = errors_of(page);
  if (errors.empty()) return {};
  const auto [least, most] = std::minmax_element(
      errors.begin(), errors.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const ErrorScale scale{least->second, most->second};
  std::size_t letters = 0;
  for (const std::string& role : page.roles)
    letters = std::max(letters, std::min<std::size_t>(role.size(), kHeatLetters + 1));
  const int left = 14 + static_cast<int>(6.2 * static_cast<double>(letters));
  int height = 4;
  Json rows = error_rows(page, errors, scale, left, height);
  Json key = Json::array();
  if (scale.most > scale.least)
    for (int shade = 0; shade < kShades; ++shade)
      key.push_back(
          Json::object({{"shade", shade}, {"text", fmt::format("from {:.1e}", scale.bound(shade))}}));
  const auto place = [](const auto& of) {
    return fmt::format("{} of block {}", of.first.first, of.first.second);
  };
  return Json::object(
      {{"id", "errors"},
       {"title", "Relative error of each linear"},
       {"words", fmt::format("The largest is {:.3e}, in {}; the smallest {:.3e}, in {}. Every linear "
                             "with its figures is in the table below.",
                             most->second, place(*most), least->second, place(*least))},
       {"width", left + static_cast<int>(page.blocks.size()) * kHeatCell + 12},
       {"height", height + 20},
       {"left", left},
       {"cell", kHeatCell - 2},
       {"tick_line", height + 12},
       {"rows", std::move(rows)},
       {"ticks", block_ticks(page, left)},
       {"key", key}});
}

Json memory_chart(const Json& report) {
  const Json* const memory = report.find("memory");
  if (memory == nullptr) return {};
  const std::vector<MemorySample> samples = memory_samples(*memory);
  if (samples.size() < 2) return {};
  const std::optional<double> planned = number_of(*memory, "planned_peak_bytes"),
                              limit = number_of(*memory, "limit_bytes");
  ChartLine measured{"measured", "measured", {}};
  std::vector<double> seconds, bytes;
  double start = 0;
  for (const MemorySample& sample : samples) {  // the most of a part stands over the whole part
    measured.points.emplace_back(start, sample.most);
    measured.points.emplace_back(sample.seconds, sample.most);
    start = sample.seconds;
    seconds.push_back(sample.seconds);
    bytes.push_back(sample.most);
  }
  for (const auto& one : {planned, limit})
    if (one) bytes.push_back(*one);
  Chart chart;
  chart.id = "memory";
  chart.title = "Resident memory over the run";
  chart.x = linear_axis("time", seconds);
  chart.x.text = [](double at) { return at == 0 ? std::string("0") : seconds_text(at); };
  chart.y = linear_axis("resident memory", bytes);
  chart.y.text = [](double at) { return at == 0 ? std::string("0") : figure_bytes_text(at); };
  const double peak = std::max_element(samples.begin(), samples.end(), [](const auto& a, const auto& b) {
                        return a.most < b.most;
                      })->most;
  chart.words =
      fmt::format("At most {} over {}", figure_bytes_text(peak), seconds_text(samples.back().seconds));
  chart.lines.push_back(std::move(measured));
  const auto level = [&](const char* kind, const std::string& name, double at) {
    chart.words += fmt::format("; {} {}", name, figure_bytes_text(at));
    chart.lines.push_back(
        {kind, fmt::format("{}: {}", name, figure_bytes_text(at)), {{0, at}, {chart.x.last, at}}});
  };
  if (planned) level("planned", "planned peak", *planned);
  if (limit) level("limit", "limit", *limit);
  return chart_json(chart);
}

}  // namespace llmq::html
