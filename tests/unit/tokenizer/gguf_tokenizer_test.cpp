// A vocabulary inside a GGUF gives the ids of the tokenizer.json it came from; what llmq does not know is
// refused by name.
#include "tokenizer/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/unit/io/hostile_bytes.h"
#include "tokenizer/tokenizer.h"

namespace llmq {
namespace {

using testing::GgufBytes;

void add_strings(GgufBytes& file, const char* key, const std::vector<std::string>& values) {
  std::string bytes;
  for (const std::string& value : values) bytes += testing::gguf_text(value);
  file.array(key, GgufType::kString, values.size(), bytes);
}

Json fixture(const std::string& name) {
  return Json::parse(read_text(system_io(), Path(LLMQ_SOURCE_DIR) / "tests/fixtures/tokenizers" / name),
                     name);
}

// The vocabulary of a fixture as GGUF metadata. `pre`: for byte-level ones; else SentencePiece-style, with
// scores that fall with the id.
GgufBytes gguf_of(const Json& json, const char* pre) {
  std::vector<std::string> tokens(json.at("model").at("vocab").members().size()), merges;
  std::string types, scores;
  for (const auto& [token, id] : json.at("model").at("vocab").members())
    tokens.at(static_cast<std::size_t>(id.as_integer())) = token;
  for (const std::string& token : tokens) {
    std::int32_t type = token.size() == 6 && token.rfind("<0x", 0) == 0 ? 6 : 1;
    for (const Json& added : json.at("added_tokens").items())
      if (added.at("content").as_string() == token) type = token == "<unk>" ? 2 : 3;
    types += testing::little_endian(type);
    scores += testing::little_endian(-static_cast<float>(scores.size()));
  }
  for (const Json& merge : json.at("model").at("merges").items())
    merges.push_back(merge.items()[0].as_string() + " " + merge.items()[1].as_string());
  GgufBytes file;
  file.text("general.architecture", "llama").text("tokenizer.ggml.model", pre != nullptr ? "gpt2" : "llama");
  if (pre != nullptr) file.text("tokenizer.ggml.pre", pre);
  add_strings(file, "tokenizer.ggml.tokens", tokens);
  file.array("tokenizer.ggml.token_type", GgufType::kI32, tokens.size(), types);
  if (pre != nullptr)
    add_strings(file, "tokenizer.ggml.merges", merges);
  else
    file.array("tokenizer.ggml.scores", GgufType::kF32, tokens.size(), scores)
        .u32("tokenizer.ggml.unknown_token_id", 0);
  file.u32("tokenizer.ggml.bos_token_id", 1).text("tokenizer.chat_template", "{{ messages }}");
  return file;
}

GgufTokenizer files_of(const GgufBytes& file) {
  const std::string bytes = file.bytes();
  return gguf_tokenizer(parse_gguf(std::as_bytes(std::span(bytes)), "test.gguf"));
}

class GgufTokenizerFamilies : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(GgufTokenizerFamilies, GiveTheIdsOfTokenizerJson) {
  const auto [name, pre] = GetParam();
  const Json json = fixture(std::string(name) + ".json"), golden = fixture("golden.json");
  const Tokenizer from_json = Tokenizer::parse(json, name),
                  from_gguf = Tokenizer::parse(files_of(gguf_of(json, pre)).tokenizer, "test.gguf");
  for (const Json& text : golden.at("texts").items())
    EXPECT_EQ(from_gguf.encode(text.as_string(), false), from_json.encode(text.as_string(), false))
        << text.as_string();
}

INSTANTIATE_TEST_SUITE_P(All, GgufTokenizerFamilies,
                         ::testing::Values(std::pair{"smollm", "smollm"},
                                           std::pair{"ignore_merges", "llama-bpe"}, std::pair{"glm4", "glm4"},
                                           std::pair{"glm4", "chatglm-bpe"}, std::pair{"glm4", "dbrx"},
                                           std::pair{"smollm", "starcoder"}, std::pair{"smollm", "refact"},
                                           std::pair{"deepseek3", "deepseek-v3"},
                                           std::pair{"o200k", "gpt-4o"}, std::pair{"o200k", "llama4"},
                                           std::pair<const char*, const char*>{"llama2", nullptr}));

// Command R's is SmolLM's of text in NFC.
TEST(GgufTokenizer, CommandRComposesCharacters) {
  Json json = fixture("smollm.json");
  const Tokenizer read = Tokenizer::parse(files_of(gguf_of(json, "command-r")).tokenizer, "test.gguf");
  json["normalizer"] = Json::object({{"type", "NFC"}});
  const Tokenizer composing = Tokenizer::parse(json, "smollm.json");
  for (const char* const text : {"Hello, world 12", "A\u030a b", "\u1e9b\u0323 x", "q\u0307\u0323"})
    EXPECT_EQ(read.encode(text, false), composing.encode(text, false)) << text;
  EXPECT_EQ(read.encode("cafe\u0301 12", false), read.encode("caf\u00e9 12", false));
}

// Words of Mistral's end where capitals begin, whatever could be merged: a token of two words is none.
TEST(GgufTokenizer, TekkenSplitsWordsByTheirCapitals) {
  const auto words = [](const char* pre, const char* text) {
    const GgufBytes file = gguf_of(fixture("smollm.json"), pre);
    return Tokenizer::parse(files_of(file).tokenizer, "test.gguf").encode(text, false);
  };
  const auto joined = [&](const char* one, const char* other) {
    std::vector<std::int32_t> ids = words("tekken", one);
    for (const std::int32_t id : words("tekken", other)) ids.push_back(id);
    return ids;
  };
  EXPECT_EQ(words("tekken", "theThe"), joined("the", "The"));
  EXPECT_EQ(words("tekken", "don't"), joined("don", "'t"));
  EXPECT_EQ(words("tekken", "12"), joined("1", "2"));
  EXPECT_TRUE(files_of(gguf_of(fixture("smollm.json"), "tekken"))
                  .tokenizer.at("model")
                  .at("ignore_merges")
                  .as_bool());
}

TEST(GgufTokenizer, CarriesSpecialTokensAndTemplate) {
  const GgufTokenizer files = files_of(gguf_of(fixture("smollm.json"), "smollm"));
  EXPECT_EQ(files.config.at("bos_token").as_string(), "<|im_start|>");
  EXPECT_EQ(files.special_tokens.at("bos_token").as_string(), "<|im_start|>");
  EXPECT_EQ(files.config.at("chat_template").as_string(), "{{ messages }}");
}

std::vector<std::int32_t> words_of(const char* pre, const std::vector<const char*>& texts) {
  const Tokenizer read =
      Tokenizer::parse(files_of(gguf_of(fixture("smollm.json"), pre)).tokenizer, "test.gguf");
  std::vector<std::int32_t> ids;
  for (const char* const text : texts)
    for (const std::int32_t id : read.encode(text, false)) ids.push_back(id);
  return ids;
}

// Three digits at a time, and punctuation apart from what stands before it.
TEST(GgufTokenizer, FalconSplitsNumbersAndPunctuation) {
  EXPECT_EQ(words_of("falcon", {"12345"}), words_of("falcon", {"123", "45"}));
  EXPECT_EQ(words_of("falcon", {"a = b"}), words_of("falcon", {"a", " ", "=", " b"}));
  EXPECT_EQ(words_of("falcon", {"don't"}), words_of("falcon", {"don", "'", "t"}));
}

// Words end where capitals begin, and "'t" is of the word before it.
TEST(GgufTokenizer, Llama4SplitsWordsByTheirCapitals) {
  for (const char* const pre : {"llama4", "gpt-4o"}) {
    EXPECT_EQ(words_of(pre, {"theThe"}), words_of(pre, {"the", "The"}));
    EXPECT_EQ(words_of(pre, {"12345"}), words_of(pre, {"123", "45"}));
    EXPECT_EQ(words_of(pre, {"so/\n\nit"}), words_of(pre, {"so", "/\n\n", "it"}));
  }
}

// Merges say it all: scores are one for all tokens.
TEST(GgufTokenizer, Gemma4GoesByItsMerges) {
  const Json json = fixture("llama2.json"), golden = fixture("golden.json");
  GgufBytes file = gguf_of(json, nullptr);
  std::vector<std::string> merges;
  for (const Json& merge : json.at("model").at("merges").items())
    merges.push_back(merge.items()[0].as_string() + " " + merge.items()[1].as_string());
  add_strings(file, "tokenizer.ggml.merges", merges);
  std::string bytes = file.bytes();
  const auto as = [&](const char* model) {
    std::string own = bytes;
    const std::string key = "tokenizer.ggml.model";
    const std::size_t at = own.find(key) + key.size() + 4;  // behind the type; then a length and the text
    own.replace(at, 8 + 5, testing::gguf_text(model));
    return Tokenizer::parse(gguf_tokenizer(parse_gguf(std::as_bytes(std::span(own)), "test.gguf")).tokenizer,
                            model);
  };
  const Tokenizer read = as("gemma4"), from_json = Tokenizer::parse(json, "llama2.json");
  for (const Json& text : golden.at("texts").items())
    EXPECT_EQ(read.encode(text.as_string(), false), from_json.encode(text.as_string(), false));
}

TEST(GgufTokenizer, RefusesPreTokenizersItDoesNotKnow) {
  try {
    files_of(gguf_of(fixture("smollm.json"), "viking"));
    ADD_FAILURE() << "was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("viking"), std::string::npos);
  }
}

}  // namespace
}  // namespace llmq
