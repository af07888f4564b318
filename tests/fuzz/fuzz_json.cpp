// Any bytes as JSON: either an Error that places the fault, or a value that survives being written and read
// again.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  llmq::Json value;
  try {
    value = llmq::Json::parse(text, "input.json", {1u << 20, 64});
  } catch (const llmq::Error& error) {
    if (error.kind() != llmq::ErrorKind::kBadInput || error.detail().file.empty()) std::abort();
    return 0;
  }
  if (!(llmq::Json::parse(value.dump(), "dump") == value) ||
      !(llmq::Json::parse(value.dump(2), "dump") == value))
    std::abort();
  return 0;
}
