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
                                           std::pair{"glm4", "chatglm-bpe"},
                                           std::pair{"deepseek3", "deepseek-v3"},
                                           std::pair<const char*, const char*>{"llama2", nullptr}));

TEST(GgufTokenizer, CarriesSpecialTokensAndTemplate) {
  const GgufTokenizer files = files_of(gguf_of(fixture("smollm.json"), "smollm"));
  EXPECT_EQ(files.config.at("bos_token").as_string(), "<|im_start|>");
  EXPECT_EQ(files.special_tokens.at("bos_token").as_string(), "<|im_start|>");
  EXPECT_EQ(files.config.at("chat_template").as_string(), "{{ messages }}");
}

TEST(GgufTokenizer, RefusesPreTokenizersItDoesNotKnow) {
  try {
    files_of(gguf_of(fixture("smollm.json"), "tekken"));
    ADD_FAILURE() << "was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("tekken"), std::string::npos);
  }
}

}  // namespace
}  // namespace llmq
