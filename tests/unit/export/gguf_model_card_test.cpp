// What a README.md says, key by key as gguf-py of llama.cpp reads the same text (the expectations are its
// output), and where llmq goes on and gguf-py stops.
#include "export/gguf/hub_card.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace llmq::testing {
namespace {

constexpr std::uint64_t kSmolParameters = 134515008;  // of SmolLM2-135M
using Entry = ModelCardFields::Entry;
using Words = std::vector<std::string>;

ModelCardFields card_of(const std::string& text) {
  const TemporaryDirectory disk;
  disk.write("README.md", text);
  return read_model_card(system_io(), disk / "", kSmolParameters);
}

constexpr const char* kFull = R"(---
library_name: transformers
license: other
license_name: my-own
license_link: https://example.org/licence
language:
- en
- no
- "de"
pipeline_tag: text-generation
tags: [chat, 'a: b']
base_model:
- HuggingFaceTB/SmolLM2-135M-v1.1
- https://huggingface.co/meta-llama/Llama-3.2-1B-Instruct
- https://example.org/some/model
- Only A Name
- plainname-7b
- {name: Given, author: Someone, organization: Org, description: "what: it is", url: "https://u", doi: 10.1/x, uuid: "1-2",
   repo_url: "https://r", version: v2, extra: not taken}
datasets: HuggingFaceTB/smoltalk
model_name: Some Card's Name
model_creator: Somebody
model_type: llama
url: https://example.org
model_doi: 10.5/abc
---
# Text
license: not this
)";

TEST(GgufModelCard, ReadsWhatTheConverterReads) {
  const ModelCardFields card = card_of(kFull);
  EXPECT_EQ(card.texts, (std::map<std::string, std::string>{{"name", "Some Card's Name"},
                                                            {"author", "Somebody"},
                                                            {"basename", "llama"},
                                                            {"license", "other"},
                                                            {"license.name", "my-own"},
                                                            {"license.link", "https://example.org/licence"},
                                                            {"source.url", "https://example.org"},
                                                            {"source.doi", "10.5/abc"}}));
  EXPECT_EQ(card.tags, (Words{"chat", "a: b", "text-generation"}));
  EXPECT_EQ(card.languages, (Words{"en", "no", "de"}));
  ASSERT_TRUE(card.base_models);
  EXPECT_EQ(*card.base_models,
            (std::vector<Entry>{{{"name", "SmolLM2 135M v1.1"},
                                 {"version", "v1.1"},
                                 {"organization", "HuggingFaceTB"},
                                 {"repo_url", "https://huggingface.co/HuggingFaceTB/SmolLM2-135M-v1.1"}},
                                {{"name", "Llama 3.2 1B Instruct"},
                                 {"organization", "Meta Llama"},
                                 {"repo_url", "https://huggingface.co/meta-llama/Llama-3.2-1B-Instruct"}},
                                {{"repo_url", "https://example.org/some/model"}},
                                {{"name", "Only A Name"}},
                                {{"name", "Plainname 7b"}},
                                {{"name", "Given"},
                                 {"author", "Someone"},
                                 {"version", "v2"},
                                 {"organization", "Org"},
                                 {"description", "what: it is"},
                                 {"url", "https://u"},
                                 {"doi", "10.1/x"},
                                 {"uuid", "1-2"},
                                 {"repo_url", "https://r"}}}));
  ASSERT_TRUE(card.datasets);
  EXPECT_EQ(*card.datasets,
            (std::vector<Entry>{{{"name", "Smoltalk"},
                                 {"organization", "HuggingFaceTB"},
                                 {"repo_url", "https://huggingface.co/HuggingFaceTB/smoltalk"}}}));
}

TEST(GgufModelCard, ListsAndNothingsAndLineEndings) {
  const ModelCardFields lists = card_of(
      "---\nlicense:\n- mit\n- apache-2.0\nbase_model:\ndatasets: []\ntags: one\nlanguage: en\n---\n");
  EXPECT_EQ(lists.text("license"), "mit,apache-2.0");
  ASSERT_TRUE(lists.base_models && lists.datasets) << "named, and so counted: none";
  EXPECT_TRUE(lists.base_models->empty());
  EXPECT_TRUE(lists.datasets->empty());
  EXPECT_EQ(lists.tags, Words{"one"});
  const ModelCardFields crlf = card_of("---\r\nlicense: mit\r\ntags:\r\n\t- tabbed\r\n---\r\n");
  EXPECT_EQ(crlf.text("license"), "mit");
  EXPECT_EQ(crlf.tags, Words{"tabbed"});
  EXPECT_EQ(card_of("---\nlicense: mit\n").text("license"), "mit") << "front matter that nothing ends";
}

TEST(GgufModelCard, IsNothingWithoutFrontMatter) {
  for (const char* text :
       {"", "# Title\nlicense: mit\n", "\n---\nlicense: mit\n---\n", "---\n---\n", "---\n- a\n---\n"}) {
    const ModelCardFields card = card_of(text);
    EXPECT_TRUE(card.texts.empty() && card.tags.empty() && !card.base_models) << text;
  }
  const TemporaryDirectory disk;
  EXPECT_TRUE(read_model_card(system_io(), disk / "", kSmolParameters).texts.empty());
}

// gguf-py stops at each of these.
TEST(GgufModelCard, GoesOnWhereTheConverterStops) {
  EXPECT_EQ(card_of("---\nversion: 1.0\ntags: [2024, x]\n---\n").text("version"), "1.0");
  EXPECT_EQ(card_of("---\nversion: 1.0\ntags: [2024, x]\n---\n").tags, (Words{"2024", "x"}));
  ::testing::internal::CaptureStderr();
  const ModelCardFields broken = card_of("---\nlicense: mit\ntags: [a\n---\n");
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(broken.texts.empty());
  EXPECT_NE(said.find("the model card's keys are left out"), std::string::npos) << said;
  EXPECT_NE(said.find("README.md"), std::string::npos) << said;
}

}  // namespace
}  // namespace llmq::testing
