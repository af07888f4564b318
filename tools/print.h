// What reaches the user: one JSON document, or short tables and sentences, on stdout; errors on stderr (in
// JSON mode: on stdout).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace llmq::tools {

void print_json(const Json& document);
void print_line(const std::string& line);
// Columns padded to their widest cell; the first is left-aligned, the others right-aligned. The first row is
// the heading, underlined.
void print_table(const std::vector<std::vector<std::string>>& rows);
std::string error_text(const Error& error, bool json);  // with the end of the line
void print_error(const Error& error, bool json);

std::string bytes_text(std::uint64_t bytes);  // "269.1 MB"
std::string seconds_text(double seconds);     // "48.2 s", "12 min 05 s"
std::string number_text(double value, int significant);

// The largest resident set this process ever had (VmHWM), in bytes.
std::uint64_t peak_resident_bytes();
void forget_peak_resident();  // "ever" begins now, where the system lets it

}  // namespace llmq::tools
