// Pages of HTML from templates (jinja/evaluator.h): the markup and the words stand in a template, the figures
// in a JSON document, and nothing gets from the one into the other without being escaped.
//
// A page is one file: no script, nothing fetched from anywhere, light and dark, and XML as well as HTML.
#pragma once
#include <string>
#include <string_view>

#include "base/json.h"

namespace llmq {

// `body`: the text of a template; it may use the macros of page_macros.html and chart_macros.html, and
// `style`. `shown`: an object, the template's variables. Every text of it is escaped by html_text() where
// it is printed, but for what the template itself calls `safe`. A mistake in the template is an Error.
std::string render_page(std::string_view body, const Json& shown);

// The same of any text: no macros, and `escape` in place of html_text(). For XML and Markdown.
std::string render_template(std::string_view text, const Json& shown,
                            std::string (*escape)(std::string_view));

}  // namespace llmq
