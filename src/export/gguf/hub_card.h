// What a model's README.md says of it in its front matter, as far as a GGUF has keys for that.
//
//   ---                                   general.license           "apache-2.0"
//   license: apache-2.0                   general.base_model.count  1
//   base_model: org/Base-7B       ->      general.base_model.0.name "Base 7B", .organization "Org",
//                                         .repo_url "https://huggingface.co/org/Base-7B"
//   tags: [chat]                          general.tags              ["chat", "text-generation"]
//   pipeline_tag: text-generation
//   ---
//
// Source: gguf-py's Metadata.apply_metadata_heuristic. It differs where that stops: a number or a date is
// taken as it is written, and front matter that llmq's YAML reader refuses is left out with a warning,
// because a card is no part of the model.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/io.h"

namespace llmq {

struct ModelCardFields {
  using Entry =
      std::vector<std::pair<std::string, std::string>>;  // "name", "repo_url", ... in the order of the keys
  std::map<std::string, std::string> texts;              // by what follows "general."
  std::optional<std::vector<Entry>> base_models, datasets;
  std::vector<std::string> tags, languages;

  std::string text(const std::string& key) const;  // empty where nothing is said
};

// Of README.md in `directory`; empty where there is none. `parameters`: elements of all tensors
// (export/gguf/gguf_metadata.h).
ModelCardFields read_model_card(Io& io, const Path& directory, std::uint64_t parameters);

}  // namespace llmq
