// Words of a recipe's options, both ways: as a file spells them and as a report does.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quant/recipe/recipe.h"
#include "quant/recipe/yaml_fields.h"

namespace llmq {

template <typename Value, std::size_t kCount>
struct Words {
  std::array<std::pair<std::string_view, Value>, kCount> words;
  Value read(const Yaml& v) const {
    std::vector<std::string> known;
    for (const auto& [word, value] : words) {
      if (v.as_string() == word) return value;
      known.emplace_back(word);
    }
    read_word(v, known);  // refuses
    return words.front().second;
  }
  std::string_view text(Value value) const {
    for (const auto& [word, of] : words)
      if (of == value) return word;
    return {};
  }
};

inline constexpr Words<RoundingOrder, 4> kOrders = {{{{"gar", RoundingOrder::kGar},
                                                      {"act", RoundingOrder::kAct},
                                                      {"static", RoundingOrder::kStatic},
                                                      {"none", RoundingOrder::kNone}}}};
inline constexpr Words<GptqOptions::ScaleSearch, 3> kSearches = {
    {{{"feedback", GptqOptions::ScaleSearch::kFeedback},
      {"importance", GptqOptions::ScaleSearch::kImportance},
      {"minmax", GptqOptions::ScaleSearch::kMinMax}}}};

inline constexpr Words<KvCacheType, 2> kKvCacheTypes = {
    {{{"fp8", KvCacheType::kFloat8}, {"int8", KvCacheType::kInt8}}}};

}  // namespace llmq
