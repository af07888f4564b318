#include "export/report/page_template.h"

#include <cstdint>
#include <ctime>
#include <limits>

#include "export/report/html_charts.h"
#include "export/report/templates.h"
#include "jinja/evaluator.h"

namespace llmq {
namespace {

// The template is llmq's own and ends; how long it takes is a question of how large the model is.
constexpr jinja::Limits unlimited() {
  jinja::Limits limits;
  limits.steps = limits.bytes = std::numeric_limits<std::int64_t>::max();
  return limits;
}

}  // namespace

std::string render_page(std::string_view body, const Json& shown) {
  Json context = shown;
  context["style"] = std::string(kPageStyle);
  return render_template(std::string(kPageMacros) + std::string(kChartMacros) + std::string(body), context,
                         html_text);
}

std::string render_template(std::string_view text, const Json& shown,
                            std::string (*escape)(std::string_view)) {
  const std::string file = "a page of llmq";
  jinja::Meter meter(unlimited(), file);
  const jinja::Body parsed = jinja::parse_template(std::string(text), file);
  return jinja::evaluate(parsed, jinja::from_json(meter, shown), std::tm{}, meter, escape);
}

}  // namespace llmq
