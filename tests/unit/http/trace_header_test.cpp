// `traceparent` as W3C's Trace Context has it: what is read, and what counts as not being there.
#include <gtest/gtest.h>

#include "http/request_id.h"

namespace llmq {
namespace {

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736", kParent = "00f067aa0ba902b7";
const std::string kIds = "-" + kTrace + "-" + kParent + "-";

TEST(TraceHeader, IsReadInItsFormAlone) {
  EXPECT_EQ(read_traceparent("00" + kIds + "01"), (TraceContext{kTrace, kParent, true}));
  EXPECT_EQ(read_traceparent("00" + kIds + "02"), (TraceContext{kTrace, kParent, false}));
  // A version to come may say more behind a dash.
  EXPECT_EQ(read_traceparent("cc" + kIds + "09"), (TraceContext{kTrace, kParent, true}));
  EXPECT_EQ(read_traceparent("cc" + kIds + "01-more"), (TraceContext{kTrace, kParent, true}));
  for (const std::string& other :
       {std::string(), "00" + kIds, "00" + kIds + "0", "00" + kIds + "01-more", "00" + kIds + "01 ",
        "cc" + kIds + "01.more", "ff" + kIds + "01", "0g" + kIds + "01", "00" + kIds + "0A",
        "00-" + std::string(32, '0') + "-" + kParent + "-01",
        "00-" + kTrace + "-" + std::string(16, '0') + "-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + kParent + "-01", "00_" + kTrace + "-" + kParent + "-01",
        std::string(4000, '0')})
    EXPECT_EQ(read_traceparent(other), TraceContext{}) << other.substr(0, 80);
}

}  // namespace
}  // namespace llmq
