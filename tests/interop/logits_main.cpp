// llmq_logits MODEL IDS OUT [DEVICE]: float32 logits of one sequence, for comparison with another library's.
//
// IDS holds little-endian int32 token ids, OUT receives float32 [tokens, vocabulary]. The rope table is as
// long as the sequence, as Transformers' is when it sees the sequence at once (dynamic rope depends on it).
#include <fmt/core.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/io.h"
#include "model/open_checkpoint.h"
#include "runtime/engine.h"
#include "tests/support/logits_of.h"

namespace {

using namespace llmq;

std::vector<std::int32_t> read_ids(const char* path) {
  const std::string bytes = read_text(system_io(), path);
  std::vector<std::int32_t> ids(bytes.size() / sizeof(std::int32_t));
  if (!ids.empty()) std::memcpy(ids.data(), bytes.data(), ids.size() * sizeof(std::int32_t));
  return ids;
}

void write_logits(const char* model, const std::vector<std::int32_t>& ids, const char* out,
                  const char* device) {
  BackendRequest request;
  request.device = device;
  Engine::Options options;
  options.compute = Compute::kFloat32;
  options.max_context = static_cast<std::int64_t>(ids.size());
  options.kv_tokens =
      (options.max_context + options.block_size - 1) / options.block_size * options.block_size;
  Engine engine = Engine::load(open_checkpoint(system_io(), model), make_backend(request), options);
  const std::vector<float> values = testing::logits_of(engine, ids);
  std::ofstream(out, std::ios::binary)
      .write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(float)));
}

}  // namespace

int main(int count, char** words) {
  if (count < 4) return fmt::print(stderr, "usage: llmq_logits MODEL IDS OUT [DEVICE]\n"), 2;
  try {
    write_logits(words[1], read_ids(words[2]), words[3], count > 4 ? words[4] : "auto");
  } catch (const llmq::Error& error) {
    fmt::print(stderr, "llmq_logits: {}\n", error.what());
    return llmq::exit_code(error.kind());
  }
  return 0;
}
