// What a template prints is escaped once: not never, and not twice.
#include "export/report/page_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace llmq::testing {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string printed(const std::string& source) {
  return render_page(source, Json::object({{"evil", "<b>&"}, {"list", Json::array({"<i>", "'"})}}));
}

TEST(PageTemplate, EveryTextIsEscapedOnceWhateverWayItGoes) {
  EXPECT_EQ(printed("{{ evil }}"), "&lt;b&gt;&amp;");
  EXPECT_EQ(printed("{{ '<' }}"), "&lt;") << "jinja2 escapes what a template says, too";
  EXPECT_EQ(printed("{{ list }}"), "[&#39;&lt;i&gt;&#39;, &quot;&#39;&quot;]");
  EXPECT_EQ(printed("{% for one in list %}{{ one }}{% endfor %}"), "&lt;i&gt;&#39;");
  EXPECT_EQ(printed("{{ evil ~ '!' }}{{ evil + '!' }}"), "&lt;b&gt;&amp;!&lt;b&gt;&amp;!");
  EXPECT_EQ(printed("{{ list | join(',') }}{{ evil | upper }}"), "&lt;i&gt;,&#39;&lt;B&gt;&amp;");
  EXPECT_EQ(printed("{% set kept = evil %}{{ kept }}"), "&lt;b&gt;&amp;");
  EXPECT_EQ(printed("<p>{{ evil }}</p>"), "<p>&lt;b&gt;&amp;</p>") << "the template's own markup stays";
}

TEST(PageTemplate, WhatIsMarkupAlreadyIsNotEscapedAgain) {
  EXPECT_EQ(printed("{{ evil | safe }}"), "<b>&");
  EXPECT_EQ(printed("{% macro p(x) %}<p>{{ x }}</p>{% endmacro %}{{ p(evil) }}{{ p(p(evil)) }}"),
            "<p>&lt;b&gt;&amp;</p><p><p>&lt;b&gt;&amp;</p></p>");
  EXPECT_EQ(printed("{% set made %}<p>{{ evil }}</p>{% endset %}{{ made }}"), "<p>&lt;b&gt;&amp;</p>");
  EXPECT_EQ(printed("{{ name(evil) }}"), "<code><bdi>&lt;b&gt;&amp;</bdi></code>");
}

TEST(PageTemplate, WhatIsComputedFromMarkupIsATextAgain) {
  EXPECT_EQ(printed("{{ name('a') ~ evil }}"),
            "&lt;code&gt;&lt;bdi&gt;a&lt;/bdi&gt;&lt;/code&gt;&lt;b&gt;&amp;");
  EXPECT_EQ(printed("{{ (evil | safe) | trim }}"), "&lt;b&gt;&amp;");
  EXPECT_EQ(printed("{{ 1 if (evil | safe) == evil else 0 }}"), "1") << "a mark is not part of a text";
}

TEST(PageTemplate, EveryPageStartsAndEndsTheSameWay) {
  const std::string page = printed("{{ head('a < b') }}\n{{ foot() }}");
  EXPECT_EQ(page.rfind("<!DOCTYPE html>\n", 0), 0u);
  EXPECT_THAT(page, HasSubstr("<title>a &lt; b</title>"));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(page, EndsWith("</main></body></html>\n"));
}

TEST(PageTemplate, AMistakeInATemplateIsAnError) { EXPECT_THROW(printed("{{ evil | nothing }}"), Error); }

}  // namespace
}  // namespace llmq::testing
