// llmq's own recipe form: one table of dotted keys serves the file and --set alike.
//
// A mapping is walked by appending its keys to a path; a path that is in the table is applied, one that only
// begins other paths is descended into, anything else is an error at its line and column.
#include "quant/recipe/recipe.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"
#include "base/utf8_sequence.h"
#include "export/formats/output_format.h"
#include "export/formats/packed_formats.h"
#include "export/gguf/type_mix.h"
#include "io/hub.h"
#include "quant/methods/registry.h"
#include "quant/recipe/option_words.h"
#include "quant/recipe/yaml_fields.h"

namespace llmq {
namespace {

using Duo = AwqOptions::Duo;

void apply_version(Recipe&, const Yaml& v) {
  if (v.as_integer() != 1)
    v.fail_here("recipe version " + v.as_string() + " is not known", "this llmq reads version: 1");
}

void apply_methods(Recipe& r, const Yaml& v) {
  const std::vector<std::string> known = method_words();
  r.methods.clear();
  if (v.kind() != Yaml::Kind::kSequence) {
    r.methods.push_back(read_word(v, known));
    return;
  }
  for (const Yaml& item : v.items()) r.methods.push_back(read_word(item, known));
  if (r.methods.empty()) v.fail_here("the list of methods is empty", "write method: awq");
}

// A scheme of codes and scales, or one of GGUF's types.
void apply_scheme(Recipe& r, const Yaml& v) {
  const GgufFileType* type = v.kind() == Yaml::Kind::kScalar ? find_gguf_file_type(v.as_string()) : nullptr;
  r.scheme_is_gguf = type != nullptr;
  r.scheme.reset();
  if (type == nullptr)
    r.scheme = read_scheme(v);
  else
    r.gguf.type = gguf_type_name(*type);
}

void apply_duo(Recipe& r, const Yaml& v) {
  if (v.is_plain() && v.as_string() == "true")
    r.awq.duo_scaling = Duo::kYes;
  else if (v.is_plain() && v.as_string() == "false")
    r.awq.duo_scaling = Duo::kNo;
  else if (v.as_string() == "both")
    r.awq.duo_scaling = Duo::kBoth;
  else
    v.fail_here("expected true, false or both, found '" + v.as_string() + "'");
}

void apply_overrides(Recipe& r, const Yaml& v) {
  static const std::vector<std::string> kKnown = {"match", "scheme"};
  r.overrides.clear();
  for (const Yaml& item : v.items()) {
    SchemeOverride entry;
    for (const Yaml::Member& m : item.members()) {
      if (m.key == "match")
        entry.match = m.value.as_string();
      else if (m.key == "scheme")
        read_override(m.value, entry);
      else
        fail_unknown_key(item, m, "overrides." + m.key, kKnown);
    }
    for (const std::string& key : kKnown)
      if (item.find(key) == nullptr)
        item.fail_here("an override lacks '" + key + "'",
                       "write {match: \"re:.*down_proj\", scheme: w8a16_g128}");
    r.overrides.push_back(std::move(entry));
  }
}

void apply_mixed_bits(Recipe& r, const Yaml& v) {
  r.mixed.bits.clear();
  for (const Yaml& item : v.items()) {
    const auto bits = static_cast<int>(read_integer(item, 2, 16));
    if (bits > 8 && bits != 16)
      item.fail_here(fmt::format("codes of {} bits are not written", bits),
                     "write 2 to 8, or 16 for left as it is");
    r.mixed.bits.push_back(bits);
  }
  std::sort(r.mixed.bits.begin(), r.mixed.bits.end());
  r.mixed.bits.erase(std::unique(r.mixed.bits.begin(), r.mixed.bits.end()), r.mixed.bits.end());
  if (r.mixed.bits.size() < 2) v.fail_here("there is nothing to choose from", "write bits: [4, 8, 16]");
}

void apply_mixed_schemes(Recipe& r, const Yaml& v) {
  r.mixed.schemes.clear();
  for (const Yaml& item : v.items()) {
    const std::optional<SchemeRequest> scheme = read_scheme_or_dense(item);
    if (std::find(r.mixed.schemes.begin(), r.mixed.schemes.end(), scheme) != r.mixed.schemes.end())
      item.fail_here("a scheme stands twice among the candidates", "leave one out");
    r.mixed.schemes.push_back(scheme);
  }
  if (r.mixed.schemes.size() < 2)
    v.fail_here("there is nothing to choose from", "write schemes: [w4a16_g64_asym, nvfp4a16, fp8]");
}

std::string read_hub_name(const Yaml& v, const char* example) {
  if (!is_hub_name(v.as_string()))
    v.fail_here("'" + v.as_string() + "' is not a name of the hub",
                std::string("write owner/name, as in ") + example);
  return v.as_string();
}

// A model of the hub with such a value that the hub does not know cannot be pushed.
void apply_license(Recipe& r, const Yaml& v) {
  const std::string& text = v.as_string();
  if (!is_hub_license(text))
    v.fail_here("'" + text + "' is not how the hub names a licence",
                "write its identifier, as in apache-2.0");
  r.card.license = text;
}

void apply_datasets(Recipe& r, const Yaml& v) {
  constexpr const char* kExample = "HuggingFaceH4/ultrachat_200k";
  r.card.datasets.emplace();
  if (v.kind() != Yaml::Kind::kSequence) return r.card.datasets->push_back(read_hub_name(v, kExample));
  for (const Yaml& item : v.items()) r.card.datasets->push_back(read_hub_name(item, kExample));
}

EvaluateRequest& evaluation(Recipe& r) {
  if (!r.evaluate) r.evaluate.emplace();
  return *r.evaluate;
}

constexpr std::int64_t kMany = 1'000'000'000, kMostShardBytes = 1'000'000'000'000;
constexpr double kHuge = 1e9;

struct Key {
  std::string_view path;
  void (*apply)(Recipe&, const Yaml&);
};

// Keys in the order in which errors list them. awq.loss names the one loss there is.
const auto kKeys = std::to_array<Key>({
    {"version", apply_version},
    {"model", [](Recipe& r, const Yaml& v) { r.model = v.as_string(); }},
    {"adapter", [](Recipe& r, const Yaml& v) { r.adapter = v.as_string(); }},
    {"output", [](Recipe& r, const Yaml& v) { r.output = v.as_string(); }},
    {"output.dir", [](Recipe& r, const Yaml& v) { r.output = v.as_string(); }},
    {"output.versioned", [](Recipe& r, const Yaml& v) { r.versioned = v.as_bool(); }},
    {"output.keep", [](Recipe& r, const Yaml& v) { r.keep = read_integer(v, 1, kMany); }},
    {"shard_bytes", [](Recipe& r, const Yaml& v) { r.shard_bytes = read_integer(v, 1, kMostShardBytes); }},
    {"method", apply_methods},
    {"scheme", apply_scheme},
    {"format",
     [](Recipe& r, const Yaml& v) {
       std::vector<std::string> known = packed_format_names();
       known.emplace_back(kGgufFormat);
       r.format = read_word(v, known);
     }},
    {"calibration.text", [](Recipe& r, const Yaml& v) { r.calibration.text = read_names(v); }},
    {"calibration.samples",
     [](Recipe& r, const Yaml& v) { r.calibration.samples = read_integer(v, 1, kMany); }},
    {"calibration.sequence_length",
     [](Recipe& r, const Yaml& v) { r.calibration.sequence_length = read_integer(v, 1, 1 << 20); }},
    {"calibration.seed",
     [](Recipe& r, const Yaml& v) {
       r.calibration.seed = static_cast<std::uint64_t>(read_integer(v, 0, INT64_MAX));
     }},
    {"calibration.shuffle", [](Recipe& r, const Yaml& v) { r.calibration.shuffle = v.as_bool(); }},
    {"calibration.chat_template",
     [](Recipe& r, const Yaml& v) { r.calibration.chat_template = v.as_bool(); }},
    {"rotate.value",
     [](Recipe& r, const Yaml& v) { r.rotates_values = read_word(v, {"hadamard", "none"}) == "hadamard"; }},
    {"kv_cache.dtype", [](Recipe& r, const Yaml& v) { r.kv_cache = kKvCacheTypes.read(v); }},
    {"ignore", [](Recipe& r, const Yaml& v) { r.ignore = read_names(v); }},
    {"overrides", apply_overrides},
    {"vision", [](Recipe& r, const Yaml& v) { r.vision = read_scheme(v); }},
    {"target_bits", [](Recipe& r, const Yaml& v) { r.target_bits = read_number(v, 1, 32); }},
    {"mixed.bits", apply_mixed_bits},
    {"mixed.schemes", apply_mixed_schemes},
    {"mixed.samples", [](Recipe& r, const Yaml& v) { r.mixed.samples = read_integer(v, 1, kMany); }},
    {"awq.grid", [](Recipe& r, const Yaml& v) { r.awq.grid = static_cast<int>(read_integer(v, 1, 1000)); }},
    {"awq.duo_scaling", apply_duo},
    {"awq.clip", [](Recipe& r, const Yaml& v) { r.awq.clip = v.as_bool(); }},
    {"awq.salient_fp16",
     [](Recipe& r, const Yaml& v) { r.awq.salient_fp16 = read_number(v, 0, 1); }},
    {"awq.loss", [](Recipe&, const Yaml& v) { read_word(v, {"gram"}); }},
    {"gptq.damp", [](Recipe& r, const Yaml& v) { r.gptq.damp = read_number(v, 0, 1); }},
    {"gptq.order", [](Recipe& r, const Yaml& v) { r.gptq.order = kOrders.read(v); }},
    {"gptq.scale_search", [](Recipe& r, const Yaml& v) { r.gptq.scale_search = kSearches.read(v); }},
    {"gptq.full_range", [](Recipe& r, const Yaml& v) { r.gptq.full_range = v.as_bool(); }},
    {"gptq.refit_scales", [](Recipe& r, const Yaml& v) { r.gptq.refit_scales = v.as_bool(); }},
    {"gptq.retry_scales", [](Recipe& r, const Yaml& v) { r.gptq.retry_scales = v.as_bool(); }},
    {"gptq.descent_sweeps",
     [](Recipe& r, const Yaml& v) { r.gptq.descent_sweeps = static_cast<int>(read_integer(v, 0, 100)); }},
    {"gptq.upstream_share", [](Recipe& r, const Yaml& v) { r.gptq.upstream_share = read_number(v, 0, 1); }},
    {"floats.scales",
     [](Recipe& r, const Yaml& v) { r.floats.search = read_word(v, {"search", "minmax"}) == "search"; }},
    {"gguf.importance", [](Recipe& r, const Yaml& v) { r.gguf.importance = v.as_string(); }},
    {"gguf.search", [](Recipe& r, const Yaml& v) { r.gguf.search = read_word(v, {"ggml", "best"}); }},
    {"gguf.imatrix_out", [](Recipe& r, const Yaml& v) { r.gguf.imatrix_out = v.as_string(); }},
    {"smoothquant.alpha",
     [](Recipe& r, const Yaml& v) {
       if (v.kind() == Yaml::Kind::kScalar && v.as_string() == "search")
         r.smoothquant.alpha.reset();
       else
         r.smoothquant.alpha = read_number(v, 0, 1);
     }},
    {"activations.range",
     [](Recipe& r, const Yaml& v) { r.activations.whole = read_word(v, {"max", "percentile"}) == "max"; }},
    {"activations.percentile",
     [](Recipe& r, const Yaml& v) { r.activations.percentile = read_number(v, 50, 100); }},
    {"portable", [](Recipe& r, const Yaml& v) { r.portable = v.as_bool(); }},
    {"evaluate.text", [](Recipe& r, const Yaml& v) { evaluation(r).text = v.as_string(); }},
    {"evaluate.max_ppl", [](Recipe& r, const Yaml& v) { evaluation(r).max_ppl = read_number(v, 0, kHuge); }},
    {"evaluate.max_delta_ppl",
     [](Recipe& r, const Yaml& v) { evaluation(r).max_delta_ppl = read_number(v, -kHuge, kHuge); }},
    {"evaluate.max_kl", [](Recipe& r, const Yaml& v) { evaluation(r).max_kl = read_number(v, 0, kHuge); }},
    {"evaluate.max_windows",
     [](Recipe& r, const Yaml& v) { evaluation(r).max_windows = read_integer(v, 0, kMany); }},
    {"base_model", [](Recipe& r, const Yaml& v) { r.card.base_model = read_hub_name(v, "Qwen/Qwen3-32B"); }},
    {"license", apply_license},
    {"datasets", apply_datasets},
    {"quantized_by", [](Recipe& r, const Yaml& v) { r.card.quantized_by = v.as_string(); }},
});

const Key* find_key(std::string_view path) {
  for (const Key& key : kKeys)
    if (key.path == path) return &key;
  return nullptr;
}

bool has_children(const std::string& path) {
  for (const Key& key : kKeys)
    if (key.path.substr(0, path.size() + 1) == path + ".") return true;
  return false;
}

// The keys that may follow `prefix` ("" or "calibration.").
std::vector<std::string> known_keys(const std::string& prefix) {
  std::vector<std::string> known;
  for (const Key& key : kKeys) {
    if (key.path.substr(0, prefix.size()) != prefix) continue;
    const std::string_view rest = key.path.substr(prefix.size());
    const std::string word(rest.substr(0, rest.find('.')));
    if (known.empty() || known.back() != word) known.push_back(word);
  }
  return known;
}

void apply(Recipe& recipe, const std::string& path, const Yaml& value);

void apply_mapping(Recipe& recipe, const std::string& prefix, const Yaml& mapping) {
  for (const Yaml::Member& member : mapping.members()) {
    const std::string path = prefix + member.key;
    if (find_key(path) == nullptr && !has_children(path))
      fail_unknown_key(mapping, member, path, known_keys(prefix));
    apply(recipe, path, member.value);
  }
}

void apply(Recipe& recipe, const std::string& path, const Yaml& value) {
  const Key* key = find_key(path);
  if (has_children(path) && (key == nullptr || value.kind() == Yaml::Kind::kMapping)) {
    if (path == "evaluate") evaluation(recipe);  // "evaluate: {}" asks for it with defaults
    apply_mapping(recipe, path + ".", value);
    return;
  }
  try {
    key->apply(recipe, value);
  } catch (const Error& e) {  // parse_scheme and its like know no place
    if (!e.detail().file.empty()) throw;
    fail(e.kind(), {e.detail().message, value.file(), place_of(value), e.detail().hint});
  }
}

}  // namespace

Recipe Recipe::parse(std::string_view text, const std::string& file) {
  const Yaml root = Yaml::parse(text, file);
  Recipe recipe;
  recipe.source = file;
  if (root.kind() != Yaml::Kind::kMapping)
    root.fail_here("a recipe is a mapping of keys to values", "begin with version: 1");
  if (is_llmcompressor_recipe(root))
    read_llmcompressor_recipe(root, recipe);
  else
    apply_mapping(recipe, "", root);
  return recipe;
}

Recipe Recipe::load(Io& io, const Path& path) { return parse(read_text(io, path, 1u << 20), path.string()); }

void Recipe::set(const std::string& assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0)
    fail(ErrorKind::kUsage,
         {"'" + assignment + "' is not key=value", {}, "--set", "write --set calibration.samples=64"});
  const std::string path = assignment.substr(0, equals), text = assignment.substr(equals + 1);
  if (find_key(path) == nullptr && !has_children(path)) {
    const std::size_t dot = path.rfind('.');
    const std::string prefix =
        dot == std::string::npos || !has_children(path.substr(0, dot)) ? "" : path.substr(0, dot + 1);
    const std::vector<std::string> known = known_keys(prefix);
    fail(ErrorKind::kUsage, {"no recipe key is called '" + path + "'",
                             {},
                             "--set",
                             (known.size() == 1 ? "there is " : "there are ") + joined(known)});
  }
  std::string* file = path == "model"                            ? &model
                      : path == "adapter"                        ? &adapter
                      : path == "output" || path == "output.dir" ? &output
                      : path == "gguf.importance"                ? &gguf.importance
                      : path == "gguf.imatrix_out"               ? &gguf.imatrix_out
                                                                 : nullptr;
  if (file != nullptr && !text.empty() && text.front() != '{' && text.front() != '"' &&
      text.front() != '\'') {  // taken as typed, whatever YAML would make of it
    if (!is_utf8(text))
      fail(ErrorKind::kUsage, {"the path is not UTF-8, so no report could name it",
                               {},
                               "--set " + path,
                               "rename it, or link to it under a UTF-8 name"});
    *file = text;
    return;
  }
  apply(*this, path, Yaml::parse(text, "--set " + path));
}

}  // namespace llmq
