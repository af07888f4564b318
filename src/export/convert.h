// A checkpoint in another container: exact, or refused with the reason; rounded only where a type was asked
// for by name.
//
//   to safetensors   dense: a GGUF (BF16 unless told otherwise), a packed checkpoint (dequantized; F32 unless
//   told otherwise, which holds every
//                    (code - zero) * scale exactly), or a dense one (as stored, or in the type asked for)
//   to gguf          one file; exact for F32 and for the type the tensors have, else rounded as llama.cpp rounds
//   to a packed one  from a packed one: the same codes, scales and zeros in the other layout
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "base/io.h"
#include "base/json.h"
#include "tensor/dtype.h"

namespace llmq {

struct ConvertRequest {
  std::string source;  // as the user named it
  Path destination;
  std::string to = "safetensors";  // "safetensors", "gguf" or a name of packed_formats(); others are refused
  std::optional<std::string> dtype;  // "bf16", "f16", "f32"; to gguf also "q8_0", "q4_k_m", ...
  bool overwrite = false;
  std::string version;  // of llmq, for report.json
  std::uint64_t shard_bytes = 5'000'000'000;
  int threads = 0;                                           // 0: the cores this process may use; gguf only
  std::function<void(const std::string& tensor)> on_tensor;  // gguf only: before each, may throw to stop
};

struct ConvertReport {
  std::string source, destination, from, to;  // formats: "gguf", "dense" or a name of packed_formats()
  std::string dtype;                          // of dense tensors: "bf16", or "as stored"
  std::size_t tensors = 0;                    // of the source
  std::uint64_t bytes_in = 0, bytes_out = 0;
  std::string digest;
  Json to_json() const;  // schema llmq.convert/1
};

ConvertReport convert(Io& io, const ConvertRequest& request);

}  // namespace llmq
