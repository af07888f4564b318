// What the golden files cannot show: refusals, hostile input, merging against its definition, time, streams.
#include "tokenizer/tokenizer.h"
#include "base/utf8.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <random>

#include "base/error.h"
#include "tokenizer/normalizer.h"

namespace llmq {
namespace {

Json small_json() {
  return Json::parse(
      R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3}, "merges": ["a b"]}})",
      "small");
}

ErrorKind kind_of(const Json& json) {
  try {
    Tokenizer::parse(json, "small");
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "was taken";
  return ErrorKind::kInternal;
}

TEST(Tokenizer, RefusesUnknownComponentsByName) {
  for (const char* field : {"normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
    Json json = small_json();
    json[field] = Json::object({{"type", "Precompiled"}});
    try {
      Tokenizer::parse(json, "small");
      ADD_FAILURE() << field;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      EXPECT_NE(std::string(error.what()).find("Precompiled"), std::string::npos) << error.what();
    }
  }
  Json json = small_json();
  json["model"]["type"] = "Unigram";
  EXPECT_EQ(kind_of(json), ErrorKind::kUnsupported);
  json = small_json();
  json["model"]["continuing_subword_prefix"] = "##";
  EXPECT_EQ(kind_of(json), ErrorKind::kUnsupported);
  json = small_json();
  json["model"]["dropout"] = 0.1;
  EXPECT_EQ(kind_of(json), ErrorKind::kUnsupported);
}

TEST(Tokenizer, RefusesModelsThatContradictThemselves) {
  const char* const bad[] = {R"({"vocab": {"a": 0, "b": 0}, "merges": []})",
                             R"({"vocab": {"a": -1}, "merges": []})",
                             R"({"vocab": {"a": 99999999999}, "merges": []})",
                             R"({"vocab": {"a": 0, "b": 1}, "merges": ["a b"]})",
                             R"({"vocab": {"a": 0}, "merges": ["a a a"]})",
                             R"({"vocab": {"a": 0}, "merges": [["a"]]})",
                             R"({"vocab": {"a": 0}, "merges": [1]})",
                             R"({"vocab": [], "merges": []})",
                             R"({"vocab": {"a": 0}, "merges": [], "unk_token": "u"})",
                             R"({"merges": []})"};
  for (const char* model : bad) {
    Json json = Json::object();
    json["model"] = Json::parse(model, "small");
    EXPECT_EQ(kind_of(json), ErrorKind::kBadInput) << model;
  }
}

TEST(Tokenizer, NamesTheByteThatIsNotUtf8) {
  const Tokenizer tokenizer = Tokenizer::parse(small_json(), "small");
  const std::pair<std::string, const char*> bad[] = {
      {"ab\xff", "byte 2"},           {"a\xc3", "byte 1"},
      {"\xed\xa0\x80", "byte 0"},     {"abcdefghi\xc0\x80", "byte 9"},
      {"\xf4\x90\x80\x80", "byte 0"}, {"\xe0\x80\x80", "byte 0"}};
  for (const auto& [text, where] : bad) {
    try {
      tokenizer.encode(text);
      ADD_FAILURE() << where;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
      EXPECT_NE(std::string(error.what()).find(where), std::string::npos) << error.what();
    }
  }
}

// "Take the merge of lowest rank, leftmost first, until there is none", word for word.
std::vector<std::string> merge_by_definition(
    std::vector<std::string> symbols, const std::map<std::pair<std::string, std::string>, int>& ranks) {
  for (;;) {
    int best = -1;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = ranks.find({symbols[i], symbols[i + 1]});
      if (found != ranks.end() && (best < 0 || found->second < best)) {
        best = found->second;
        at = i;
      }
    }
    if (best < 0) return symbols;
    symbols[at] += symbols[at + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

// Random merges in random order, so that later merges may have lower ranks than those that make their pieces.
// The three lengths take the scan, the heap and the queue of ranks. 'd' is in no merge; 'e' has no token:
// with `fallback` it becomes a byte's, with `unknown` runs of it become one unknown, else it is left out and
// what stands around it may merge. Where words can be cut, those of more than 48 characters without 'd' are
// cut by runs.
TEST(Bpe, MergesAsDefined) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    const bool fallback = round % 3 == 1, unknown = round % 3 == 2;
    std::vector<std::string> tokens = {"a", "b", "c", "d"};
    std::vector<std::pair<std::string, std::string>> merges;
    std::map<std::string, bool> made;
    for (int i = 0; i < 25; ++i) {
      const std::string left = tokens[random() % tokens.size()], right = tokens[random() % tokens.size()];
      if (left == "d" || right == "d") continue;  // of which no merge is made
      if (left.size() + right.size() > 12) continue;
      merges.emplace_back(left, right);
      if (!made[left + right] && (left + right).size() > 1) tokens.push_back(left + right);
      made[left + right] = true;
    }
    std::shuffle(merges.begin(), merges.end(), random);
    Json vocab = Json::object(), list = Json::array();
    std::map<std::pair<std::string, std::string>, int> ranks;
    for (const std::string& token : tokens)
      vocab[token] = static_cast<std::int64_t>(vocab.is_object() ? vocab.members().size() : 0);
    for (int byte = 0; fallback && byte < 256; ++byte) {
      static const char* const kHex = "0123456789ABCDEF";
      vocab[std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">"] =
          static_cast<std::int64_t>(vocab.members().size());
    }
    if (unknown) vocab["<unk>"] = static_cast<std::int64_t>(vocab.members().size());
    for (std::size_t i = 0; i < merges.size(); ++i) {
      list.push_back(Json::array({Json(merges[i].first), Json(merges[i].second)}));
      ranks[merges[i]] = static_cast<int>(i);
    }
    Json json = Json::object();
    json["model"] = Json::object({{"vocab", vocab}, {"merges", list}, {"byte_fallback", fallback}});
    if (unknown) json["model"]["unk_token"] = "<unk>";
    json["model"]["fuse_unk"] = unknown;
    const Tokenizer tokenizer = Tokenizer::parse(json, "random");
    for (const std::size_t length : {1u, 2u, 7u, 24u, 25u, 300u, 301u}) {
      std::vector<std::string> symbols;
      std::string text;
      for (std::size_t i = 0; i < length; ++i) {
        const char letter =
            random() % 64 == 0 ? 'e' : static_cast<char>('a' + random() % (length == 300 ? 3 : 4));
        text += letter;
        if (letter != 'e' || fallback)
          symbols.emplace_back(letter == 'e' ? "<0x65>" : std::string(1, letter));
        else if (unknown && (symbols.empty() || symbols.back() != "<unk>"))
          symbols.emplace_back("<unk>");
      }
      std::vector<std::string> got;
      for (const std::int32_t id : tokenizer.encode(text)) got.push_back(tokenizer.token(id));
      ASSERT_EQ(got, merge_by_definition(symbols, ranks)) << text;
    }
    // The queue of ranks takes words of more than 16,384 symbols, too long for the definition: blocks that no
    // merge joins must come out alike.
    std::string block;
    for (int i = 0; i < 1500; ++i) block += static_cast<char>('a' + random() % 3);
    block += 'd';
    const std::vector<std::int32_t> once = tokenizer.encode(block);
    std::string blocks;
    std::vector<std::int32_t> expected;
    for (int i = 0; i < 12; ++i) {
      blocks += block;
      expected.insert(expected.end(), once.begin(), once.end());
    }
    ASSERT_EQ(tokenizer.encode(blocks), expected);
  }
}

// A merge of a stand-in joins what no characters of the text show: such a vocabulary's words are not cut. As
// Hugging Face tokenizers 0.23 does.
TEST(Bpe, MergesStandInsForUnknownCharactersAndBytes) {
  Json json = Json::object();
  json["model"] = Json::parse(
      R"({"vocab": {"a": 0, "b": 1, "<unk>": 2, "<unk>a": 3, "<unk>ab": 4}, "unk_token": "<unk>", "fuse_unk": true,
          "merges": [["<unk>", "a"], ["<unk>a", "b"]]})",
      "unknown");
  std::string text;
  for (int i = 0; i < 20; ++i) text += "xab";
  EXPECT_EQ(Tokenizer::parse(json, "unknown").encode(text), std::vector<std::int32_t>(20, 4));
  Json vocab = Json::object({{"a", 0}, {"<0x78>a", 1}});
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = std::int64_t{2} + byte;
  const Json merges = Json::array({Json::array({Json("<0x78>"), Json("a")})});
  json["model"] = Json::object({{"vocab", vocab}, {"merges", merges}, {"byte_fallback", true}});
  EXPECT_EQ(Tokenizer::parse(json, "fallback").encode("xaxa"), (std::vector<std::int32_t>{1, 1}));
}

// Merges that pass over spaces and line ends, with a pre-tokenizer that finds no space any more or none; ids
// of tokenizers 0.23 for the same file.
TEST(Bpe, MergesWholeTextsAsGemmaDoes) {
  Json json = Json::parse(
      R"({"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
          "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]},
          "added_tokens": [{"id": 1, "content": "<turn>", "single_word": false, "lstrip": false, "rstrip": false,
                            "normalized": false, "special": true}],
          "model": {"type": "BPE", "byte_fallback": true, "fuse_unk": true, "unk_token": "<unk>",
            "vocab": {"<unk>": 0, "<turn>": 1, "\n": 2, "\n\n": 3, "▁": 4, "▁▁": 5, "a": 6, "b": 7, "▁a": 8, "ab": 9,
                      "▁ab": 10},
            "merges": [["\n", "\n"], ["▁", "▁"], ["a", "b"], ["▁", "a"], ["▁", "ab"]]}})",
      "whole");
  for (int byte = 0; byte < 256; ++byte)
    json["model"]["vocab"][fmt::format("<0x{:02X}>", byte)] = std::int64_t{11} + byte;
  const std::string text = "a ab  b\n\n\né<turn> ab";
  const std::vector<std::int32_t> ids{6, 10, 5, 7, 3, 2, 11 + 0xC3, 11 + 0xA9, 1, 10};
  for (const bool splits : {false, true}) {
    if (splits)
      json["pre_tokenizer"] = Json::parse(
          R"({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false})",
          "split");
    const Tokenizer tokenizer = Tokenizer::parse(json, "whole");
    EXPECT_EQ(tokenizer.encode(text), ids);
    EXPECT_EQ(tokenizer.decode(ids), text);
  }
}

TEST(Tokenizer, LeavesCharactersWithoutTokenOut) {
  const Tokenizer tokenizer = Tokenizer::parse(small_json(), "small");
  EXPECT_EQ(tokenizer.encode("xaybc"),
            (std::vector<std::int32_t>{2, 3}));  // as Hugging Face does without unk_token
}

// Ten times the text takes ten times as long, give or take noise, and not a hundred times.
TEST(Tokenizer, TakesLinearTime) {
  const Path path = Path(LLMQ_SOURCE_DIR) / "tests/fixtures/tokenizers";
  for (const char* name : {"llama2.json", "llama3.json", "qwen2.json"}) {
    const Tokenizer tokenizer =
        Tokenizer::parse(Json::parse(read_text(system_io(), path / name), name), name);
    for (const std::string part : {" ", "a", "7", "\xcc\x81", "\n", "\xcc\x96\xcc\x81", "the "}) {
      const auto seconds = [&](std::size_t bytes) {
        std::string text;
        while (text.size() < bytes) text += part;
        double best = 1e9;
        for (int i = 0; i < 3; ++i) {
          const auto start = std::chrono::steady_clock::now();
          tokenizer.encode(text);
          best =
              std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        }
        return best;
      };
      EXPECT_LT(seconds(1000000), 40 * seconds(100000) + 0.05)
          << name << " " << part;  // quadratic would be 100 times
    }
  }
}

TEST(UnicodeNormalize, OrdersComposesAndLeavesNewerMarksAlone) {
  EXPECT_EQ(unicode_normalize("e\u0301", NormalForm::kC), "\u00e9");
  EXPECT_EQ(unicode_normalize("a\u0301\u0316", NormalForm::kC), "\u00e1\u0316");
  EXPECT_EQ(unicode_normalize("\u00e9", NormalForm::kD), "e\u0301");
  EXPECT_EQ(unicode_normalize("\ufb01", NormalForm::kKC), "fi");
  EXPECT_EQ(unicode_normalize("\u1100\u1161\u11a8", NormalForm::kC), "\uac01");
  EXPECT_EQ(unicode_normalize("plain", NormalForm::kC), "plain");
  EXPECT_EQ(unicode_normalize("\U0001e08f\u0316", NormalForm::kD),
            "\U0001e08f\u0316");  // Unicode 15, not in Hugging Face's tables
}

TEST(Utf8Stream, HoldsBackUntilCharactersAreWhole) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xf0\x9f"), "a");
  EXPECT_EQ(stream.push("\xa6"), "");
  EXPECT_EQ(stream.push("\x99!\xff"), "\xf0\x9f\xa6\x99!\xef\xbf\xbd");
  EXPECT_EQ(stream.push("\xe4\xbd"), "");
  EXPECT_EQ(stream.finish(), "\xef\xbf\xbd");
  EXPECT_EQ(stream.finish(), "");
}

}  // namespace
}  // namespace llmq
