// Figures in Prometheus' text format, as a scrape or the textfile collector reads them.
// Source: prometheus.io/docs/instrumenting/exposition_formats.
#pragma once
#include <string>
#include <string_view>

namespace llmq {

// `name="text"`, with what would end or break the text escaped.
std::string prometheus_label(std::string_view name, std::string_view text);

// The two lines before the samples of a metric; `type`: "gauge", "counter", "histogram".
std::string prometheus_head(std::string_view name, std::string_view type, std::string_view help);

// One line. `labels`: label pairs joined by commas, may be empty; `value`: a number as text.
std::string prometheus_sample(std::string_view name, std::string_view labels, std::string_view value);

}  // namespace llmq
