// Outputs side by side: which are on the Pareto line, what is open, and that no name becomes markup.
#include "export/report/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "export/report/chart.h"
#include "support/markup.h"
#include "tests/support/temporary_directory.h"

namespace llmq::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const char* const kHostile = "<b onload='x'>&\"";

class ComparisonTest : public ::testing::Test {
 protected:
  // A report of so many bits; with a KL divergence unless it is NaN.
  std::string output(const std::string& name, double bits, double kl,
                     const std::string& protocol = "hf-2048") {
    Json report = Json::object({{"schema", "llmq.report/1"},
                                {"model", "SmolLM2"},
                                {"method", "awq"},
                                {"scheme", "w4a16_g64_asym"},
                                {"format", "awq"},
                                {"bytes_out", 1000},
                                {"bits_per_weight", bits - 0.5},
                                {"bits_per_weight_total", bits}});
    if (!std::isnan(kl))
      report["evaluation"] = Json::object(
          {{"protocol", protocol},
           {"text", "builtin:wikitext-2"},
           {"windows", 4},
           {"ppl", 20.5},
           {"against",
            Json::object(
                {{"model", "SmolLM2"}, {"delta_ppl", 0.25}, {"kl_mean", kl}, {"kl_stderr", kl / 10}})}});
    disk_.write(name + "/report.json", report.dump());
    return (disk_ / name).string();
  }
  std::string file(const Json& document) {
    disk_.write("measured.json", document.dump());
    return (disk_ / "measured.json").string();
  }
  Comparison compare(const std::vector<std::string>& outputs, const std::vector<std::string>& measured = {}) {
    return compare_outputs(system_io(), outputs, measured);
  }
  std::string refusal(const std::vector<std::string>& outputs,
                      const std::vector<std::string>& measured = {}) {
    try {
      compare(outputs, measured);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }

  TemporaryDirectory disk_;
};

std::vector<bool> on_line(const Comparison& comparison) {
  std::vector<bool> found;
  for (const ComparedOutput& output : comparison.outputs) found.push_back(output.on_pareto_line);
  return found;
}

TEST_F(ComparisonTest, TheParetoLineHasWhatNoOtherBeatsInBoth) {
  const Comparison comparison =
      compare({output("small", 4.25, 0.1), output("worse", 5.5, 0.07), output("large", 5, 0.05),
               output("open", 3, NAN), output("same", 5, 0.05)});
  EXPECT_THAT(on_line(comparison), ElementsAre(true, false, true, false, true));
  EXPECT_THAT(comparison.notes, ElementsAre(HasSubstr("open is not in the figure")));
}

TEST_F(ComparisonTest, ThePageIsWellFormedAndNoNameIsMarkup) {
  const std::string page =
      comparison_page(compare({output(kHostile, 4.25, 0.1), output("b", 8.5, 0.001), output("c", 6, NAN)}));
  const Markup read(page);
  EXPECT_EQ(read.error, "");
  for (const char* element : {"script", "b onload='x'", "img"})
    EXPECT_THAT(read.elements, Not(Contains(element)));
  EXPECT_THAT(page, Not(HasSubstr("<b onload")));
  EXPECT_THAT(read.text, HasSubstr(kHostile));
  EXPECT_THAT(read.text, HasSubstr("0.10000 ± 0.01000"));
  EXPECT_THAT(read.text, HasSubstr("not measured"));
  EXPECT_THAT(page, HasSubstr("role=\"img\" aria-labelledby=\"klT klD\""));
  EXPECT_THAT(page, HasSubstr("<polyline class=\"line pareto\""));
}

TEST_F(ComparisonTest, WithoutAnyDivergenceThereIsNoFigureAndAReason) {
  const std::string page = comparison_page(compare({output("a", 4, NAN)}));
  EXPECT_EQ(Markup(page).error, "");
  EXPECT_THAT(page, Not(HasSubstr("<svg")));
  EXPECT_THAT(page, HasSubstr("nothing to draw"));
}

TEST_F(ComparisonTest, VegaHasTheSameMarks) {
  const Json vega = comparison_vega(compare({output(kHostile, 4.25, 0.1), output("b", 6, NAN)}));
  EXPECT_EQ(vega.at("$schema").as_string(), "https://vega.github.io/schema/vega-lite/v6.json");
  const Json::Array& values = vega.at("data").at("values").items();
  ASSERT_EQ(values.size(), 1u);
  EXPECT_THAT(values[0].at("output").as_string(), HasSubstr(kHostile));
  EXPECT_DOUBLE_EQ(values[0].at("kl_low").as_double(), 0.09);
  EXPECT_DOUBLE_EQ(values[0].at("kl_high").as_double(), 0.11);
}

TEST_F(ComparisonTest, MeasurementsAreTakenByName) {
  const std::string a = output("a", 4, NAN), b = output("b", 5, 0.5);
  const std::string ppl = file(Json::object(
      {{"schema", "llmq.eval-ppl/1"},
       {"model", std::filesystem::relative(a).string() + "/"},
       {"protocol", "hf-2048"},
       {"text", Json::object({{"path", "builtin:wikitext-2"}})},
       {"windows", 4},
       {"ppl", 21.0},
       {"against",
        Json::object({{"model", "SmolLM2"}, {"delta_ppl", 0.5}, {"kl_mean", 0.2}, {"kl_stderr", 0.01}})}}));
  const Comparison measured = compare({a, b}, {ppl});
  EXPECT_EQ(measured.outputs[0].kl, 0.2);
  EXPECT_EQ(measured.outputs[1].kl, 0.5);
  EXPECT_THAT(measured.notes, IsEmpty());
  const auto row = [](int batch, double speed) {
    return Json::object({{"batch", batch}, {"tokens_per_second", speed}, {"peak_memory_bytes", 7}});
  };
  const std::string bench = file(Json::object({{"schema", "llmq.bench/1"},
                                               {"model", b},
                                               {"machine", Json::object({{"cpu", "EPYC"}, {"gpu", Json()}})},
                                               {"rows", Json::array({row(8, 40), row(1, 10)})}}));
  const Comparison timed = compare({a, b}, {bench});
  EXPECT_EQ(timed.outputs[0].decode_tokens_per_second, std::nullopt);
  EXPECT_EQ(timed.outputs[1].decode_tokens_per_second, 10);
  EXPECT_EQ(timed.outputs[1].machine, "EPYC, batch 1");
  EXPECT_THAT(refusal({a}, {bench}), HasSubstr("none of the outputs compared"));
}

TEST_F(ComparisonTest, SaysWhatCannotBeHeldAgainstEachOther) {
  EXPECT_THAT(compare({output("a", 4, 0.1), output("b", 5, 0.05, "llama.cpp-512")}).warnings,
              ElementsAre(HasSubstr("measured in several ways")));
}

TEST_F(ComparisonTest, RefusesWhatIsNoReportAndNoMeasurement) {
  const std::string a = output("a", 4, 0.1);
  EXPECT_THAT(refusal({(disk_ / "nothing").string()}), HasSubstr("does not exist"));
  disk_.write("bare/config.json", "{}");
  EXPECT_THAT(refusal({(disk_ / "bare").string()}), HasSubstr("has no report"));
  disk_.write("foreign/report.json", "{\"schema\": \"mine/1\"}");
  EXPECT_THAT(refusal({(disk_ / "foreign").string()}), HasSubstr("is not a report of llmq"));
  disk_.write("list/report.json", "[1]");
  EXPECT_THAT(refusal({(disk_ / "list").string()}), HasSubstr("is not a report of llmq"));
  EXPECT_THAT(refusal({a, a + "/."}), HasSubstr("named twice"));
  EXPECT_THAT(refusal({a}, {file(Json::object({{"schema", "llmq.inspect/1"}}))}),
              HasSubstr("llmq.inspect/1"));
  EXPECT_THAT(refusal({a}, {file(Json::array({1}))}), HasSubstr("says no schema"));
}

TEST_F(ComparisonTest, AReportOfOddFiguresHasAPageAllTheSame) {
  for (const double kl : {1e-300, 1e300, 0.0, -1.0}) {
    const std::string page = comparison_page(compare({output("odd", 1e6, kl), output("b", 4, 0.1)}));
    EXPECT_EQ(Markup(page).error, "") << kl;
    EXPECT_LT(page.size(), 20000u) << kl;
  }
}

// Labels of marks that lie close together stand apart, and each tick on its axis.
TEST(Chart, NoLabelCoversAnother) {
  Chart chart;
  const std::vector<double> ys = {0.1, 0.101, 0.102, 0.1};
  chart.x = linear_axis("x", std::vector<double>{4, 8});
  chart.y = logarithmic_axis("y", ys);
  for (std::size_t i = 0; i < ys.size(); ++i)
    chart.marks.push_back({"", std::to_string(i + 1), "", 4 + 0.001 * static_cast<double>(i), ys[i], {}, {}});
  const Json json = chart_json(chart);
  const Json::Array& marks = json.at("marks").items();
  ASSERT_EQ(marks.size(), ys.size());
  for (std::size_t i = 0; i < marks.size(); ++i)
    for (std::size_t k = 0; k < i; ++k) {
      const auto apart = [&](const char* key) {
        return std::abs(std::stod(marks[i].at(key).as_string()) - std::stod(marks[k].at(key).as_string()));
      };
      EXPECT_TRUE(apart("label_x") >= 6 || apart("label_y") >= 11) << i << " " << k;
    }
  EXPECT_GE(json.at("y_ticks").items().size(), 3u);
  for (const Json& tick : json.at("y_ticks").items()) {
    EXPECT_GE(std::stod(tick.at("at").as_string()), 25.9);
    EXPECT_LE(std::stod(tick.at("at").as_string()), 256.1);
  }
}

TEST(Chart, WhatIsNotFiniteOrBeyondAnAxisIsLeftOut) {
  Chart chart;
  chart.x = linear_axis("x", std::vector<double>{10});
  chart.y = logarithmic_axis("y", std::vector<double>{1, 100});
  for (const auto& [x, y] :
       {std::pair(5.0, 10.0), {NAN, 10.0}, {5.0, 0.0}, {5.0, -3.0}, {1e9, 10.0}, {5.0, HUGE_VAL}})
    chart.marks.push_back({"", "m", "", x, y, {}, {}});
  chart.lines.push_back({"limit", "limit", {{0, 10}, {NAN, 10}, {10, 10}}});
  const Json json = chart_json(chart);
  EXPECT_EQ(json.at("marks").items().size(), 1u);
  EXPECT_THAT(json.at("lines").items()[0].at("points").as_string(), Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace llmq::testing
