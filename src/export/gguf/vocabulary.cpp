#include "export/gguf/vocabulary.h"

#include <fmt/format.h>

#include <cctype>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "export/gguf/pre_tokenizer_name.h"
#include "export/gguf/tokenizer_files.h"
#include "export/gguf/vocabulary_ends.h"
#include "export/gguf/vocabulary_tokens.h"
#include "tokenizer/tokenizer.h"

namespace llmq {
namespace {

// tokenizer_config.json's template, or the file beside it; several by name.
void add_chat_template(Io& io, const Checkpoint& checkpoint, const TokenizerFiles& files,
                       GgufMetadata& metadata) {
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

void add_gguf_vocabulary(Io& io, const Checkpoint& checkpoint, std::int64_t rows, const GgufVocabulary& rules,
                         GgufMetadata& metadata) {
  check_tokenizer_file(io, checkpoint);
  const Tokenizer tokenizer =
      Tokenizer::open(io, checkpoint.path());  // its own reading of the tree ends before the next
  const TokenizerFiles files = read_tokenizer_files(io, checkpoint);
  const std::string prefix = "tokenizer.ggml.";
  const bool sentencepiece = is_sentencepiece(files.tokenizer), plain = rules.model != nullptr;
  if (plain && !sentencepiece)
    fail(ErrorKind::kUnsupported,
         {fmt::format("its vocabulary is none of pieces with bytes, as a {} has it", rules.model), files.file,
          "model", "keep the model in safetensors"});
  const Json* space = files.config.find("add_prefix_space");
  const bool told = space != nullptr && space->is_bool(), told_last = rules.says_prefix_last && told;
  if (rules.says_prefix && told) metadata.set_bool(prefix + "add_space_prefix", space->as_bool());
  const bool pieces = sentencepiece && !plain && io.exists(checkpoint.path() / "tokenizer.model");
  VocabularyTokens tokens = pieces ? tokens_of_pieces(io, files, checkpoint.path(), rows, rules.added_as_told)
                                   : read_tokens(files, rows, !sentencepiece);
  const std::vector<std::string> merges = read_merges(files);
  if (sentencepiece && !pieces) tokens.scores = scores_of(tokens, merges);
  if (plain) set_plain_types(files, rules.visible, tokens);
  std::string pre = "default";
  if (!sentencepiece) pre = gguf_pre_tokenizer(tokenizer, files.tokenizer, files.file);
  metadata.set_string(prefix + "model", plain ? rules.model : sentencepiece ? "llama" : "gpt2");
  if (!plain) metadata.set_string(prefix + "pre", pre);
  metadata.set_strings(prefix + "tokens", tokens.texts);
  if (sentencepiece) metadata.set_f32s(prefix + "scores", tokens.scores);
  metadata.set_i32s(prefix + "token_type", tokens.type_numbers());
  if (!pieces) metadata.set_strings(prefix + "merges", merges);
  for (const auto& [type, key] : kSpecialKeys)
    if (const auto id = files.special_ids.find(type); id != files.special_ids.end() && id->second < rows)
      metadata.set_u32(prefix + key + "_token_id", static_cast<std::uint32_t>(id->second));
  for (const auto& [key, content] : rules.special)
    if (const std::int64_t id = files.added_id(content);
        id >= 0 && id < rows && metadata.find(prefix + key + "_token_id") == nullptr)
      metadata.set_u32(prefix + key + "_token_id", static_cast<std::uint32_t>(id));

  VocabularyEnds ends = read_ends(files);
  // What llama.cpp does where the file says nothing, against what the tokenizer does.
  const std::vector<std::int32_t> with = tokenizer.encode("a", true), without = tokenizer.encode("a", false);
  const bool adds_bos = with.size() > without.size() && with.front() != without.front();
  const bool by_default = sentencepiece || pre == "llama-bpe" || pre == "llama3" || pre == "tekken";
  if (plain) {
    if (ends.bos) ends.bos = true;  // whatever the tokenizer does
  } else if (ends.bos.value_or(by_default) != adds_bos) {
    ends.bos = adds_bos;
  }
  if (ends.bos) metadata.set_bool(prefix + "add_bos_token", *ends.bos);
  if (ends.sep) metadata.set_bool(prefix + "add_sep_token", *ends.sep);
  if (ends.eos) metadata.set_bool(prefix + "add_eos_token", *ends.eos);
  const bool prepends = prepends_space(files.tokenizer);
  if (sentencepiece && !plain && !rules.never_prefixes && !prepends && !told_last)
    metadata.set_bool(prefix + "add_space_prefix", false);
  add_chat_template(io, checkpoint, files, metadata);
  if (told_last) metadata.set_bool(prefix + "add_space_prefix", space->as_bool() && prepends);
  if (rules.never_prefixes && (pieces || !prepends)) metadata.set_bool(prefix + "add_space_prefix", false);
  if (plain) {
    metadata.set_bool(prefix + "add_space_prefix", false);
    metadata.set_bool(prefix + "add_bos_token", true);
  }
  if (rows == rules.says_bos_at_size) metadata.set_bool(prefix + "add_bos_token", adds_bos);
}

}  // namespace llmq
