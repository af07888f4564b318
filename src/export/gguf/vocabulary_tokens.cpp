#include "export/gguf/vocabulary_tokens.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "base/error.h"
#include "export/gguf/sentencepiece_model.h"

namespace llmq {
namespace {

constexpr float kNoScore = -1000.0f;

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

bool looks_special(const std::string& text) {
  static const std::set<std::string, std::less<>> kMarked{"<pad>", "<mask>", "<2mass>", "[@BOS@]"};
  const auto between = [&](std::string_view first, std::string_view last) {
    return text.starts_with(first) && text.ends_with(last);
  };
  return kMarked.contains(text) || between("<|", "|>") || between("<\357\275\234", "\357\275\234>") ||
         between("<unused", ">");
}

bool is_byte_token(std::string_view text) {
  return text.size() == 6 && text.starts_with("<0x") && text.ends_with(">") &&
         std::isxdigit(static_cast<unsigned char>(text[3])) != 0 &&
         std::isxdigit(static_cast<unsigned char>(text[4])) != 0;
}

// As Transformers' all_special_tokens: what tokenizer_config.json calls "<something>_token", and lists.
std::set<std::string> named_special(const Json& config) {
  std::set<std::string> named;
  const auto add = [&](const Json& value) {
    if (const std::string content = token_content(&value); !content.empty()) named.insert(content);
  };
  for (const auto& [key, value] : config.members()) {
    if (key.ends_with("_token")) add(value);
    if (key != "extra_special_tokens" && key != "additional_special_tokens" &&
        key != "model_specific_special_tokens")
      continue;
    if (value.is_array())
      for (const Json& item : value.items()) add(item);
    if (value.is_object())
      for (const auto& [name, item] : value.members()) add(item);
  }
  return named;
}

}  // namespace

VocabularyTokens read_tokens(const TokenizerFiles& files, std::int64_t rows, bool byte_level) {
  VocabularyTokens tokens;
  const auto size = static_cast<std::size_t>(rows);
  tokens.texts.resize(size);
  tokens.types.assign(size, TokenType::kUnused);
  const auto place = [&](std::int64_t id, const std::string& text) {
    if (id < 0 || id >= rows)
      fail(ErrorKind::kBadInput,
           {fmt::format("token '{}' has the id {}, and the embedding has {} rows", text, id, rows),
            files.file, "vocab", "use the tokenizer this model was trained with"});
    return static_cast<std::size_t>(id);
  };
  const Json* vocab = find_object(files.tokenizer.at("model"), "vocab");
  if (vocab == nullptr) fail(ErrorKind::kBadInput, {"has no vocabulary", files.file, "model.vocab", {}});
  for (const auto& [text, id] : vocab->members()) {
    const std::size_t i = place(id.as_integer(), text);
    tokens.texts[i] = text;
    tokens.types[i] = !byte_level && is_byte_token(text) ? TokenType::kByte : TokenType::kNormal;
  }
  std::set<std::int64_t> special;
  for (const auto& [type, id] : files.special_ids) special.insert(id);
  for (const AddedEntry& entry : files.added) {
    const std::size_t i = place(entry.id, entry.content);
    if (tokens.types[i] == TokenType::kByte) continue;
    const bool control =
        entry.special || (byte_level ? looks_special(entry.content) : special.contains(entry.id));
    tokens.types[i] = control ? TokenType::kControl : TokenType::kUserDefined;
    tokens.texts[i] = control || !byte_level ? entry.content : replaced(entry.content, kSpaceLetter, " ");
  }
  for (std::size_t i = 0; i < size; ++i)
    if (tokens.types[i] == TokenType::kUnused) tokens.texts[i] = fmt::format("[PAD{}]", i);
  return tokens;
}

std::vector<std::string> read_merges(const TokenizerFiles& files) {
  std::vector<std::string> merges;
  const Json* list = find_array(files.tokenizer.at("model"), "merges");
  if (list == nullptr) fail(ErrorKind::kBadInput, {"has no merges", files.file, "model.merges", {}});
  merges.reserve(list->items().size());
  for (const Json& merge : list->items()) {
    if (!merge.is_array()) {
      merges.push_back(merge.as_string());
      continue;
    }
    if (merge.items().size() != 2)
      fail(ErrorKind::kBadInput, {"a merge is no pair", files.file, "model.merges", {}});
    const auto part = [&](std::size_t i) { return replaced(merge.items()[i].as_string(), " ", "\304\240"); };
    merges.push_back(part(0) + " " + part(1));
  }
  return merges;
}

std::vector<float> scores_of(const VocabularyTokens& tokens, const std::vector<std::string>& merges) {
  std::map<std::string, float> first;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::size_t space = merges[rank].find(' ', 1);
    if (space == std::string::npos) continue;
    first.emplace(merges[rank].substr(0, space) + merges[rank].substr(space + 1), -static_cast<float>(rank));
  }
  std::vector<float> scores;
  for (const std::string& text : tokens.texts) {
    const auto found = first.find(text);
    scores.push_back(found == first.end() ? std::min(kNoScore, -static_cast<float>(merges.size()))
                                          : found->second);
  }
  return scores;
}

void set_plain_types(const TokenizerFiles& files, std::span<const char* const> visible,
                     VocabularyTokens& tokens) {
  const std::set<std::string> special = named_special(files.config);
  const Json& vocab = files.tokenizer.at("model").at("vocab");
  tokens.scores.assign(tokens.texts.size(), kNoScore);
  for (std::size_t i = 0; i < tokens.texts.size(); ++i) {
    const std::string& text = tokens.texts[i];
    TokenType& type = tokens.types[i];
    if (type == TokenType::kUnused) continue;
    const bool byte = is_byte_token(text), of_vocabulary = vocab.find(text) != nullptr;
    type = byte                     ? TokenType::kByte
           : special.contains(text) ? TokenType::kControl
           : of_vocabulary          ? TokenType::kNormal
                                    : TokenType::kUserDefined;
    for (const char* const name : visible)
      if (text == name) type = TokenType::kUserDefined;
  }
}

VocabularyTokens tokens_of_pieces(Io& io, const TokenizerFiles& files, const Path& directory,
                                  std::int64_t rows, bool as_told) {
  constexpr float kUnusedScore = -10000.0f;
  const auto size = static_cast<std::size_t>(rows);
  VocabularyTokens tokens;
  tokens.types.assign(size, TokenType::kUnused);
  tokens.scores.assign(size, kUnusedScore);
  for (std::size_t i = 0; i < size; ++i) tokens.texts.push_back(fmt::format("[PAD{}]", i));
  const Path path = directory / "tokenizer.model";
  const std::vector<SentencePiece> pieces =
      parse_sentencepiece_model(io.open(path)->map()->bytes(), path.string());
  for (std::size_t i = 0; i < std::min(size, pieces.size()); ++i) {
    tokens.texts[i] = pieces[i].text;
    tokens.scores[i] = pieces[i].score;
    tokens.types[i] = pieces[i].type == TokenType::kUserDefined ? TokenType::kNormal : pieces[i].type;
  }
  const auto add = [&](std::int64_t id, const std::string& text, TokenType type) {
    if (id < 0 || id >= rows) return;
    const auto i = static_cast<std::size_t>(id);
    tokens.texts[i] = type == TokenType::kUserDefined && !as_told ? replaced(text, kSpaceLetter, " ") : text;
    tokens.types[i] = type;
    tokens.scores[i] = kNoScore;
  };
  for (const AddedEntry& entry : files.added)
    add(entry.id, entry.content,
        entry.special || (!as_told && looks_special(entry.content)) ? TokenType::kControl
                                                                    : TokenType::kUserDefined);
  return tokens;
}

}  // namespace llmq
