// A parsed template and what it may see -> text. One pass over the tree; cost and depth are the meter's.
//
// With an `escape` the text is markup, as under jinja2's autoescape: {{ }} escapes whatever it prints. What
// went through `safe`, what a macro printed and what {% set %} ... {% endset %} gathered are markup already
// and are not escaped again. A text that an operator or a filter computes from markup is a plain text, which
// is escaped once more: jinja2 would keep some of those, and no way round leaves a text unescaped.
#pragma once
#include <ctime>
#include <string>
#include <string_view>

#include "jinja/meter.h"
#include "jinja/syntax.h"

namespace llmq::jinja {

using Escape = std::string (*)(std::string_view text);

// `context` is a dict of the template's variables, `now` what strftime_now() prints. Without an `escape`
// every text is printed as it is.
std::string evaluate(const Body& body, const Value& context, const std::tm& now, Meter& meter,
                     Escape escape = nullptr);

}  // namespace llmq::jinja
