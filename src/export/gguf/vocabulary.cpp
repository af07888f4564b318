#include "export/gguf/vocabulary.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "export/gguf/pre_tokenizer_name.h"
#include "export/gguf/sentencepiece_model.h"
#include "tokenizer/token_type.h"
#include "tokenizer/tokenizer.h"

namespace llmq {
namespace {

constexpr float kNoScore = -1000.0f;
constexpr std::array<std::pair<const char*, const char*>, 7> kSpecialKeys{
    {{"bos", "bos"},
     {"eos", "eos"},
     {"unk", "unknown"},
     {"sep", "seperator"},  // as llama.cpp spells it
     {"pad", "padding"},
     {"cls", "cls"},
     {"mask", "mask"}}};

const Json* find_object(const Json& json, std::string_view key) {
  const Json* found = json.find(key);
  return found != nullptr && found->is_object() ? found : nullptr;
}
const Json* find_array(const Json& json, std::string_view key) {
  const Json* found = json.find(key);
  return found != nullptr && found->is_array() ? found : nullptr;
}
std::string text_or_empty(const Json* json) {
  return json != nullptr && json->is_string() ? json->as_string() : "";
}
std::string text_at(const Json& json, std::string_view key) { return text_or_empty(json.find(key)); }
bool flag_at(const Json& json, std::string_view key, bool otherwise) {
  const Json* found = json.find(key);
  return found != nullptr && found->is_bool() ? found->as_bool() : otherwise;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

struct AddedEntry {
  std::int64_t id = 0;
  std::string content;
  bool special = false;
};

// The files of a tokenizer, and what several steps ask of them.
struct Files {
  std::string file;  // of tokenizer.json
  Json tokenizer, config = Json::object(), model_config;
  std::vector<AddedEntry> added;
  std::map<std::string, std::int64_t> special_ids;  // by "bos", "eos", ...

  std::int64_t added_id(const std::string& content) const {
    for (const AddedEntry& entry : added)
      if (entry.content == content) return entry.id;
    return -1;
  }
};

std::string token_content(const Json* entry) {
  if (entry == nullptr) return {};
  return entry->is_object() ? text_at(*entry, "content") : text_or_empty(entry);
}

// First the token that tokenizer_config.json names, then the id that config.json gives.
void find_special_ids(Files& files) {
  for (const auto& [type, key] : kSpecialKeys) {
    const std::string content = token_content(files.config.find(std::string(type) + "_token"));
    const std::int64_t id = content.empty() ? -1 : files.added_id(content);
    const Json* given = files.model_config.find(std::string(type) + "_token_id");
    if (id >= 0)
      files.special_ids[type] = id;
    else if (given != nullptr && given->is_integer() && given->as_integer() >= 0)
      files.special_ids[type] = given->as_integer();
  }
}

void check_there(Io& io, const Checkpoint& checkpoint) {
  if (!io.exists(checkpoint.path() / "tokenizer.json"))
    fail(ErrorKind::kBadInput,
         {"a GGUF carries its tokenizer, and the model has no tokenizer.json", checkpoint.path().string(),
          "tokenizer.json", "put the model's tokenizer.json beside config.json"});
}

Files read_files(Io& io, const Checkpoint& checkpoint) {
  Files files;
  const Path path = checkpoint.path() / "tokenizer.json",
             config = checkpoint.path() / "tokenizer_config.json";
  files.file = path.string();
  files.tokenizer = Json::parse(read_text(io, path), files.file);
  if (io.exists(config)) files.config = Json::parse(read_text(io, config), config.string());
  files.model_config = checkpoint.config();
  if (const Json* added = find_array(files.tokenizer, "added_tokens"))
    for (const Json& token : added->items())
      files.added.push_back(
          {token.at("id").as_integer(), token.at("content").as_string(), flag_at(token, "special", false)});
  find_special_ids(files);
  return files;
}

struct Tokens {
  std::vector<std::string> texts;
  std::vector<TokenType> types;
  std::vector<float> scores;  // of a "llama" vocabulary

  std::vector<std::int32_t> type_numbers() const {
    std::vector<std::int32_t> numbers;
    for (const TokenType type : types) numbers.push_back(static_cast<std::int32_t>(type));
    return numbers;
  }
};

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

// A token for each row of the embedding.
Tokens read_tokens(const Files& files, std::int64_t rows, bool byte_level) {
  Tokens tokens;
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

// "left right" for each merge; a space inside a part is written as GPT-2's letter for it.
std::vector<std::string> read_merges(const Files& files) {
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

std::vector<float> scores_of(const Tokens& tokens, const std::vector<std::string>& merges) {
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

// The pieces of tokenizer.model, whose scores are those that SentencePiece merges by; then what was added to
// them.
Tokens tokens_of_pieces(Io& io, const Files& files, const Path& directory, std::int64_t rows) {
  constexpr float kUnusedScore = -10000.0f;
  const auto size = static_cast<std::size_t>(rows);
  Tokens tokens;
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
    tokens.texts[i] = type == TokenType::kUserDefined ? replaced(text, kSpaceLetter, " ") : text;
    tokens.types[i] = type;
    tokens.scores[i] = kNoScore;
  };
  for (const AddedEntry& entry : files.added)
    add(entry.id, entry.content,
        entry.special || looks_special(entry.content) ? TokenType::kControl : TokenType::kUserDefined);
  return tokens;
}

// What the post-processor puts round a text, as far as SpecialVocab reads it; nothing where it says nothing.
struct Ends {
  std::optional<bool> bos, eos, sep;
};

void read_template(const Json& processor, const Files& files, Ends& ends) {
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

Ends read_ends(const Files& files) {
  Ends ends;
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

// tokenizer_config.json's template, or the file beside it; several by name.
void add_chat_template(Io& io, const Checkpoint& checkpoint, const Files& files, GgufMetadata& metadata) {
  Json found, document;
  const Path jinja = checkpoint.path() / "chat_template.jinja",
             json = checkpoint.path() / "chat_template.json";
  const Json* given = files.config.find("chat_template");
  if (given == nullptr && io.exists(jinja)) {
    found = Json(read_text(io, jinja));
  } else if (given == nullptr && io.exists(json)) {
    document = Json::parse(read_text(io, json), json.string());
    given = document.find("chat_template");
  }
  if (given != nullptr) found = *given;
  if (found.is_string()) metadata.set_string("tokenizer.chat_template", found.as_string());
  if (!found.is_array()) return;
  std::vector<std::string> names;
  std::optional<std::string> fallback;
  for (const Json& choice : found.items()) {
    std::string name = text_at(choice, "name");
    const Json* text = choice.find("template");
    for (char& c : name)
      if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
    if (name.empty() || text == nullptr || !text->is_string()) continue;
    if (name == "default") {
      fallback = text->as_string();
      continue;
    }
    names.push_back(name);
    metadata.set_string("tokenizer.chat_template." + name, text->as_string());
  }
  if (!names.empty()) metadata.set_strings("tokenizer.chat_templates", names);
  if (fallback) metadata.set_string("tokenizer.chat_template", *fallback);
}

bool prepends_space(const Json& tokenizer) {
  const std::string text = tokenizer.find("normalizer") == nullptr ? "" : tokenizer.at("normalizer").dump();
  if (text.find("\"Prepend\"") != std::string::npos) return true;
  const Json* pre = find_object(tokenizer, "pre_tokenizer");
  if (pre == nullptr || text_at(*pre, "type") != "Metaspace") return false;
  const std::string scheme = text_at(*pre, "prepend_scheme");
  return scheme.empty() ? flag_at(*pre, "add_prefix_space", true) : scheme != "never";
}

// Whether the converter, and so llama.cpp, takes the tokenizer for SentencePiece's kind of BPE.
bool is_sentencepiece(const Json& tokenizer) {
  const Json& model = tokenizer.at("model");
  const Json* decoder = find_object(tokenizer, "decoder");
  return text_at(model, "type") == "BPE" && flag_at(model, "byte_fallback", false) && decoder != nullptr &&
         text_at(*decoder, "type") == "Sequence";
}

}  // namespace

void add_gguf_vocabulary(Io& io, const Checkpoint& checkpoint, const ModelSpec& spec,
                         std::string_view architecture, GgufMetadata& metadata) {
  check_there(io, checkpoint);
  const Tokenizer tokenizer =
      Tokenizer::open(io, checkpoint.path());  // its own reading of the tree ends before the next
  const Files files = read_files(io, checkpoint);
  const std::string prefix = "tokenizer.ggml.";
  const bool sentencepiece = is_sentencepiece(files.tokenizer);
  const Json* space = files.config.find("add_prefix_space");
  if (architecture == "llama" && space != nullptr && space->is_bool())
    metadata.set_bool(prefix + "add_space_prefix", space->as_bool());
  const bool pieces = sentencepiece && io.exists(checkpoint.path() / "tokenizer.model");
  Tokens tokens = pieces ? tokens_of_pieces(io, files, checkpoint.path(), spec.vocab_size)
                         : read_tokens(files, spec.vocab_size, !sentencepiece);
  const std::vector<std::string> merges = read_merges(files);
  if (sentencepiece && !pieces) tokens.scores = scores_of(tokens, merges);
  std::string pre = "default";
  if (!sentencepiece) pre = gguf_pre_tokenizer(tokenizer, files.tokenizer, files.file);
  metadata.set_string(prefix + "model", sentencepiece ? "llama" : "gpt2");
  metadata.set_string(prefix + "pre", pre);
  metadata.set_strings(prefix + "tokens", tokens.texts);
  if (sentencepiece) metadata.set_f32s(prefix + "scores", tokens.scores);
  metadata.set_i32s(prefix + "token_type", tokens.type_numbers());
  if (!pieces) metadata.set_strings(prefix + "merges", merges);
  for (const auto& [type, key] : kSpecialKeys)
    if (const auto id = files.special_ids.find(type);
        id != files.special_ids.end() && id->second < spec.vocab_size)
      metadata.set_u32(prefix + key + "_token_id", static_cast<std::uint32_t>(id->second));

  Ends ends = read_ends(files);
  // What llama.cpp does where the file says nothing, against what the tokenizer does.
  const std::vector<std::int32_t> with = tokenizer.encode("a", true), without = tokenizer.encode("a", false);
  const bool adds_bos = with.size() > without.size() && with.front() != without.front();
  const bool by_default = sentencepiece || pre == "llama-bpe" || pre == "llama3" || pre == "tekken";
  if (ends.bos.value_or(by_default) != adds_bos) ends.bos = adds_bos;
  if (ends.bos) metadata.set_bool(prefix + "add_bos_token", *ends.bos);
  if (ends.sep) metadata.set_bool(prefix + "add_sep_token", *ends.sep);
  if (ends.eos) metadata.set_bool(prefix + "add_eos_token", *ends.eos);
  if (sentencepiece && !prepends_space(files.tokenizer))
    metadata.set_bool(prefix + "add_space_prefix", false);
  add_chat_template(io, checkpoint, files, metadata);
  if (architecture == "llama" && spec.vocab_size == 49152)
    metadata.set_bool(prefix + "add_bos_token", adds_bos);
}

}  // namespace llmq
