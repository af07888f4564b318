#include "export/gguf/gguf_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "export/gguf/family_limits.h"
#include "export/gguf/gguf_rope.h"
#include "export/gguf/gguf_sizes.h"
#include "export/gguf/hub_card.h"
#include "export/gguf/vocabulary.h"
#include "io/gguf.h"

namespace llmq {
namespace {

constexpr std::uint32_t kQuantizationVersion = 2;  // GGML_QNT_VERSION
constexpr const char* kVersionKey = "general.quantization_version";

std::string first_of(const std::string& a, const std::string& b) { return a.empty() ? b : a; }

// What config.json's _name_or_path says comes before what the directory is called.
ModelNameParts name_parts(const Checkpoint& checkpoint, const std::string& name, std::uint64_t parameters) {
  ModelNameParts parts;
  const Json* given = checkpoint.config().find("_name_or_path");
  if (given != nullptr && given->is_string()) {
    const std::string& id = given->as_string();
    const std::size_t slash = id.find('/');
    if (slash == std::string::npos || id.find('/', slash + 1) == std::string::npos)
      parts = parse_model_name(id, parameters);
  }
  const ModelNameParts own = parse_model_name(name, parameters);
  return {first_of(parts.title, own.title),       first_of(parts.organization, own.organization),
          first_of(parts.basename, own.basename), first_of(parts.finetune, own.finetune),
          first_of(parts.version, own.version),   first_of(parts.size_label, own.size_label)};
}

// Sampling parameters that generation_config.json recommends.
void add_sampling(Io& io, const Checkpoint& checkpoint, GgufMetadata& metadata) {
  const Path path = checkpoint.path() / "generation_config.json";
  if (!io.exists(path)) return;
  const Json config = Json::parse(read_text(io, path), path.string());
  const std::string prefix = "general.sampling.";
  const auto find = [&](const char* key) -> const Json* {
    const Json* value = config.find(key);
    return value != nullptr && value->is_number() ? value : nullptr;
  };
  const auto add_integer = [&](const char* key) {
    if (const Json* value = find(key); value != nullptr && value->is_integer())
      metadata.set_i32(prefix + key, static_cast<std::int32_t>(value->as_integer()));
  };
  const auto add = [&](const char* key, const Json* value) {
    if (value != nullptr) metadata.set_f32(prefix + key, static_cast<float>(value->as_double()));
  };
  if (const Json* steps = config.find("sequence"); steps != nullptr && steps->is_string())
    metadata.set_string(prefix + "sequence", steps->as_string());
  add_integer("top_k");
  add("top_p", find("top_p"));
  add("min_p", find("min_p"));
  add("xtc_probability", find("xtc_probability"));
  add("xtc_threshold", find("xtc_threshold"));
  add("temp", find("temperature"));
  add_integer("penalty_last_n");
  add("penalty_repeat",
      find("penalty_repeat") != nullptr ? find("penalty_repeat") : find("repetition_penalty"));
  add_integer("mirostat");
  add("mirostat_tau", find("mirostat_tau"));
  add("mirostat_eta", find("mirostat_eta"));
}

void add_sources(const std::string& what, const std::optional<std::vector<ModelCardFields::Entry>>& sources,
                 GgufMetadata& metadata) {
  if (!sources) return;
  const std::string prefix = "general." + what + ".";
  metadata.set_u32(prefix + "count", static_cast<std::uint32_t>(sources->size()));
  for (std::size_t i = 0; i < sources->size(); ++i)
    for (const auto& [key, value] : (*sources)[i])
      metadata.set_string(fmt::format("{}{}.{}", prefix, i, key), value);
}

// "135M"; with experts "8x7B", of which the second is what a model with one of them would have.
std::string label_of(std::span<const GgufMixTensor> tensors) {
  std::uint64_t parameters = 0;
  std::int64_t experts = 0, stacks = 0;
  for (const GgufMixTensor& tensor : tensors) {
    const bool stack = tensor.name.find("_exps.") != std::string::npos && tensor.shape.rank() > 2;
    const std::int64_t matrices = stack ? tensor.shape[0] : 1;
    parameters += static_cast<std::uint64_t>(tensor.shape.elements() / matrices);
    experts += stack ? matrices : 0, stacks += stack ? 1 : 0;
  }
  const std::string label = size_label(parameters);
  return stacks == 0 ? label : fmt::format("{}x{}", experts / stacks, label);
}

void add_general(Io& io, const Checkpoint& checkpoint, const std::string& name,
                 std::span<const GgufMixTensor> tensors, GgufMetadata& metadata) {
  std::uint64_t parameters = 0;
  for (const GgufMixTensor& tensor : tensors)
    parameters += static_cast<std::uint64_t>(tensor.shape.elements());
  add_sampling(io, checkpoint, metadata);
  const ModelNameParts parts = name_parts(checkpoint, name, parameters);
  const ModelCardFields card = read_model_card(io, checkpoint.path(), parameters);
  const auto add = [&](const std::string& key, const std::string& otherwise) {
    const std::string value = first_of(card.text(key), otherwise);
    if (!value.empty()) metadata.set_string("general." + key, value);
  };
  add("name", first_of(parts.title, name));
  add("author", {});
  add("version", parts.version);
  add("organization", parts.organization);
  add("finetune", parts.finetune);
  add("basename", parts.basename);
  add("description", {});
  add("size_label", first_of(parts.size_label, label_of(tensors)));
  for (const char* key : {"license", "license.name", "license.link", "source.url", "source.doi",
                          "source.uuid", "source.repo_url"})
    add(key, {});
  add_sources("base_model", card.base_models, metadata);
  add_sources("dataset", card.datasets, metadata);
  if (!card.tags.empty()) metadata.set_strings("general.tags", card.tags);
  if (!card.languages.empty()) metadata.set_strings("general.languages", card.languages);
}

// The converter writes these two among the sizes; llama-quantize, which alone makes the other types, puts
// them last.
void say_file_type(const GgufFileType& file_type, GgufMetadata& metadata) {
  if (!is_of_converter(file_type)) {
    metadata.erase(kVersionKey);
    metadata.erase(kFileTypeKey);
  }
  metadata.set_u32(kVersionKey, kQuantizationVersion);
  metadata.set_u32(kFileTypeKey, file_type.id);
}

// The keys of `header` in the order of its file, in which their values lie.
GgufMetadata copied(const GgufHeader& header) {
  std::vector<const std::pair<const std::string, GgufValue>*> keys;
  for (const auto& entry : header.metadata) keys.push_back(&entry);
  std::sort(keys.begin(), keys.end(),
            [](const auto* a, const auto* b) { return a->second.bytes.data() < b->second.bytes.data(); });
  GgufMetadata metadata;
  for (const auto* entry : keys) metadata.set_value(entry->first, entry->second);
  for (const char* key : {"split.no", "split.count", "split.tensors.count", "general.alignment"})
    metadata.erase(key);
  return metadata;
}

}  // namespace

GgufMetadata gguf_model_metadata(Io& io, const Checkpoint& checkpoint, const ModelSpec& spec,
                                 const std::string& name, std::span<const GgufMixTensor> tensors,
                                 const std::optional<GgufFileType>& file_type) {
  if (checkpoint.is_gguf()) {
    const GgufFile source = open_gguf(io, checkpoint.path());
    GgufMetadata metadata = copied(source.header);
    if (file_type) say_file_type(*file_type, metadata);
    return metadata;
  }
  const GgufFamily& family = check_gguf_family(spec, checkpoint.path().string());
  GgufMetadata metadata;
  metadata.set_string("general.architecture", family.architecture);
  add_rope_attention_factor(gguf_rope(spec), family, metadata);
  metadata.set_string("general.type", "model");
  add_general(io, checkpoint, name, tensors, metadata);
  add_gguf_sizes(checkpoint, spec, family, file_type.value(), metadata);
  metadata.set_u32(kVersionKey, kQuantizationVersion);
  add_gguf_vocabulary(io, checkpoint, spec.vocab_size, family.vocabulary, metadata);
  say_file_type(*file_type, metadata);
  return metadata;
}

}  // namespace llmq
