// The texts of the pages, put into the program when it is built: style.css, the macros and the
// templates beside this file.
#pragma once
#include <string_view>

namespace llmq {

extern const std::string_view kPageStyle;           // how a page looks
extern const std::string_view kPageMacros;          // head, foot, name, card and heads, for every page
extern const std::string_view kChartMacros;         // xy_chart and heat_map
extern const std::string_view kReportTemplate;      // report.html, over the document of html_report.cpp
extern const std::string_view kComparisonTemplate;  // comparison.html, over that of comparison_page.cpp

}  // namespace llmq
