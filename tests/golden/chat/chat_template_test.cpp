// Every chat of cases.json renders as Transformers renders it, byte for byte; what its templates refuse is
// refused.
#include "tokenizer/chat_template.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "base/io.h"

namespace llmq {
namespace {

TEST(ChatTemplateGolden, RendersWhatTransformersRenders) {
  const Path folder = Path(LLMQ_SOURCE_DIR) / "tests/golden/chat";
  const Json golden = Json::parse(read_text(system_io(), folder / "cases.json"), "cases.json");
  std::tm now{};  // of make_golden.py
  now.tm_year = 126, now.tm_mon = 6, now.tm_mday = 26, now.tm_hour = 9, now.tm_min = 5;
  std::map<std::string, ChatTemplate> templates;
  std::size_t rendered = 0;
  for (const Json& one : golden.at("cases").items()) {
    const std::string& file = one.at("template").as_string();
    if (templates.count(file) == 0)
      templates.emplace(file, ChatTemplate::parse(read_text(system_io(), folder / file), file,
                                                  golden.at("special_tokens")));
    const Json& request =
        golden.at("requests").items()[static_cast<std::size_t>(one.at("request").as_integer())];
    SCOPED_TRACE(file + ", " + one.at("name").as_string() + ": " + request.dump());
    if (one.at("text").is_null()) {
      EXPECT_THROW(templates.at(file).render(request, now), Error);
      continue;
    }
    try {
      EXPECT_EQ(templates.at(file).render(request, now), one.at("text").as_string());
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
    ++rendered;
  }
  EXPECT_EQ(templates.size(), 21u);
  EXPECT_GT(rendered, 700u);
}

}  // namespace
}  // namespace llmq
