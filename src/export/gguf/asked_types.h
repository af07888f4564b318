// Types that a user names for single tensors of a GGUF, beside what a mix gives (export/gguf/type_mix.h).
//
// Patterns name modules as the checkpoint does: linears of blocks, the embedding, the head; the last request
// that matches one wins. What no request names has the type that it has without any: llama-quantize does not
// count a tensor that --tensor-type names, so there the mix of others may move.
//
// A tensor that the file makes of several modules, as all experts of a layer are, has one type. Rows that
// blocks do not divide take the type that llama.cpp takes for them, and a warning says so.
#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "export/gguf/type_mix.h"
#include "export/provenance/statement_reader.h"
#include "io/checkpoint.h"
#include "model/model_spec.h"

namespace llmq {

struct GgufTypeRequest {
  std::string match;          // a name, or a "re:" pattern
  std::optional<DType> type;  // none: F32, F16 or BF16, as the checkpoint stores it; of codes BF16
};

// [{match, type}], and of such a list, `tensor_types` of what a manifest says was asked; Error(kBadInput) for
// a word that is no type.
Json tensor_types_json(const std::vector<GgufTypeRequest>& requests);
std::vector<GgufTypeRequest> tensor_types_of(const StatementReader& asked);

struct AskedGgufTypes {
  std::map<std::string, DType> types;  // by the name of the tensor in the file
  std::vector<std::string> warnings;   // patterns without effect, and rows that blocks do not divide
};

// `file_type`: null where tensors keep the types that they have. `file` and `key`: where the requests stand,
// in errors. Error(kUsage) where parts of one tensor were asked for in different types; Error(kUnsupported)
// for codes that this file type keeps.
AskedGgufTypes find_asked_types(std::span<const GgufTypeRequest> requests, const GgufFileType* file_type,
                                const Checkpoint& checkpoint, const ModelSpec& spec,
                                std::span<const GgufMixTensor> tensors, const std::string& file,
                                const std::string& key);

// `types`: of each of `tensors`.
void give_asked_types(const std::map<std::string, DType>& asked, std::span<const GgufMixTensor> tensors,
                      std::vector<DType>& types);

}  // namespace llmq
