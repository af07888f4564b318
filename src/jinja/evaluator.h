// A parsed template and what it may see -> text. One pass over the tree; cost and depth are the meter's.
#pragma once
#include <ctime>
#include <string>

#include "jinja/meter.h"
#include "jinja/syntax.h"

namespace llmq::jinja {

// `context` is a dict of the template's variables, `now` what strftime_now() prints.
std::string evaluate(const Body& body, const Value& context, const std::tm& now, Meter& meter);

}  // namespace llmq::jinja
