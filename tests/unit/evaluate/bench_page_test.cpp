// The pages of `llmq bench` are well-formed, say their figures, and take any name for a text.
#include "evaluate/bench_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "evaluate/load_report.h"
#include "evaluate/speed_report.h"
#include "evaluate/study_report.h"
#include "support/markup.h"

namespace llmq::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kEvil = "a</bdi><script>alert(\"1\")</script>&lt;'";

MachineFigures machine(double read_after) {
  MachineFigures figures;
  figures.peaks.cpu = kEvil;
  figures.peaks.read_bytes_per_second = 10e9;
  figures.read_bytes_per_second_after = read_after;
  figures.isa = "avx512_bf16";
  return figures;
}

void expect_plain(const std::string& html) {
  const Markup page(html);
  EXPECT_EQ(page.error, "");
  EXPECT_THAT(page.elements, Not(Contains("script")));
  EXPECT_THAT(page.text, HasSubstr("</bdi><script>alert(\"1\")</script>&lt;'"));
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
}

TEST(BenchPage, SpeedOfAModelOfAnyNameIsAPage) {
  SpeedReport report;
  report.model = report.config = report.suite = report.compute = kEvil;
  report.machine = machine(10e9);
  report.rows.resize(1);
  report.rows[0].result.asked.batch = 3;
  report.rows[0].result.tokens_per_second = 12.25;
  const std::string html = report.to_html();
  expect_plain(html);
  EXPECT_THAT(html, HasSubstr("<b>12.2</b><span>tokens/s, batch 3</span>"));
  EXPECT_THAT(html, HasSubstr("<th scope=\"col\">decode, tokens/s</th>"));
  EXPECT_THAT(html, Not(HasSubstr("something else was running")));
  report.machine = machine(5e9);
  EXPECT_THAT(report.to_html(), HasSubstr("something else was running"));
  report.rows.clear();
  expect_plain(report.to_html());
}

TEST(BenchPage, StepsAreMarksBelowTheRoof) {
  SpeedReport report;
  report.model = kEvil;
  report.machine = machine(10e9);
  report.machine.peak_operations_per_second = 200e9;
  report.rows.resize(1);
  SpeedResult& r = report.rows[0].result;
  r.bytes_per_step = 1e9, r.operations_per_step = 2e9, r.itl_p50 = 0.2;
  r.prefill_bytes_per_token = 1e6, r.prefill_operations_per_token = 2e9, r.prefill_tokens_per_second = 50;
  const std::string html = report.to_html();
  expect_plain(html);
  EXPECT_THAT(Markup(html).text,
              HasSubstr("decoding, batch 1, prompt 512: 2 operations a byte, 10 Goperations/s"));
  EXPECT_THAT(Markup(html).text,
              HasSubstr("prefill, batch 1, prompt 512: 2e+03 operations a byte, 100 Goperations/s"));
  EXPECT_THAT(html, HasSubstr("<polyline class=\"line limit\""));
}

TEST(BenchPage, LoadSaysWhichRequestsFailedInTheServersOwnWords) {
  LoadReport report;
  report.model = report.endpoint = kEvil;
  report.rows.resize(1);
  report.rows[0].clients = 4;
  report.rows[0].rate = 2;
  report.rows[0].result.errors[kEvil] = 7;
  const std::string html = report.to_html();
  expect_plain(html);
  EXPECT_THAT(Markup(html).text, HasSubstr("4 clients, 2 requests/s: 7 requests failed: " + kEvil));
  EXPECT_THAT(html, Not(HasSubstr("What this machine can do"))) << "a server elsewhere";
}

TEST(BenchPage, AStudySaysWhatToDeployAndWhatWasNotMeasured) {
  StudyReport report;
  report.model = report.quantized = report.text.path = kEvil;
  report.configurations.resize(1);
  report.configurations[0].name = kEvil;
  report.configurations[0].missing = kEvil;
  report.machine = machine(10e9);
  const std::string html = report.to_html();
  expect_plain(html);
  EXPECT_THAT(Markup(html).text, HasSubstr(kEvil + " was not measured: " + kEvil + "."));
  EXPECT_THAT(html, HasSubstr("What to deploy"));
}

}  // namespace
}  // namespace llmq::testing
