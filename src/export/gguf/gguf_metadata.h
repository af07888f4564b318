// What a GGUF says about a model: the keys that llama.cpp's converter writes, in its order.
//
//   general.*           what the model is called, from README.md (export/gguf/hub_card.h) or guessed from
//                       its directory's name as gguf-py does; sampling defaults; licence, base models, data
//                       sets, tags and languages of README.md
//   <architecture>.*    sizes and rope
//   general.file_type   what the tensors are
//   tokenizer.*         export/gguf/vocabulary.h
//
// A GGUF that is written again keeps its keys; only the file type changes, where another one is wanted, and
// what splitting left.
// Source: llama.cpp's conversion/base.py and llama.py, gguf-py/gguf/metadata.py.
#pragma once
#include <optional>
#include <span>
#include <string>

#include "export/gguf/type_mix.h"
#include "io/checkpoint.h"
#include "io/gguf_writer.h"
#include "model/model_spec.h"

namespace llmq {

// `name`: the model's directory or hub name as the user wrote it. `tensors`: all that the file has.
// `file_type`: none where a GGUF's own stays.
GgufMetadata gguf_model_metadata(Io& io, const Checkpoint& checkpoint, const ModelSpec& spec,
                                 const std::string& name, std::span<const GgufMixTensor> tensors,
                                 const std::optional<GgufFileType>& file_type);

// What a model id says: "org/SmolLM2-135M-Instruct" -> {"SmolLM2 135M Instruct", "org", "SmolLM2",
// "Instruct", "", "135M"}; empty where nothing is said.
struct ModelNameParts {
  std::string title, organization, basename, finetune, version, size_label;
};
ModelNameParts parse_model_name(const std::string& id, std::uint64_t parameters);

// "135M", "1.2B": two digits at least.
std::string size_label(std::uint64_t parameters);

}  // namespace llmq
