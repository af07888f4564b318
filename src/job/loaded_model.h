// A model argument, opened: checkpoint, structure and tokenizer, checked against each other.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/io.h"
#include "io/checkpoint.h"
#include "model/model_spec.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace llmq {

// That was folded into a model's linears (job/run_adapter.h).
struct FoldedAdapter {
  std::string directory;  // as the user wrote it
  std::int64_t rank = 0;  // the largest
  std::size_t linears = 0;
  std::uint64_t opening_bytes = 0;  // that were read to check it
};

struct LoadedModel {
  std::string name;  // as the user wrote it
  Checkpoint checkpoint;
  ModelSpec spec;
  Tokenizer tokenizer;
  std::optional<FoldedAdapter> adapter = {};
  bool rotated_values = false;                   // job/changed_weights.h
  std::vector<std::string> changed_before = {};  // changes_of_linears(), where it is opened to be rounded
};

// Error(kBadInput) also when the tokenizer has more tokens than the embedding has rows.
LoadedModel open_model(Io& io, const std::string& name);

// Ids of a user's text; `source` (a file, --prompt) stands in the error where it is not UTF-8.
std::vector<std::int32_t> encode_text(const Tokenizer& tokenizer, const std::string& text,
                                      const std::string& source, bool special = true);

// The model's chat template; Error(kBadInput) where it has none.
ChatTemplate model_chat_template(Io& io, const Path& model);

}  // namespace llmq
