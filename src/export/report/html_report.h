// report.html: report.json for the eye. One file, no script, nothing fetched from anywhere; light and dark;
// readable on a phone.
//
// What it shows: sizes, bits, time and memory; fallbacks and warnings in words; perplexity where it was
// measured; loss of every linear beside that of plain rounding, by role and block, and its relative error as
// a map; memory over the run; bits by layer, and what
// mixed precision chose; how the scales are spread; every module with its figures; how it was made.
//
// Names come from the checkpoint and are hostile: each is escaped, stands in an element of its own writing
// direction, and the page forbids itself scripts.
#pragma once
#include <string>

#include "base/json.h"

namespace llmq {

// `report`: a document of schema llmq.report/1. What it lacks is left out.
std::string make_html_report(const Json& report);

}  // namespace llmq
