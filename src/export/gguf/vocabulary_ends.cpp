#include "export/gguf/vocabulary_ends.h"

#include <span>
#include <string>
#include <vector>

#include "base/json_text.h"

namespace llmq {
namespace {

void read_template(const Json& processor, const TokenizerFiles& files, VocabularyEnds& ends) {
  const auto special = [](const Json& step) {
    const Json* token = find_object(step, "SpecialToken");
    return token == nullptr ? std::string() : text_at(*token, "id");
  };
  const std::string bos = token_content(files.config.find("bos_token")),
                    cls = token_content(files.config.find("cls_token")),
                    eos = token_content(files.config.find("eos_token"));
  const Json* single = find_array(processor, "single");
  if (single == nullptr || single->items().size() < 2) return;
  const std::string first = special(single->items().front()), last = special(single->items().back());
  if (!first.empty()) ends.bos = first == bos || first == cls || bos.empty();
  if (!last.empty()) ends.eos = last == eos || eos.empty();
  // The converter says whether a separator stands between two texts only where the pair is written as A ...
  // B.
  const Json* pair = find_array(processor, "pair");
  if (pair == nullptr || pair->items().empty()) return;
  std::span<const Json> steps(pair->items());
  if (!first.empty() && special(steps.front()) == first) steps = steps.subspan(1);
  if (!last.empty() && !steps.empty() && special(steps.back()) == last) steps = steps.first(steps.size() - 1);
  const auto sequence = [](const Json& step) {
    const Json* text = find_object(step, "Sequence");
    return text == nullptr ? std::string() : text_at(*text, "id");
  };
  if (steps.size() < 3 || sequence(steps.front()) != "A" || sequence(steps.back()) != "B") return;
  const std::string sep = token_content(files.config.find("sep_token")), middle = special(steps[1]);
  ends.sep = !middle.empty() && (middle == sep || middle == eos) && last.empty();
}

}  // namespace

VocabularyEnds read_ends(const TokenizerFiles& files) {
  VocabularyEnds ends;
  const Json* post = files.tokenizer.find("post_processor");
  if (post != nullptr && post->is_object()) {
    std::vector<const Json*> processors{post};
    if (const Json* list = find_array(*post, "processors")) {
      processors.clear();
      for (const Json& processor : list->items()) processors.push_back(&processor);
    }
    for (const Json* processor : processors) {
      if (text_at(*processor, "type") == "ByteLevel") {
        if (!ends.bos) ends.bos = false;
        if (!ends.eos) ends.eos = false;
      } else if (text_at(*processor, "type") == "TemplateProcessing") {
        read_template(*processor, files, ends);
      }
    }
  }
  const auto fill = [&](const char* key, std::optional<bool>& value) {
    const Json* given = files.config.find(key);
    if (!value && given != nullptr && given->is_bool()) value = given->as_bool();
  };
  fill("add_bos_token", ends.bos);
  fill("add_eos_token", ends.eos);
  fill("add_sep_token", ends.sep);
  return ends;
}

}  // namespace llmq
