// What follows from the figures of a migration study: hand-made ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "evaluate/study_report.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;

LoadRow row(std::int64_t batch, double tokens_per_second, double ttft_p95) {
  LoadRow one;
  one.clients = batch;
  one.rate = std::numeric_limits<double>::infinity();
  one.result.requests = 4 * batch;
  one.result.tokens_per_second = tokens_per_second;
  one.result.ttft = {ttft_p95 / 2, ttft_p95, ttft_p95};
  return one;
}

StudyConfiguration configuration(const char* name, double ppl, std::vector<LoadRow> rows) {
  StudyConfiguration one;
  one.name = name;
  one.ppl = ppl;
  one.rows = std::move(rows);
  return one;
}

std::vector<StudyConfiguration> five() {
  return {configuration("baseline", 20, {row(1, 100, 0.1), row(8, 400, 0.4)}),
          configuration("quantized", 21, {row(1, 200, 0.05), row(8, 800, 0.3)}),
          configuration("speculation", 21, {row(1, 300, 0.06), row(8, 720, 0.35)}),
          configuration("prefix_cache", 21, {row(1, 210, 0.02), row(8, 900, 0.2)}),
          configuration("all", 21, {row(1, 330, 0.03), row(8, 890, 0.25)})};
}

TEST(MigrationStudy, SpeculationIsHeldAgainstTheSameWithoutIt) {
  const std::vector<StudyConfiguration> study = five();
  const std::vector<SpeculationGain> gains = speculation_gains(study);
  ASSERT_EQ(gains.size(), 2u);
  EXPECT_EQ(gains[0].batch, 1);
  EXPECT_DOUBLE_EQ(*gains[0].alone, 1.5);
  EXPECT_DOUBLE_EQ(*gains[0].with_prefix_cache, 330. / 210);
  EXPECT_DOUBLE_EQ(*gains[1].alone, 0.9);
  EXPECT_EQ(speculation_stops_at(gains), 8);
}

TEST(MigrationStudy, SpeculationStopsWhereItNeverPaysAgain) {
  const auto stops = [](std::vector<double> gains) {
    std::vector<SpeculationGain> list;
    for (const double gain : gains)
      list.push_back({static_cast<std::int64_t>(list.size()) + 1, gain, std::nullopt});
    return speculation_stops_at(list);
  };
  EXPECT_EQ(stops({2, 1.1, 1, 0.9}), 3);
  EXPECT_EQ(stops({0.9, 1.1, 0.95}), 3);
  EXPECT_EQ(stops({2, 1.01}), std::nullopt);
  EXPECT_EQ(stops({0.9, 0.8}), 1);
  EXPECT_EQ(stops({}), std::nullopt);
}

TEST(MigrationStudy, DeploysTheFastestThatKeepsTargetAndTolerance) {
  const std::vector<StudyConfiguration> study = five();
  const std::vector<Decision> decisions = decide(study, {{0.01, 0.1, 0.25, 1}, {0, 0.05}});
  ASSERT_EQ(decisions.size(), 8u);
  const auto says = [&](std::size_t i, const char* name, std::int64_t batch) {
    ASSERT_NE(decisions[i].row, nullptr) << i;
    EXPECT_EQ(decisions[i].configuration->name, name) << i;
    EXPECT_EQ(decisions[i].row->clients, batch) << i;
  };
  EXPECT_EQ(decisions[0].row, nullptr) << "no first token within 10 ms";
  EXPECT_EQ(decisions[1].row, nullptr);
  says(2, "baseline", 1);  // the target is met by the very same time
  says(3, "all", 1);
  says(4, "baseline", 1);
  says(5, "prefix_cache", 8);  // all: 890
  says(6, "baseline", 8);
  says(7, "prefix_cache", 8);
}

TEST(MigrationStudy, FailedRequestsAndUnknownQualityDecideNothing) {
  std::vector<StudyConfiguration> study = five();
  study[3].rows[1].result.failed = 1;
  study[4].ppl.reset();
  const std::vector<Decision> decisions = decide(study, {{1}, {0.05}});
  ASSERT_EQ(decisions.size(), 1u);
  EXPECT_EQ(decisions[0].configuration->name, "quantized");
  EXPECT_FALSE(speculation_gains(study)[1].with_prefix_cache) << "a failed row is no rate to divide by";
  study[0].ppl.reset();
  EXPECT_EQ(decide(study, {{1}, {0.05}})[0].row, nullptr) << "nothing to be above of";
}

TEST(MigrationStudy, WhatWasNotMeasuredIsSaidAndNowhereAFigure) {
  StudyReport report;
  report.model = "m";
  report.configurations = five();
  for (std::size_t i = 1; i < 5; ++i) {
    report.configurations[i].rows.clear();
    report.configurations[i].ppl.reset();
    report.configurations[i].missing = "no quantized model was given";
  }
  const Json json = report.to_json();
  EXPECT_EQ(json.at("rows").items().size(), 2u);
  EXPECT_EQ(json.at("missing").items().size(), 4u);
  EXPECT_TRUE(json.at("speculation").at("gains").items().empty());
  EXPECT_TRUE(json.at("speculation").at("stops_paying_at_batch").is_null());
  for (const Json& decision : json.at("decisions").items())
    if (!decision.at("config").is_null()) {
      EXPECT_EQ(decision.at("config").as_string(), "baseline");
    }
  EXPECT_EQ(report.figures().size(), 3u);
  EXPECT_EQ(report.sentences().size(), 4u);
  EXPECT_THAT(report.sentences()[0], HasSubstr("quantized was not measured: no quantized model was given."));
  EXPECT_THAT(report.to_html(), HasSubstr("all was not measured"));
}

}  // namespace
}  // namespace llmq
