// The methods that llmq knows, one row each: what a recipe calls them, how they round, and what others must
// know of them to plan and run them. Nobody else asks for a method by its name.
//
// A method costs its file, its row, a recipe and a test (docs/adding.md).
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quant/methods/method.h"
#include "quant/methods/method_options.h"

namespace llmq {

struct MethodRow {
  std::vector<std::string> words;  // as a recipe lists them, in the order in which they are applied
  std::string name;                // as reports say it
  std::unique_ptr<Method> (*make)(const MethodOptions& options, Compute compute) = nullptr;  // the rounding

  bool calibrates = true;             // it runs samples through the model
  bool folds = false;                 // scales move between a producer and its readers before the rounding
  bool searches_by_gram = false;      // it judges those scales on Gram matrices
  bool samples_rows = false;          // it judges them on sampled rows, where it is given none
  bool clips = false;                 // it shrinks ranges by the diagonal blocks of a Gram matrix (awq.clip)
  bool factorizes = false;            // it rounds column after column by a factor of the Gram matrix
  bool keeps_columns = false;         // some columns stay as they were
  bool integer_codes_only = false;    // it chooses among integer codes
  bool floats_in_groups = false;      // and among those of floats in groups, which others only round
  bool symmetric_by_default = false;  // where a scheme says nothing of its zeros
  // What GptqOptions leave open.
  int descent_sweeps = 1;
  double upstream_share = 0;

  // A row that an option asks for, in place of the row of the same words: the option's key, and whether it
  // asks.
  std::string_view key = {};
  bool (*is_asked)(const MethodOptions& options) = nullptr;
};

// Rounding to nearest, without samples.
const MethodRow& plain_rounding();

// Whether the method chooses codes of this scheme; those that it does not are rounded to nearest beside them.
bool chooses_codes(const MethodRow& method, const QuantScheme& scheme);

// The row for a recipe's words and options. Error(kUsage) where there is none, naming those there are;
// `source`: the recipe's file.
const MethodRow& find_method(const std::vector<std::string>& words, const MethodOptions& options,
                             const std::string& source);
// The row that an option asks for by its key; null: none does.
const MethodRow* asked_by_option(const MethodOptions& options);
// `options` with what they leave open chosen for the method.
MethodOptions complete_options(const MethodRow& method, MethodOptions options);

// The methods of a GGUF, whose blocks ggml's searches round.
struct GgufMethodRow {
  std::string word;
  bool is_weighted = false;  // by the importance of each column
};
// Null where `words` is none of them.
const GgufMethodRow* find_gguf_method(const std::vector<std::string>& words);

// Every word of the tables above, once.
std::vector<std::string> method_words();

}  // namespace llmq
