// Gates in the forms that CI systems show: a JUnit file, where each gate is a test case, and a table of
// Markdown for the page of a run.
//
// Both are made from a command's own document (llmq.quantize/1, llmq.eval-ppl/1, llmq.eval-ppl-models/1), so
// that they can say nothing else than it. What is in it may be hostile (names, paths), and is escaped.
#pragma once
#include <string>

#include "base/error.h"
#include "base/json.h"

namespace llmq {

// https://github.com/testmoapp/junitxml. `strict`: that no module fell back is a gate, too.
std::string junit_text(const Json& document, bool strict);
// Of a command that came to no document: one test case, in error.
std::string junit_of_error(const std::string& command, const Error& error);

// A heading, the figures, and the gates where there are some.
std::string summary_text(const Json& document, bool strict);

}  // namespace llmq
