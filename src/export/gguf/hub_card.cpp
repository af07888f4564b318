#include "export/gguf/hub_card.h"

#include <array>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "base/yaml.h"
#include "export/gguf/gguf_metadata.h"

namespace llmq {
namespace {

// What may say a text, the first that is there.
struct TextRow {
  const char* key;
  std::array<const char*, 3> said_as;
};
constexpr std::array<TextRow, 15> kTexts = {{
    {"name", {"name", "model_name"}},
    {"author", {"author", "model_author", "model_creator"}},
    {"version", {"version", "model_version"}},
    {"organization", {"organization", "model_organization"}},
    {"description", {"description", "model_description"}},
    {"finetune", {"finetune", "model_finetune"}},
    {"basename", {"basename", "model_basename", "model_type"}},
    {"size_label", {"size_label", "model_size_label"}},
    {"source.url", {"url", "model_url"}},
    {"source.doi", {"doi", "model_doi"}},
    {"source.uuid", {"uuid", "model_uuid"}},
    {"source.repo_url", {"repo_url", "model_repo_url"}},
    {"license", {"license"}},
    {"license.name", {"license_name"}},
    {"license.link", {"license_link"}},
}};
constexpr std::array kSourceFields = {"name", "author", "version", "organization", "description",
                                      "url",  "doi",    "uuid",    "repo_url"};

// The lines between the first, "---", and the next such; the first one left empty, so that places in errors
// are those of the file.
std::string front_matter(const std::string& text) {
  std::istringstream lines(text);
  std::string matter, line;
  for (std::size_t number = 0; std::getline(lines, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    const bool rule = line == "---";
    if (rule != (number == 0)) return number == 0 ? "" : matter;
    if (number == 0) line.clear();
    for (const char c : line) matter += c == '\t' ? std::string("  ") : std::string(1, c);
    matter += '\n';
  }
  return matter;
}

bool says_something(const Yaml* node) {
  if (node == nullptr || node->kind() == Yaml::Kind::kNull) return false;
  if (node->kind() != Yaml::Kind::kScalar || !node->is_plain()) return true;
  const std::string& text = node->as_string();
  return !text.empty() && text != "~" && text != "null";
}

// A scalar, or the scalars of a list.
std::vector<std::string> texts_of(const Yaml* node) {
  std::vector<std::string> texts;
  if (!says_something(node)) return texts;
  if (node->kind() == Yaml::Kind::kScalar) return {node->as_string()};
  if (node->kind() != Yaml::Kind::kSequence) return texts;
  for (const Yaml& item : node->items())
    if (item.kind() == Yaml::Kind::kScalar) texts.push_back(item.as_string());
  return texts;
}

const Yaml* first_said(const Yaml& card, std::span<const char* const> keys) {
  for (const char* key : keys)
    if (key != nullptr && says_something(card.find(key))) return card.find(key);
  return nullptr;
}

// "org/name" of "https://huggingface.co/org/name"; empty for any other address.
std::string hub_id(const std::string& address) {
  for (const std::string_view prefix : {"https://huggingface.co/", "http://huggingface.co/"}) {
    if (!address.starts_with(prefix)) continue;
    const std::string id = address.substr(prefix.size());
    const std::size_t slash = id.find('/');
    const bool two_parts = slash != std::string::npos && slash > 0 && slash + 1 < id.size();
    return two_parts && id.find('/', slash + 1) == std::string::npos ? id : "";
  }
  return "";
}

// A model or a data set that is named by its id or its address.
ModelCardFields::Entry named_source(const std::string& text, std::uint64_t parameters) {
  const bool address =
      text.starts_with("https://") || text.starts_with("http://") || text.starts_with("ssh://");
  const std::string id = address ? hub_id(text) : text;
  const ModelNameParts parts = parse_model_name(id, parameters);
  ModelCardFields::Entry entry;
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) entry.emplace_back(key, value);
  };
  add("name", parts.title);
  add("version", parts.version);
  add("organization", parts.organization);
  if (address)
    add("repo_url", text);
  else if (!parts.organization.empty())
    add("repo_url", "https://huggingface.co/" + id);
  return entry;
}

ModelCardFields::Entry described_source(const Yaml& mapping) {
  ModelCardFields::Entry entry;
  for (const char* key : kSourceFields)
    for (const std::string& text : texts_of(mapping.find(key))) entry.emplace_back(key, text);
  return entry;
}

// The first of `keys` that the card has: one source, or a list of them.
std::optional<std::vector<ModelCardFields::Entry>> sources_of(const Yaml& card,
                                                              std::span<const char* const> keys,
                                                              std::uint64_t parameters) {
  for (const char* key : keys) {
    const Yaml* given = card.find(key);
    if (given == nullptr) continue;
    std::vector<ModelCardFields::Entry> sources;
    const auto add = [&](const Yaml& one) {
      if (one.kind() == Yaml::Kind::kScalar) sources.push_back(named_source(one.as_string(), parameters));
      if (one.kind() == Yaml::Kind::kMapping) sources.push_back(described_source(one));
    };
    if (given->kind() == Yaml::Kind::kSequence)
      for (const Yaml& one : given->items()) add(one);
    else if (given->kind() == Yaml::Kind::kScalar && says_something(given))
      add(*given);
    return sources;
  }
  return std::nullopt;
}

ModelCardFields fields_of(const Yaml& card, std::uint64_t parameters) {
  static constexpr std::array kBaseModels = {"base_model", "base_models", "base_model_sources"};
  static constexpr std::array kDatasets = {"datasets", "dataset", "dataset_sources"};
  ModelCardFields fields;
  if (card.kind() != Yaml::Kind::kMapping) return fields;
  for (const TextRow& row : kTexts) {
    std::string joined;
    for (const std::string& text : texts_of(first_said(card, row.said_as)))
      joined += (joined.empty() ? "" : ",") + text;
    if (!joined.empty()) fields.texts[row.key] = joined;
  }
  fields.base_models = sources_of(card, kBaseModels, parameters);
  fields.datasets = sources_of(card, kDatasets, parameters);
  const auto append = [&](std::vector<std::string>& list, const char* key) {
    for (std::string& text : texts_of(card.find(key))) list.push_back(std::move(text));
  };
  append(fields.tags, "tags");
  append(fields.tags, "pipeline_tag");
  append(fields.languages, "languages");
  append(fields.languages, "language");
  return fields;
}

}  // namespace

std::string ModelCardFields::text(const std::string& key) const {
  const auto found = texts.find(key);
  return found == texts.end() ? "" : found->second;
}

ModelCardFields read_model_card(Io& io, const Path& directory, std::uint64_t parameters) {
  const Path path = directory / "README.md";
  if (!io.exists(path)) return {};
  const std::string matter = front_matter(read_text(io, path));
  if (matter.empty()) return {};
  try {
    return fields_of(Yaml::parse(matter, path.string()), parameters);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kBadInput) throw;
    Log::get().warn(fmt::format("the model card's keys are left out: {}", error.what()));
    return {};
  }
}

}  // namespace llmq
