// Where a model's licence is read, what comes first, and that nothing is guessed.
#include "export/report/source_license.h"

#include <gmock/gmock.h>

#include "tests/support/temporary_directory.h"

namespace llmq::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string own_license() { return read_text(system_io(), std::string(LLMQ_SOURCE_DIR) + "/LICENSE"); }
std::string mit_license() {
  return read_text(system_io(), std::string(LLMQ_SOURCE_DIR) + "/share/licenses/ggml.txt");
}

SourceLicense license_in(const TemporaryDirectory& model, Json config = Json::object()) {
  return source_license(system_io(), Checkpoint::open_shards(system_io(), model / "", {}, std::move(config)));
}

TEST(SourceLicense, IsTheFrontMattersBeforeAllElse) {
  const TemporaryDirectory model;
  model.write("LICENSE", own_license());
  EXPECT_THAT(license_in(model).ids, ElementsAre("apache-2.0"));
  EXPECT_THAT(license_in(model, Json::object({{"license", "mit"}})).ids, ElementsAre("mit"));
  model.write(
      "README.md",
      "---\nlicense: other\nlicense_name: qwen-research\nlicense_link: https://example.org/L\n---\n# x\n");
  const SourceLicense card = license_in(model, Json::object({{"license", "mit"}}));
  EXPECT_THAT(card.ids, ElementsAre("other"));
  EXPECT_EQ(card.name, "qwen-research");
  EXPECT_EQ(card.link, "https://example.org/L");
  model.write("README.md", "---\nlicense: [mit, apache-2.0]\n---\n");
  EXPECT_THAT(license_in(model).ids, ElementsAre("mit", "apache-2.0"));
}

TEST(SourceLicense, IsNoneWhereNothingIsSure) {
  const TemporaryDirectory model;
  EXPECT_THAT(license_in(model).ids, IsEmpty());
  model.write("README.md", "---\nlicense: Apache License 2.0\nlicense_name: x\n---\n");
  EXPECT_THAT(license_in(model).ids, IsEmpty());
  EXPECT_EQ(license_in(model).name, "");
  EXPECT_THAT(license_in(model, Json::object({{"license", "see LICENSE"}})).ids, IsEmpty());
  model.write("LICENSE.txt", "LLAMA 3.1 COMMUNITY LICENSE AGREEMENT\n");
  EXPECT_THAT(license_in(model).ids, IsEmpty());
}

TEST(SourceLicense, TextsAreKnownWordForWord) {
  const std::string apache = own_license(), mit = mit_license();
  EXPECT_EQ(license_of_text(apache), "apache-2.0");
  EXPECT_EQ(license_of_text(mit), "mit");
  EXPECT_EQ(license_of_text("Copyright 2024 Somebody. All rights reserved.\n\n" + apache), "apache-2.0");
  std::string secure = apache;
  secure.replace(secure.find("http://"), 7, "https://");
  EXPECT_EQ(license_of_text(secure), "apache-2.0");
  EXPECT_EQ(license_of_text(apache.substr(0, apache.find("APPENDIX"))), "apache-2.0");
  // A word less, a condition more, another licence behind it.
  std::string other = apache;
  other.erase(other.find("irrevocable"), 11);
  EXPECT_EQ(license_of_text(other), "");
  EXPECT_EQ(license_of_text(apache + "\nYou may not use the model above 700 million users.\n"), "");
  EXPECT_EQ(license_of_text("Not for military use.\n" + apache), "");
  EXPECT_EQ(license_of_text(apache + mit), "");
  EXPECT_EQ(license_of_text(mit + "\nNor may it be sold.\n"), "");
  EXPECT_EQ(license_of_text("Only for research.\n" + mit), "");
  EXPECT_EQ(license_of_text(""), "");
}

}  // namespace
}  // namespace llmq::testing
