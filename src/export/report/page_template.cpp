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
  const std::string file = "a page of llmq";
  jinja::Meter meter(unlimited(), file);
  Json context = shown;
  context["style"] = std::string(kPageStyle);
  const jinja::Body parsed = jinja::parse_template(std::string(kPageMacros) + std::string(body), file);
  return jinja::evaluate(parsed, jinja::from_json(meter, context), std::tm{}, meter, html_text);
}

}  // namespace llmq
