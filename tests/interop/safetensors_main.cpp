// llmq_safetensors CASES: what the reader makes of many files at once, for comparison with the reference's.
//
// CASES holds them back to back, each behind its length in 8 little-endian bytes. One line of JSON for each:
// {"tensors": [[name, dtype, [extents], begin, end], ...], "metadata": {...}}, where begin and end count from
// the file's first byte, or {"error": "..."}.
#include <fmt/core.h>

#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "base/io.h"
#include "base/json.h"
#include "io/safetensors.h"

namespace {

using namespace llmq;

Json read_case(std::span<const std::byte> file) {
  const SafetensorsHeader header = parse_safetensors(file, "case.safetensors");
  Json tensors = Json::array(), metadata = Json::object();
  for (const SafetensorsEntry& entry : header.entries) {
    Json shape = Json::array();
    for (int axis = 0; axis < entry.shape.rank(); ++axis) shape.push_back(entry.shape[axis]);
    tensors.push_back(Json::array({entry.name, dtype_row(entry.dtype).safetensors_name, std::move(shape),
                                   Json(entry.offset), Json(entry.offset + entry.bytes)}));
  }
  for (const auto& [key, value] : header.metadata) metadata[key] = value;
  return Json::object({{"tensors", std::move(tensors)}, {"metadata", std::move(metadata)}});
}

void print_cases(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  for (std::size_t at = 0; at < bytes.size();) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data() + at, sizeof length);
    at += sizeof length;
    Json said;
    try {
      said = read_case(bytes.subspan(at, static_cast<std::size_t>(length)));
    } catch (const Error& error) {
      said = Json::object({{"error", error.what()}});
    }
    fmt::print("{}\n", said.dump());
    at += static_cast<std::size_t>(length);
  }
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) return fmt::print(stderr, "usage: llmq_safetensors CASES\n"), 2;
  print_cases(llmq::read_text(llmq::system_io(), words[1]));
  return 0;
}
