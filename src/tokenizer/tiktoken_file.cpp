#include "tokenizer/tiktoken_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/ecdsa.h"
#include "base/error.h"
#include "base/json_text.h"
#include "tokenizer/byte_alphabet.h"

namespace llmq {
namespace {

constexpr std::string_view kKimiClass = "TikTokenTokenizer";
constexpr std::int64_t kReservedTokens = 256;
constexpr std::size_t kLongestToken = 1024;  // bytes; each place to cut one is looked at
const std::string_view kKimiPattern =
    R"([\p{Han}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::size_t kMostMergeBytes = std::size_t{256} << 20;

[[noreturn]] void refuse_line(const std::string& file, std::size_t line, std::string found) {
  fail(ErrorKind::kBadInput,
       {std::move(found), file, fmt::format("line {}", line), "a line is a token in base64 and its rank"});
}

// Tokens by their ranks, which are 0, 1, 2, ... in some order.
std::vector<std::string> read_tokens(std::string_view text, const std::string& file) {
  std::vector<std::string> tokens;
  std::size_t line = 0, seen = 0;
  std::size_t lines = text.empty() || text.front() == '\n' ? 0 : 1;  // that say something
  for (std::size_t i = 1; i < text.size(); ++i) lines += text[i - 1] == '\n' && text[i] != '\n' ? 1u : 0u;
  tokens.resize(lines);
  while (!text.empty()) {
    ++line;
    const std::string_view one = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
    if (one.empty()) continue;
    const std::size_t space = one.find(' ');
    std::int64_t rank = -1;
    const char* const end = one.data() + one.size();
    if (space == std::string_view::npos || std::from_chars(one.data() + space + 1, end, rank).ptr != end ||
        rank < 0 || rank >= static_cast<std::int64_t>(lines))
      refuse_line(file, line, "has no rank below the number of tokens");
    const std::optional<std::string> token = from_base64(one.substr(0, space));
    if (!token || token->empty() || token->size() > kLongestToken)
      refuse_line(file, line, fmt::format("has no token of 1 to {} bytes", kLongestToken));
    std::string& place = tokens[static_cast<std::size_t>(rank)];
    if (!place.empty()) refuse_line(file, line, fmt::format("has rank {}, as an earlier one has", rank));
    place = *token;
    ++seen;
  }
  tokens.resize(seen);
  if (seen == 0 || std::any_of(tokens.begin(), tokens.end(), [](const std::string& t) { return t.empty(); }))
    fail(ErrorKind::kBadInput, {"ranks are not 0, 1, 2 and so on", file, {}, "is the download complete?"});
  return tokens;
}

// Each two tokens that make one, in the order in which they are merged, as `spelled` writes them.
Json merges_of(const std::vector<std::string>& tokens, const std::vector<std::string>& spelled,
               const std::string& file) {
  std::unordered_map<std::string_view, std::size_t> ranks;
  for (std::size_t rank = 0; rank < tokens.size(); ++rank) ranks[tokens[rank]] = rank;
  Json merges = Json::array();
  std::size_t bytes = 0;
  for (const std::string_view token : tokens) {
    std::vector<std::pair<std::size_t, std::size_t>> pairs;
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ranks.find(token.substr(0, cut)), right = ranks.find(token.substr(cut));
      if (left != ranks.end() && right != ranks.end()) pairs.emplace_back(left->second, right->second);
    }
    std::sort(pairs.begin(), pairs.end());
    if ((bytes += pairs.size() * token.size()) > kMostMergeBytes)
      fail(ErrorKind::kBadInput,
           {fmt::format("its tokens are made of one another in more than {} bytes", kMostMergeBytes),
            file,
            {},
            "no vocabulary is like that"});
    for (const auto& [left, right] : pairs) merges.push_back(Json::array({spelled[left], spelled[right]}));
  }
  return merges;
}

bool said_flag(const Json* token, const char* key, bool absent) {
  const Json* const value = token == nullptr ? nullptr : token->find(key);
  return value != nullptr && value->is_bool() ? value->as_bool() : absent;
}

Json reserved_tokens(std::int64_t first, const Json& config) {
  Json list = Json::array();
  const Json* const named = config.find("added_tokens_decoder");
  for (std::int64_t id = first; id < first + kReservedTokens; ++id) {
    const Json* const token =
        named != nullptr && named->is_object() ? named->find(std::to_string(id)) : nullptr;
    const std::string content = token != nullptr && token->is_object() ? text_at(*token, "content") : "";
    list.push_back(
        Json::object({{"id", id},
                      {"content", content.empty() ? fmt::format("<|reserved_token_{}|>", id) : content},
                      {"single_word", false},
                      {"lstrip", false},
                      {"rstrip", false},
                      {"normalized", false},
                      {"special", said_flag(token, "special", true)}}));
  }
  return list;
}

}  // namespace

Json tiktoken_tokenizer(Io& io, const Path& file, const Json& config) {
  const std::string kind = text_at(config, "tokenizer_class");
  if (kind != kKimiClass)
    fail(
        ErrorKind::kUnsupported,
        {fmt::format("splits text as the Python class \"{}\" beside it says, which llmq does not know", kind),
         file.string(), "tokenizer_class",
         "write a tokenizer.json with Transformers: convert_slow_tokenizer.TikTokenConverter(vocab_file, "
         "pattern).converted().save(\"tokenizer.json\")"});
  const std::vector<std::string> tokens = read_tokens(read_text(io, file), file.string());
  std::vector<std::string> spelled;
  for (const std::string& token : tokens) spelled.push_back(to_byte_alphabet(token));
  Json vocabulary = Json::object();
  for (std::size_t rank = 0; rank < spelled.size(); ++rank)
    vocabulary.members().emplace_back(spelled[rank], static_cast<std::int64_t>(rank));
  const Json split = Json::object({{"type", "Split"},
                                   {"pattern", Json::object({{"Regex", kKimiPattern}})},
                                   {"behavior", "Isolated"},
                                   {"invert", false}});
  const Json bytes = Json::object(
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
  return Json::object({{"version", "1.0"},
                       {"truncation", nullptr},
                       {"padding", nullptr},
                       {"added_tokens", reserved_tokens(static_cast<std::int64_t>(tokens.size()), config)},
                       {"normalizer", nullptr},
                       {"pre_tokenizer",
                        Json::object({{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}})},
                       {"post_processor", nullptr},
                       {"decoder", Json::object({{"type", "ByteLevel"}})},
                       {"model", Json::object({{"type", "BPE"},
                                               {"dropout", nullptr},
                                               {"unk_token", nullptr},
                                               {"fuse_unk", false},
                                               {"byte_fallback", false},
                                               {"ignore_merges", true},
                                               {"vocab", std::move(vocabulary)},
                                               {"merges", merges_of(tokens, spelled, file.string())}})}});
}

}  // namespace llmq
