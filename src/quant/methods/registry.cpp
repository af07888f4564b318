#include "quant/methods/registry.h"

#include <algorithm>

#include "base/error.h"
#include "quant/methods/awq/clip_search.h"
#include "quant/methods/awq/salient_columns.h"
#include "quant/methods/gptq/gptq.h"
#include "quant/methods/rtn.h"

namespace llmq {
namespace {

std::unique_ptr<Method> to_nearest(const MethodOptions& options, Compute compute) {
  return make_rtn(compute, options.floats);
}
std::unique_ptr<Method> clipped(const MethodOptions& options, Compute compute) {
  return make_awq_rounding(options.awq, compute, options.floats);
}
std::unique_ptr<Method> by_columns(const MethodOptions& options, Compute compute) {
  return make_gptq(options.gptq, compute, options.floats);
}
std::unique_ptr<Method> beside_salient(const MethodOptions& options, Compute compute) {
  return make_salient_rounding(options.awq.salient_fp16, compute);
}
bool asks_for_salient(const MethodOptions& options) { return options.awq.salient_fp16 != 0; }

const std::vector<MethodRow>& rows() {
  static const std::vector<MethodRow> kRows = {
      {.words = {"rtn"}, .name = "rtn", .make = to_nearest, .calibrates = false},
      {.words = {"awq"},
       .name = "awq",
       .make = clipped,
       .folds = true,
       .searches_by_gram = true,
       .clips = true,
       .integer_codes_only = true,
       .floats_in_groups = true},
      {.words = {"awq"},
       .name = "awq.salient_fp16",
       .make = beside_salient,
       .keeps_columns = true,
       .integer_codes_only = true,
       .key = "awq.salient_fp16",
       .is_asked = asks_for_salient},
      {.words = {"awq", "rtn"},
       .name = "awq+rtn",
       .make = to_nearest,
       .folds = true,
       .searches_by_gram = true,
       .integer_codes_only = true,
       .floats_in_groups = true},
      {.words = {"gptq"},
       .name = "gptq",
       .make = by_columns,
       .factorizes = true,
       .integer_codes_only = true,
       .floats_in_groups = true,
       .symmetric_by_default = true},
      // What AWQ folds is not symmetric; a second sweep and the upstream error gain on it (docs/adr/0004).
      {.words = {"awq", "gptq"},
       .name = "awq+gptq",
       .make = by_columns,
       .folds = true,
       .searches_by_gram = true,
       .factorizes = true,
       .integer_codes_only = true,
       .floats_in_groups = true,
       .descent_sweeps = 2,
       .upstream_share = 0.5},
      {.words = {"smoothquant"},
       .name = "smoothquant",
       .make = to_nearest,
       .folds = true,
       .samples_rows = true},
      {.words = {"smoothquant", "rtn"},
       .name = "smoothquant+rtn",
       .make = to_nearest,
       .folds = true,
       .samples_rows = true},
      {.words = {"smoothquant", "gptq"},
       .name = "smoothquant+gptq",
       .make = by_columns,
       .folds = true,
       .samples_rows = true,
       .factorizes = true,
       .integer_codes_only = true,
       .symmetric_by_default = true},
  };
  return kRows;
}

// "awq", "[awq, gptq]"
std::string listed(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return words.size() == 1 ? text : "[" + text + "]";
}

std::string known_methods() {
  std::string known;
  for (const MethodRow& row : rows())
    if (row.is_asked == nullptr) known += (known.empty() ? "" : ", ") + listed(row.words);
  return known;
}

const std::vector<GgufMethodRow>& gguf_rows() {
  static const std::vector<GgufMethodRow> kRows = {{"rtn", false}, {"imatrix", true}};
  return kRows;
}

}  // namespace

const MethodRow& plain_rounding() { return rows().front(); }

bool chooses_codes(const MethodRow& method, const QuantScheme& scheme) {
  if (scheme.weight_type == WeightType::kInteger) return true;
  return scheme.scale_form() == ScaleForm::kNumber ? !method.integer_codes_only
                                                   : method.floats_in_groups || !method.calibrates;
}

const MethodRow* asked_by_option(const MethodOptions& options) {
  for (const MethodRow& row : rows())
    if (row.is_asked != nullptr && row.is_asked(options)) return &row;
  return nullptr;
}

const MethodRow& find_method(const std::vector<std::string>& words, const MethodOptions& options,
                             const std::string& source) {
  if (words.empty()) fail(ErrorKind::kUsage, {"no method is named", source, "method", "write method: awq"});
  const auto named = std::find_if(rows().begin(), rows().end(), [&](const MethodRow& row) {
    return row.is_asked == nullptr && row.words == words;
  });
  if (named == rows().end())
    fail(ErrorKind::kUsage,
         {listed(words) + " is no method" + (find_gguf_method(words) ? " without format: gguf" : ""), source,
          "method", "there are " + known_methods()});
  const MethodRow* const asked = asked_by_option(options);
  if (asked == nullptr) return *named;
  if (asked->words != words)
    fail(ErrorKind::kUsage, {fmt::format("{} is a method of its own, in place of {}, and no part of {}",
                                         asked->key, listed(asked->words), listed(words)),
                             source, std::string(asked->key), "write method: " + listed(asked->words)});
  return *asked;
}

MethodOptions complete_options(const MethodRow& method, MethodOptions options) {
  if (!options.gptq.descent_sweeps) options.gptq.descent_sweeps = method.descent_sweeps;
  if (!options.gptq.upstream_share) options.gptq.upstream_share = method.upstream_share;
  return options;
}

const GgufMethodRow* find_gguf_method(const std::vector<std::string>& words) {
  if (words.size() != 1) return nullptr;
  for (const GgufMethodRow& row : gguf_rows())
    if (row.word == words.front()) return &row;
  return nullptr;
}

std::vector<std::string> method_words() {
  std::vector<std::string> words;
  const auto add = [&](const std::string& word) {
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
  };
  for (const MethodRow& row : rows())
    for (const std::string& word : row.words) add(word);
  for (const GgufMethodRow& row : gguf_rows()) add(row.word);
  return words;
}

}  // namespace llmq
