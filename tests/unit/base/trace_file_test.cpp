// --trace-file: OTLP/JSON lines as the collector's file receiver reads them.
#include "base/disk/trace_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <sstream>

#include "base/error.h"

namespace llmq {
namespace {

const Json& only_span(const Json& line) {
  return line.find("resourceSpans")
      ->items()
      .at(0)
      .find("scopeSpans")
      ->items()
      .at(0)
      .find("spans")
      ->items()
      .at(0);
}

std::vector<Json> lines_of(const Path& path) {
  std::istringstream text(read_text(system_io(), path));
  std::vector<Json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line, "trace"));
  return lines;
}

class TraceFileTest : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  Path path_ = Path(::testing::TempDir()) / ("trace-" + std::to_string(::getpid()) + ".jsonl");
};

// Ids in hexadecimal, times and integers as decimal text, kinds and states as numbers: OTLP's JSON encoding.
TEST_F(TraceFileTest, ASpanIsWrittenAsOtlpHasIt) {
  const Json attributes = Json::object({{"n", 3}, {"t", 0.5}, {"yes", true}, {"text", "a\nb"}});
  const Span span{"llm_request",
                  Span::Kind::kServer,
                  {std::string(32, 'a'), std::string(16, 'b')},
                  1764126000000000001,
                  1764126000000000002,
                  attributes,
                  "why"};
  EXPECT_EQ(
      only_span(span_request(span, {std::string(32, 'a'), std::string(16, 'c')}, "1.2")).dump(),
      R"({"traceId":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","spanId":"cccccccccccccccc","parentSpanId":"bbbbbbbbbbbbbbbb","name":"llm_request","kind":2,)"
      R"("startTimeUnixNano":"1764126000000000001","endTimeUnixNano":"1764126000000000002","attributes":[{"key":"n","value":{"intValue":"3"}},)"
      R"({"key":"t","value":{"doubleValue":0.5}},{"key":"yes","value":{"boolValue":true}},{"key":"text","value":{"stringValue":"a\nb"}}],)"
      R"("status":{"code":2,"message":"why"}})");
}

TEST_F(TraceFileTest, SpansOfACommandHangOnIt) {
  for (int run = 0; run < 2; ++run) {  // the second goes on with the file
    TraceFile file;
    EXPECT_FALSE(file.is_open());
    file.open(system_io(), path_, "1.2");
    file.write({"block", Span::Kind::kInternal, file.command(), 1, 2, {}, {}});
    file.write(
        {"foreign", Span::Kind::kServer, {std::string(32, 'a'), std::string(16, 'b'), false}, 1, 2, {}, {}});
    file.write({"alone", Span::Kind::kServer, {}, 1, 2, {}, {}});
    file.close("llmq quantize", Json::object({{"process.exit.code", 0}}), "");
    EXPECT_FALSE(file.is_open());
  }
  const std::vector<Json> lines = lines_of(path_);
  ASSERT_EQ(lines.size(), 6u) << "one that its maker does not record is not written";
  const auto of = [&](std::size_t line, const char* key) {
    return only_span(lines[line]).find(key)->as_string();
  };
  EXPECT_EQ(of(0, "traceId"), of(2, "traceId"));
  EXPECT_EQ(of(0, "parentSpanId"), of(2, "spanId"));
  EXPECT_EQ(of(2, "name"), "llmq quantize");
  EXPECT_EQ(only_span(lines[1]).find("parentSpanId"), nullptr);
  EXPECT_NE(of(1, "traceId"), of(2, "traceId"));
  EXPECT_NE(of(5, "traceId"), of(2, "traceId"));
}

TEST_F(TraceFileTest, AFileThatCannotBeMadeIsAnError) {
  TraceFile file;
  EXPECT_THROW(file.open(system_io(), "/nowhere/at/all.jsonl", "1.2"), Error);
  EXPECT_FALSE(file.is_open());
}

}  // namespace
}  // namespace llmq
