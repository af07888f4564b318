// What /tokenizer_info tells: texts where files have objects, and nothing of the machine that made them.
#include "serve/tokenizer_info.h"

#include <gtest/gtest.h>

namespace llmq {
namespace {

TEST(TokenizerInfo, TokensAreTexts) {
  const Json config = Json::parse(
      R"({"tokenizer_class": "LlamaTokenizer", "model_max_length": 2048, "add_bos_token": true, "bos_token": {"content": "<s>", "lstrip": false},
      "eos_token": "</s>", "mask_token": null, "additional_special_tokens": ["<a>", {"content": "<b>"}], "added_tokens_decoder": {"7": {"content": "<s>", "special": true}},
      "name_or_path": "/home/someone/run-3", "vocab_file": "/home/someone/vocab", "auto_map": {"AutoTokenizer": "x.Y"}, "padding_side": ["left"],
      "chat_template": [{"name": "default", "template": "a"}]})",
      "config");
  EXPECT_EQ(
      tokenizer_info(config, "a").dump(),
      R"({"tokenizer_class":"LlamaTokenizer","model_max_length":2048,"add_bos_token":true,"bos_token":"<s>","eos_token":"</s>","pad_token":null,"unk_token":null,)"
      R"("additional_special_tokens":["<a>","<b>"],"added_tokens_decoder":{"7":"<s>"},"chat_template":"a"})");
}

TEST(TokenizerInfo, AnEndTokenIsAlwaysAField) {
  EXPECT_EQ(tokenizer_info(Json::object(), {}).dump(),
            R"({"bos_token":null,"eos_token":null,"pad_token":null,"unk_token":null})");
}

}  // namespace
}  // namespace llmq
