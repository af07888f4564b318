// What reaches the user: one JSON document, or short tables and sentences, on stdout; errors on stderr (in
// JSON mode: on stdout).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/json.h"

namespace llmq::tools {

void print_json(const Json& document);
void print_line(const std::string& line);
// Columns padded to their widest cell; the first is left-aligned, the others right-aligned. The first row is
// the heading, underlined.
void print_table(const std::vector<std::vector<std::string>>& rows);
Json error_json(const Error& error);
// As the log has it, with the end of the line; JSON without the time, for what is made before it is known.
std::string logged_error_text(const Error& error);
void print_error(const Error& error, bool json);

Json ids_json(std::span<const std::int32_t> ids);  // of tokens

std::string number_text(double value, int significant);

}  // namespace llmq::tools
