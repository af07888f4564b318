// tiktoken.model gives the ids that Hugging Face tokenizers give with what Transformers' converter makes of
// it, and a file that is none is refused by its line.
#include "tokenizer/tiktoken_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "support/temporary_directory.h"
#include "tokenizer/tokenizer.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;

const Path kTokenizers = Path(LLMQ_SOURCE_DIR) / "tests/fixtures/tokenizers";

Json tokenizer_fixture(const char* name) {
  return Json::parse(read_text(system_io(), kTokenizers / name), name);
}

TEST(TiktokenFile, GivesTheIdsOfHuggingFace) {
  const Tokenizer tokenizer = Tokenizer::open(system_io(), kTokenizers / "kimi");
  const Json golden = tokenizer_fixture("golden.json");
  const Json& kimi = golden.at("tokenizers").at("kimi");
  const Json::Array& texts = golden.at("texts").items();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    std::vector<std::int32_t> ids;
    for (const Json& id : kimi.at("ids").items()[i].items())
      ids.push_back(static_cast<std::int32_t>(id.as_integer()));
    EXPECT_EQ(tokenizer.encode(texts[i].as_string()), ids) << texts[i].as_string();
  }
  const std::int32_t first = *tokenizer.id_of("[BOS]");
  EXPECT_EQ(*tokenizer.id_of("<|im_end|>"), first + 2);
  EXPECT_EQ(tokenizer.vocabulary_size(), first + 256);
  EXPECT_EQ(*tokenizer.id_of("<|reserved_token_" + std::to_string(first + 255) + "|>"), first + 255);
  EXPECT_EQ(tokenizer.eos(), first + 1);
  EXPECT_EQ(tokenizer.encode("ÄÖ").size(), 1u) << "a word that is a token is not taken apart";
}

std::string refusal_of(const std::string& lines, const std::string& kind = "TikTokenTokenizer") {
  const testing::TemporaryDirectory scratch;
  const Path file = scratch.write(kTiktokenFile, lines).string();
  try {
    tiktoken_tokenizer(system_io(), file, Json::object({{"tokenizer_class", kind}}));
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), 2);
    return error.what();
  }
}

TEST(TiktokenFile, WhatIsNoListOfRanksIsRefusedByItsLine) {
  EXPECT_EQ(refusal_of("YQ== 0\nYg== 1\nYWI= 2\n"), "");
  EXPECT_THAT(refusal_of("YQ== 0\nYg==\n"), HasSubstr("line 2: has no rank"));
  EXPECT_THAT(refusal_of("YQ== 0\nYg== x\n"), HasSubstr("line 2: has no rank"));
  EXPECT_THAT(refusal_of("YQ== 0\nYg== 99999999999\n"), HasSubstr("line 2: has no rank"));
  EXPECT_THAT(refusal_of("YQ== 0\n?? 1\n"), HasSubstr("line 2: has no token"));
  EXPECT_THAT(refusal_of("YQ== 0\nYg== 0\n"), HasSubstr("line 2: has rank 0, as an earlier one has"));
  EXPECT_THAT(refusal_of("YQ== 1\n\n"), HasSubstr("has no rank below the number of tokens"));
  EXPECT_THAT(refusal_of(""), HasSubstr("ranks are not 0, 1, 2 and so on"));
  EXPECT_THAT(refusal_of("YQ== 0\n", "QWenTokenizer"),
              ::testing::AllOf(HasSubstr("\"QWenTokenizer\""), HasSubstr("TikTokenConverter")));
}

}  // namespace
}  // namespace llmq
