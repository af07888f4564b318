// Any bytes as a safetensors file, and as a shard index: either an Error that names the file, or entries that
// lie inside and apart.
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "io/safetensors.h"
#include "io/shard_index.h"

namespace {

void check_named(const llmq::Error& error) {
  const bool kind =
      error.kind() == llmq::ErrorKind::kBadInput || error.kind() == llmq::ErrorKind::kUnsupported;
  if (!kind || error.detail().file.empty() || error.detail().message.empty()) std::abort();
}

void read_file(std::span<const std::byte> bytes) {
  const llmq::SafetensorsHeader header = llmq::parse_safetensors(bytes, "input.safetensors");
  unsigned sum = 0;
  std::uint64_t end = 0;
  for (const llmq::SafetensorsEntry& entry : header.entries) {
    if (entry.offset < end) std::abort();
    end = entry.offset + entry.bytes;
    const auto tensor =
        bytes.subspan(entry.offset, entry.bytes);  // the sanitizer sees the ends if they lie outside
    if (!tensor.empty()) sum += static_cast<unsigned>(tensor.front()) + static_cast<unsigned>(tensor.back());
    const llmq::TensorView view(static_cast<const void*>(tensor.data()), entry.dtype, entry.shape);
    if (view.bytes() != entry.bytes) std::abort();
  }
  if (!header.entries.empty() && end != bytes.size()) std::abort();
  volatile unsigned keep = sum;
  (void)keep;
}

// Reads a copy that ends where its allocation ends. Whether it was read; if not, the error was a good one.
bool try_file(std::string_view text) {
  const std::vector<char> copy(text.begin(), text.end());
  try {
    read_file(std::as_bytes(std::span(copy)));
    return true;
  } catch (const llmq::Error& error) {
    check_named(error);
    return false;
  }
}

void try_file_and_neighbours(const std::string& file) {
  if (!try_file(file)) return;
  // A file that is whole is not whole without its last byte, nor with one more.
  if (try_file(std::string_view(file).substr(0, file.size() - 1)) || try_file(file + 'x')) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  try_file_and_neighbours(std::string(text));
  if (const std::size_t line = text.find('\n'); line != std::string_view::npos) {
    const std::uint64_t length = line;
    std::string file(8, '\0');
    std::memcpy(file.data(), &length, sizeof length);
    file.append(text.substr(0, line)).append(text.substr(line + 1));
    try_file_and_neighbours(file);
  }
  try {
    const llmq::ShardIndex index =
        llmq::read_shard_index(llmq::Json::parse(text, "index.json"), "index.json");
    for (const std::string& shard : index.shards)
      if (shard.find('/') != std::string::npos || shard.starts_with('.')) std::abort();
  } catch (const llmq::Error& error) {
    check_named(error);
  }
  return 0;
}
