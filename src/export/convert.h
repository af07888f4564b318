// A checkpoint in another container: exact, or refused with the reason; rounded only where a type was asked
// for by name.
//
//   to safetensors   dense: a GGUF (BF16 unless told otherwise), a packed checkpoint (dequantized; F32 unless
//                    told otherwise, which holds every (code - zero) * scale exactly), or a dense one (as
//                    stored, or in the type asked for)
//   to gguf          one file; of a GGUF every tensor as it is stored; in a type asked for exact for F32 and
//                    for tensors that have it, else rounded as llama.cpp rounds; single tensors may have
//                    types of their own
//   to bitsandbytes  NF4 of the blocks' linears (export/formats/nf4.h), rounded as bitsandbytes rounds; all
//                    else as stored, or in the type asked for
//   to a packed one  from a packed one: the same codes, scales and zeros in the other layout
//
// With an adapter, which asks for a dense model made of a dense one, W becomes W + scale B A
// (model/adapters/lora_adapter.h) in FP32, rounded once to the type that is written; every other tensor stays
// as it is. Bands of a matrix pass through memory, never a whole one of safetensors.
//
// The output is made in "<output>.unfinished/" (export/output/unfinished_output.h) and gets its name when it,
// its report and its manifest are whole. With a job in its target a GGUF is journalled block by block, and a
// run of the same job goes on; directories start again, and only their reports say what the job was.
//
// Several ranks share a directory by its shards (OutputTarget::ranks): each reads and converts what lies in
// its own.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/io.h"
#include "base/json.h"
#include "export/gguf/asked_types.h"
#include "export/output/model_writer.h"
#include "io/checkpoint.h"

namespace llmq {

struct ConvertRequest {
  std::string source;                         // as the user named it
  OutputTarget target;                        // its `single_file` follows from `to`
  std::string to = "safetensors";             // "gguf", "bitsandbytes" or one of packed_formats(), or refused
  std::optional<std::string> dtype;           // "bf16", "f16", "f32"; to gguf also "q8_0", "q4_k_m", ...
  std::vector<GgufTypeRequest> tensor_types;  // to gguf: types of single tensors
  std::string adapter;                        // directory of one that is folded in; empty: none
  // Bytes of tensors in each file of a GGUF (split_gguf()), or of each shard; 0: one file, shards of 5 GB.
  std::uint64_t split_max_size = 0;
  bool double_quant = false;  // to bitsandbytes: the scales are rounded to 8 bits, too
  std::string version;        // of llmq, for report.json
  int threads = 0;            // 0: the cores this process may use; gguf and adapters only
  std::function<void(const std::string& tensor)> on_tensor;  // before each, may throw to stop
  ManifestText manifest;                                     // none is written without
  // What loaders read is whole, at `made`, a directory or a file, and has no name yet; false: it shall not
  // get one.
  std::function<bool(const Path& made)> on_whole;
};

struct ConvertReport {
  std::string source, destination, from, to;  // formats: "gguf", "dense" or a name of packed_formats()
  std::string dtype;                          // of dense tensors: "bf16", or "as stored"
  std::string adapter;                        // that was folded in; empty: none
  std::size_t folded = 0;                     // linears that it changed
  std::size_t tensors = 0;                    // of the source
  std::uint64_t bytes_in = 0, bytes_out = 0;
  std::string digest;
  Json to_json() const;  // schema llmq.convert/1, or with an adapter llmq.merge/1
};

// What a manifest says was asked, and a request of it; Error(kBadInput) naming `file` where it is of another
// form. {source, to, dtype}, and what else was asked
Json conversion_json(const ConvertRequest& request);
ConvertRequest conversion_request(const Json& asked, const std::string& file);

// Error(kUsage, kUnsupported) for what no checkpoint could be converted to.
void check_conversion(const ConvertRequest& request);
// "llmq.convert/1" or "llmq.merge/1".
const char* conversion_schema(const std::string& adapter);
ConvertReport convert(Io& io, const Checkpoint& checkpoint, const ConvertRequest& request);

}  // namespace llmq
