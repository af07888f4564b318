// Sources: llama.cpp, src/llama-vocab.cpp (names of pre-tokenizers and defaults); Transformers,
// convert_slow_tokenizer.py (generate_merges).
#include "tokenizer/gguf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizer/known_patterns.h"
#include "tokenizer/string_index.h"
#include "tokenizer/token_type.h"

namespace llmq {
namespace {

struct Vocabulary {
  std::vector<std::string_view> tokens;
  std::vector<TokenType> types;
};

Vocabulary read_vocabulary(const GgufHeader& header) {
  Vocabulary made{header.strings("tokenizer.ggml.tokens"), {}};
  if (header.find("tokenizer.ggml.token_type") != nullptr)
    for (const std::int64_t number : header.integers("tokenizer.ggml.token_type"))
      made.types.push_back(is_token_type(number) ? static_cast<TokenType>(number) : TokenType::kNormal);
  if (made.types.empty()) made.types.assign(made.tokens.size(), TokenType::kNormal);
  if (made.types.size() != made.tokens.size())
    fail(ErrorKind::kBadInput,
         {fmt::format("{} token types for {} tokens", made.types.size(), made.tokens.size()),
          header.file,
          "tokenizer.ggml.token_type",
          {}});
  for (std::size_t i = 0; i < made.tokens.size(); ++i)
    if (const auto at = first_invalid_utf8(made.tokens[i]))
      fail(ErrorKind::kBadInput, {fmt::format("token {} is not UTF-8 at its byte {}", i, *at),
                                  header.file,
                                  "tokenizer.ggml.tokens",
                                  {}});
  return made;
}

std::optional<std::size_t> special_id(const GgufHeader& header, const char* name,
                                      const Vocabulary& vocabulary) {
  const auto id = header.find_integer(std::string("tokenizer.ggml.") + name + "_token_id");
  if (!id) return std::nullopt;
  if (*id < 0 || static_cast<std::uint64_t>(*id) >= vocabulary.tokens.size())
    fail(ErrorKind::kBadInput,
         {fmt::format("{} token id {} is outside the vocabulary of {}", name, *id, vocabulary.tokens.size()),
          header.file,
          "tokenizer.ggml",
          {}});
  return static_cast<std::size_t>(*id);
}

Json split_step(std::string_view regex) {
  return Json::object({{"type", "Split"},
                       {"pattern", Json::object({{"Regex", regex}})},
                       {"behavior", "Isolated"},
                       {"invert", false}});
}

Json byte_level(bool use_regex) {
  return Json::object(
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}});
}

Json sequence(const char* field, std::initializer_list<Json> steps) {
  return Json::object({{"type", "Sequence"}, {field, Json::array(steps)}});
}

// DeepSeek V3's last split, of what is neither a number nor of a script without spaces.
const std::string_view kDeepseek3Rest =
    R"re([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)re"
    R"re( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";

// GPT-4o's and Llama 4's: words end where capitals begin again, and take an apostrophe's ending along.
const std::string_view kGpt4o =
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)re"
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)re"
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)re"
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";

// Mistral's since Nemo: words end where capitals begin again, and numbers are digits.
const std::string_view kTekken =
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)re"
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)re"
    R"re(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";

struct PreTokenizerParts {
  Json pre_tokenizer, normalizer;
  bool ignore_merges = false, adds_bos = false;
};

PreTokenizerParts pre_tokenizer_named(std::string_view name, const std::string& file) {
  const auto is = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (is({"gpt-2", "gpt2"})) return {byte_level(true), {}};
  if (is({"smollm", "starcoder", "refact", "command-r"}))
    return {sequence("pretokenizers",
                     {Json::object({{"type", "Digits"}, {"individual_digits", true}}), byte_level(true)}),
            is({"command-r"}) ? Json::object({{"type", "NFC"}}) : Json()};
  if (is({"tekken"}))
    return {sequence("pretokenizers", {split_step(kTekken), byte_level(false)}), {}, true, true};
  if (is({"llama-bpe", "llama3", "llama-v3"}))
    return {sequence("pretokenizers", {split_step(kLlama3Pattern), byte_level(false)}), {}, true, true};
  if (is({"qwen2"}))
    return {sequence("pretokenizers", {split_step(kQwen2Pattern), byte_level(false)}),
            Json::object({{"type", "NFC"}})};
  if (is({"glm4", "chatglm-bpe", "dbrx"}))  // of GLM-4.5 and of OLMo 2 and 3, too
    return {sequence("pretokenizers", {split_step(kLlama3Pattern), byte_level(false)}), {}};
  if (is({"deepseek-v3"}))
    return {sequence("pretokenizers", {split_step(R"(\p{N}{1,3})"), split_step("[一-龥぀-ゟ゠-ヿ]+"),
                                       split_step(kDeepseek3Rest), byte_level(false)}),
            {}};
  if (is({"falcon"}))
    return {sequence("pretokenizers", {split_step(R"([\p{P}\$\+<=>\^~\|`]+)"), split_step(kGpt2Pattern),
                                       split_step("[0-9][0-9][0-9]"), byte_level(false)}),
            {}};
  if (is({"gpt-4o", "llama4"}))
    return {sequence("pretokenizers", {split_step(kGpt4o), byte_level(false)}), {}};
  if (is({"default", ""}))  // llama.cpp's, for files that name none
    return {sequence("pretokenizers",
                     {split_step(R"([\p{P}\$\+<=>\^~\|]+)"), split_step(kGpt2Pattern),
                      split_step(R"(\p{N}+)"), split_step("[0-9][0-9][0-9]"), byte_level(false)}),
            {}};
  fail(ErrorKind::kUnsupported, {fmt::format("pre-tokenizer '{}' is not known to llmq", name), file,
                                 "tokenizer.ggml.pre", "use the model's directory with tokenizer.json"});
}

// Pairs of tokens whose join is a token, best score first; see generate_merges in Transformers.
Json merges_from_scores(const Vocabulary& vocabulary, const std::vector<double>& scores) {
  struct Made {
    double score;
    std::size_t left_length, right_length;  // in characters
    std::string_view left, right;
  };
  StringIndex ids(vocabulary.tokens.size());
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i)
    ids.insert(vocabulary.tokens[i], static_cast<std::int32_t>(i));
  std::vector<Made> made;
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const std::string_view token = vocabulary.tokens[i];
    std::vector<std::pair<std::pair<std::int32_t, std::int32_t>, Made>> here;
    std::size_t characters = 0, total = 0;
    for (const char c : token) total += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    for (std::size_t cut = 0; cut < token.size(); cut += read_utf8(token, cut).bytes, ++characters) {
      if (cut == 0) continue;
      const std::string_view left = token.substr(0, cut), right = token.substr(cut);
      const auto left_id = ids.find(left), right_id = ids.find(right);
      if (left_id && right_id)
        here.push_back({{*left_id, *right_id}, {scores[i], characters, total - characters, left, right}});
    }
    std::stable_sort(here.begin(), here.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& entry : here) made.push_back(entry.second);
  }
  std::stable_sort(made.begin(), made.end(), [](const Made& a, const Made& b) {
    return std::tie(a.score, a.left_length, a.right_length) >
           std::tie(b.score, b.left_length, b.right_length);
  });
  Json merges = Json::array();
  for (const Made& merge : made) merges.push_back(Json::array({Json(merge.left), Json(merge.right)}));
  return merges;
}

Json template_processing(const Vocabulary& vocabulary, std::optional<std::size_t> bos,
                         std::optional<std::size_t> eos) {
  Json single = Json::array(), pair = Json::array(), special = Json::object();
  const auto token_piece = [&](std::size_t id, int type) {
    return Json::object({{"SpecialToken", Json::object({{"id", vocabulary.tokens[id]}, {"type_id", type}})}});
  };
  const auto text_piece = [](const char* name, int type) {
    return Json::object({{"Sequence", Json::object({{"id", name}, {"type_id", type}})}});
  };
  for (int type = 0; type < 2; ++type) {
    if (bos) pair.push_back(token_piece(*bos, type));
    pair.push_back(text_piece(type == 0 ? "A" : "B", type));
    if (eos) pair.push_back(token_piece(*eos, type));
    if (type == 0) single = pair;
  }
  for (const auto& id : {bos, eos}) {
    if (!id || special.find(vocabulary.tokens[*id]) != nullptr) continue;
    const Json token(vocabulary.tokens[*id]);
    special[vocabulary.tokens[*id]] =
        Json::object({{"id", token},
                      {"ids", Json::array({Json(static_cast<std::int64_t>(*id))})},
                      {"tokens", Json::array({token})}});
  }
  return Json::object(
      {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}});
}

Json added_tokens(const Vocabulary& vocabulary) {
  Json list = Json::array();
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const TokenType type = vocabulary.types[i];
    if (type != TokenType::kControl && type != TokenType::kUserDefined && type != TokenType::kUnknown)
      continue;
    list.push_back(Json::object({{"id", static_cast<std::int64_t>(i)},
                                 {"content", vocabulary.tokens[i]},
                                 {"single_word", false},
                                 {"lstrip", false},
                                 {"rstrip", false},
                                 {"normalized", false},
                                 {"special", type != TokenType::kUserDefined}}));
  }
  return list;
}

Json vocabulary_json(const Vocabulary& vocabulary) {
  Json::Object members;
  members.reserve(vocabulary.tokens.size());
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i)
    members.emplace_back(std::string(vocabulary.tokens[i]), Json(static_cast<std::int64_t>(i)));
  return Json(std::move(members));
}

Json bpe_model(const Vocabulary& vocabulary, Json merges, const Json& unknown, bool byte_fallback,
               bool ignore_merges) {
  return Json::object({{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", unknown},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", byte_fallback},
                       {"byte_fallback", byte_fallback},
                       {"ignore_merges", ignore_merges},
                       {"vocab", vocabulary_json(vocabulary)},
                       {"merges", std::move(merges)}});
}

Json file_pair_merges(const GgufHeader& header) {
  Json merges = Json::array();
  for (const std::string_view merge : header.strings("tokenizer.ggml.merges")) {
    const std::size_t space =
        merge.find(' ', 1);  // a piece is not empty, and byte-level pieces hold no space
    if (space == std::string_view::npos)
      fail(ErrorKind::kBadInput,
           {fmt::format("merge '{}' has no space in it", merge), header.file, "tokenizer.ggml.merges", {}});
    merges.push_back(Json::array({Json(merge.substr(0, space)), Json(merge.substr(space + 1))}));
  }
  return merges;
}

struct Ends {
  std::optional<std::size_t> bos, eos;  // put round every text
};

Ends ends_of(const GgufHeader& header, const Vocabulary& vocabulary, bool adds_bos) {
  Ends ends;
  if (header.find_boolean("tokenizer.ggml.add_bos_token").value_or(adds_bos))
    ends.bos = special_id(header, "bos", vocabulary);
  if (header.find_boolean("tokenizer.ggml.add_eos_token").value_or(false))
    ends.eos = special_id(header, "eos", vocabulary);
  return ends;
}

Json tokenizer_json(const Vocabulary& vocabulary, Json normalizer, Json pre_tokenizer, const Ends& ends,
                    Json decoder, Json model) {
  return Json::object({{"version", "1.0"},
                       {"truncation", nullptr},
                       {"padding", nullptr},
                       {"added_tokens", added_tokens(vocabulary)},
                       {"normalizer", std::move(normalizer)},
                       {"pre_tokenizer", std::move(pre_tokenizer)},
                       {"post_processor", template_processing(vocabulary, ends.bos, ends.eos)},
                       {"decoder", std::move(decoder)},
                       {"model", std::move(model)}});
}

Json byte_level_tokenizer(const GgufHeader& header, const Vocabulary& vocabulary) {
  const std::string_view name = header.find_string("tokenizer.ggml.pre").value_or("");
  PreTokenizerParts parts = pre_tokenizer_named(name, header.file);
  return tokenizer_json(vocabulary, parts.normalizer, parts.pre_tokenizer,
                        ends_of(header, vocabulary, parts.adds_bos), byte_level(true),
                        bpe_model(vocabulary, file_pair_merges(header), nullptr, false, parts.ignore_merges));
}

Json sentencepiece_tokenizer(const GgufHeader& header, const Vocabulary& vocabulary) {
  const std::vector<double> scores = header.numbers("tokenizer.ggml.scores");
  if (scores.size() != vocabulary.tokens.size())
    fail(ErrorKind::kBadInput,
         {fmt::format("{} scores for {} tokens", scores.size(), vocabulary.tokens.size()),
          header.file,
          "tokenizer.ggml.scores",
          {}});
  const bool has_merges = header.find("tokenizer.ggml.merges") != nullptr;
  const bool prefix = header.find_boolean("tokenizer.ggml.add_space_prefix").value_or(true);
  const auto unknown = special_id(header, "unknown", vocabulary);
  const auto replace = [](std::string_view from, std::string_view to) {
    return Json::object(
        {{"type", "Replace"}, {"pattern", Json::object({{"String", from}})}, {"content", to}});
  };
  Json normalizer = replace(" ", kSpaceLetter);
  Json decoder = sequence("decoders", {replace(kSpaceLetter, " "), Json::object({{"type", "ByteFallback"}}),
                                       Json::object({{"type", "Fuse"}})});
  if (prefix) {
    normalizer =
        sequence("normalizers", {Json::object({{"type", "Prepend"}, {"prepend", kSpaceLetter}}), normalizer});
    decoder["decoders"].push_back(
        Json::object({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}));
  }
  return tokenizer_json(
      vocabulary, normalizer, nullptr, ends_of(header, vocabulary, true), decoder,
      bpe_model(vocabulary, has_merges ? file_pair_merges(header) : merges_from_scores(vocabulary, scores),
                unknown ? Json(vocabulary.tokens[*unknown]) : Json(), true, false));
}

}  // namespace

GgufTokenizer gguf_tokenizer(const GgufHeader& header) {
  const std::string_view model = header.string("tokenizer.ggml.model");
  const Vocabulary vocabulary = read_vocabulary(header);
  GgufTokenizer made;
  if (model == "gpt2")
    made.tokenizer = byte_level_tokenizer(header, vocabulary);
  else if (model == "llama" || model == "gemma4")  // whose merges are there
    made.tokenizer = sentencepiece_tokenizer(header, vocabulary);
  else
    fail(ErrorKind::kUnsupported,
         {fmt::format("tokenizer model '{}' is not known to llmq", model), header.file,
          "tokenizer.ggml.model", "use the model's directory with tokenizer.json"});

  made.config = Json::object({{"tokenizer_class", "PreTrainedTokenizerFast"}});
  made.special_tokens = Json::object();
  for (const auto& [name, key] : {std::pair{"bos", "bos_token"},
                                  {"eos", "eos_token"},
                                  {"unknown", "unk_token"},
                                  {"padding", "pad_token"}}) {
    const auto id = special_id(header, name, vocabulary);
    if (!id) continue;
    made.config[key] = Json(vocabulary.tokens[*id]);
    made.special_tokens[key] = Json(vocabulary.tokens[*id]);
  }
  if (const auto length = header.find_integer(
          std::string(header.find_string("general.architecture").value_or("llama")) + ".context_length"))
    made.config["model_max_length"] = *length;
  if (const auto chat = header.find_string("tokenizer.chat_template"))
    made.config["chat_template"] = Json(*chat);
  return made;
}

}  // namespace llmq
