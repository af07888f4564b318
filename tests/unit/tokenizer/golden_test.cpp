// Ids and texts equal Hugging Face tokenizers' for every tokenizer family in tests/fixtures/tokenizers (made
// by tests/interop/make_tokenizer_fixtures.py).
#include <gtest/gtest.h>

#include "base/io.h"
#include "base/json.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer.h"

namespace llmq {
namespace {

const Path kFixtures = Path(LLMQ_SOURCE_DIR) / "tests/fixtures/tokenizers";

Json read_fixture(const std::string& name) {
  return Json::parse(read_text(system_io(), kFixtures / name), name);
}

std::vector<std::int32_t> ids_of(const Json& json) {
  std::vector<std::int32_t> ids;
  for (const Json& id : json.items()) ids.push_back(static_cast<std::int32_t>(id.as_integer()));
  return ids;
}

// Bytes that are no UTF-8 as U+FFFD, as Hugging Face's decoders leave them.
std::string printable(const std::string& bytes) {
  Utf8Stream stream;
  std::string text = stream.push(bytes);
  return text + stream.finish();
}

class Golden : public ::testing::TestWithParam<const char*> {
 protected:
  Tokenizer tokenizer_ = Tokenizer::parse(read_fixture(std::string(GetParam()) + ".json"), GetParam());
  Json golden_ = read_fixture("golden.json");
  const Json& mine() const { return golden_.at("tokenizers").at(GetParam()); }
  const Json::Array& texts() const { return golden_.at("texts").items(); }
};

TEST_P(Golden, EncodesAsHuggingFaceDoes) {
  ASSERT_EQ(mine().at("ids").items().size(), texts().size());
  for (std::size_t i = 0; i < texts().size(); ++i)
    EXPECT_EQ(tokenizer_.encode(texts()[i].as_string()), ids_of(mine().at("ids").items()[i]))
        << texts()[i].as_string();
}

TEST_P(Golden, LeavesSpecialTokensOutWhenAsked) {
  for (std::size_t i = 0; i < mine().at("plain").items().size(); ++i)
    EXPECT_EQ(tokenizer_.encode(texts()[i].as_string(), false), ids_of(mine().at("plain").items()[i]));
}

TEST_P(Golden, DecodesAsHuggingFaceDoes) {
  for (std::size_t i = 0; i < texts().size(); ++i)
    EXPECT_EQ(printable(tokenizer_.decode(ids_of(mine().at("ids").items()[i]))),
              mine().at("text").items()[i].as_string());
}

INSTANTIATE_TEST_SUITE_P(Families, Golden,
                         ::testing::Values("gpt2", "smollm", "llama3", "qwen2", "llama2", "gemma",
                                           "metaspace", "ignore_merges", "custom", "deepseek3", "glm4",
                                           "kimi", "o200k", "tinystories"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace llmq
