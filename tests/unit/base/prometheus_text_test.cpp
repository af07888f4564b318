// The text format: what would end a label or a line is escaped, and a metric without labels has no braces.
#include "base/prometheus_text.h"

#include <gtest/gtest.h>

namespace llmq::testing {
namespace {

TEST(PrometheusText, ALabelCannotEndItselfOrItsLine) {
  EXPECT_EQ(prometheus_label("model", "a\"b\\c\nd"), "model=\"a\\\"b\\\\c\\nd\"");
  EXPECT_EQ(prometheus_label("model", ""), "model=\"\"");
}

TEST(PrometheusText, LinesAreThoseOfTheFormat) {
  EXPECT_EQ(prometheus_head("llmq_x", "gauge", "What x is."),
            "# HELP llmq_x What x is.\n# TYPE llmq_x gauge\n");
  EXPECT_EQ(prometheus_sample("llmq_x", "a=\"1\"", "2.5"), "llmq_x{a=\"1\"} 2.5\n");
  EXPECT_EQ(prometheus_sample("llmq_x", "", "2.5"), "llmq_x 2.5\n");
}

}  // namespace
}  // namespace llmq::testing
