// The texts of the pages, put into the program when it is built: style.css, page_macros.html and report.html.
#pragma once
#include <string_view>

namespace llmq {

extern const std::string_view kPageStyle;       // how a page looks
extern const std::string_view kPageMacros;      // head, foot, name, card and heads, for every page
extern const std::string_view kReportTemplate;  // report.html, over the document of html_report.cpp

}  // namespace llmq
