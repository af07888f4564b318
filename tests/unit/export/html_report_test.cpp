// report.html is well-formed XML that names every module, whatever the modules are called, and carries no
// script.
#include "export/report/html_report.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "export/report/html_charts.h"
#include "support/markup.h"

namespace llmq::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Json module(const std::string& name, double loss, double rtn) {
  return Json::object(
      {{"module", name},
       {"method", "awq+gptq"},
       {"scheme", "w4a16_g64_asym"},
       {"bits", 4},
       {"loss", loss},
       {"rtn_loss", rtn},
       {"relative_error", 0.01},
       {"weight_error", 0.1},
       {"scale_histogram", Json::object({{"first_octave", -7},
                                         {"bins_per_octave", 4},
                                         {"counts", Json::array({1, 5, 9, 2, 0, 0, 0, 1})}})}});
}

Json report() {
  return Json::object({{"schema", "llmq.report/1"},
                       {"tool", Json::object({{"name", "llmq"}, {"version", "0.1.0"}})},
                       {"command", "llmq quantize --model /models/m"},
                       {"model", "/models/SmolLM2-135M/"},
                       {"method", "awq+gptq"},
                       {"scheme", "w4a16_g64_asym"},
                       {"format", "compressed-tensors"},
                       {"bytes_in", 1000},
                       {"bytes_out", 400},
                       {"bits_per_weight", 4.3125},
                       {"bits_per_weight_total", 6.5},
                       {"loss", 25.0},
                       {"rtn_loss", 100.0},
                       {"modules", Json::array({module("model.layers.0.self_attn.q_proj", 3e-4, 2e-1),
                                                module("model.layers.1.self_attn.q_proj", 2e-3, 5e-1),
                                                module("model.layers.1.mlp.down_proj", 1e-2, 5e-2)})},
                       {"left_dense", Json::array({"model.layers.0.mlp.down_proj"})}});
}

TEST(HtmlReport, IsWellFormedNamesEveryModuleAndRunsNothing) {
  const std::string html = make_html_report(report());
  const Markup page(html);
  EXPECT_EQ(page.error, "");
  for (const char* name : {"model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj",
                           "model.layers.1.mlp.down_proj", "model.layers.0.mlp.down_proj"})
    EXPECT_THAT(page.text, HasSubstr(name));
  for (const char* element : {"script", "link", "img", "iframe", "object"})
    EXPECT_THAT(page.elements, Not(::testing::Contains(element)));
  EXPECT_THAT(html, Not(HasSubstr("url(")));
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
  EXPECT_THAT(html, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(html, HasSubstr("width=device-width"));
}

TEST(HtmlReport, SaysTheFiguresOfTheReport) {
  Json r = report();
  r["seconds"] = 8.25;
  r["fallbacks"] =
      Json::array({Json::object({{"module", "model.layers.1.mlp.down_proj"}, {"reason", "loses more"}})});
  r["warnings"] = Json::array({"damp is 0.015"});
  r["evaluation"] = Json::object(
      {{"protocol", "hf-2048"},
       {"text", "builtin:wikitext-2"},
       {"windows", 16},
       {"ppl", 20.5},
       {"ppl_stderr", 0.25},
       {"against", Json::object({{"ppl", 19.5},
                                 {"delta_ppl", 1.0},
                                 {"kl_mean", 0.125},
                                 {"kl_p99", 0.75},
                                 {"kl_max", 3.0},
                                 {"top1_agreement", 0.875}})},
       {"gates", Json::array({Json::object(
                     {{"name", "max_kl"}, {"limit", 0.1}, {"value", 0.125}, {"met", false}})})}});
  const Markup page(make_html_report(r));
  EXPECT_EQ(page.error, "");
  for (const char* text : {"SmolLM2-135M",
                           "4.312",
                           "6.500",
                           "2.50 times smaller",
                           "25.0 %",
                           "8.2 s",
                           "One linear did not get",
                           "loses more",
                           "One warning",
                           "damp is 0.015",
                           "19.5000",
                           "20.5000 ± 0.2500",
                           "1.0000",
                           "0.12500",
                           "87.50 %",
                           "not met",
                           "down_proj",
                           "left dense",
                           "3.000e-04",
                           "2.000e-01"})
    EXPECT_THAT(page.text, HasSubstr(text));
}

TEST(HtmlReport, ShowsWhatMixedPrecisionChose) {
  Json r = report();
  const auto option = [](int bits, double kl) { return Json::object({{"bits", bits}, {"kl", kl}}); };
  r["mixed"] = Json::object(
      {{"target_bits", 4.5},
       {"bits_per_weight", 4.4375},
       {"kl", 0.0625},
       {"kl_at_fewest_bits", 0.125},
       {"choices", Json::array({Json::object(
                       {{"modules", Json::array({"a.0.q", "a.0.<k>"})},
                        {"bits", 8},
                        {"options", Json::array({option(4, 2e-3), option(8, 3e-6), option(16, 0)})}})})}});
  const std::string html = make_html_report(r);
  const Markup page(html);
  EXPECT_EQ(page.error, "");
  for (const char* text :
       {"4.4375 of 4.5 bits", "0.0625 nats", "0.1250 with", "a.0.q", "a.0.<k>", "KL at 16", "2.000e-03"})
    EXPECT_THAT(page.text, HasSubstr(text));
  EXPECT_THAT(html, HasSubstr("<td><b>8</b></td>"));
  EXPECT_THAT(html, HasSubstr("<td><b>3.000e-06</b></td>"));
  // Of whole schemes two may have as many bits.
  Json& choice = r["mixed"]["choices"].items().front();
  choice["bits"] = 4, choice["scheme"] = "nvfp4a16";
  choice["options"] = Json::array({option(4, 2e-3), option(4, 1e-3)});
  choice["options"].items()[0]["scheme"] = "w4a16_g64_asym";
  choice["options"].items()[1]["scheme"] = "nvfp4a16";
  const std::string schemes = make_html_report(r);
  EXPECT_THAT(Markup(schemes).text, HasSubstr("KL at nvfp4a16"));
  EXPECT_THAT(schemes, HasSubstr("<td><b>nvfp4a16</b></td>"));
  EXPECT_THAT(schemes, HasSubstr("<td>2.000e-03</td>"));
  EXPECT_THAT(schemes, HasSubstr("<td><b>1.000e-03</b></td>"));
}

TEST(HtmlReport, ShowsErrorsAsAMapAndMemoryBesideItsPlanAndLimit) {
  Json r = report();
  r["memory"] = Json::object({{"planned_peak_bytes", 3000000}, {"limit_bytes", 4000000}});
  EXPECT_THAT(make_html_report(r), Not(HasSubstr("Memory of the run"))) << "nobody looked";
  r["memory"]["samples"] =
      Json::array({Json::object({{"seconds", 0.5}, {"rss_bytes", 1000000}, {"most_bytes", 1000000}}),
                   Json::object({{"seconds", 2.5}, {"rss_bytes", 1500000}, {"most_bytes", 2500000}})});
  r["modules"].items()[2]["relative_error"] = 0.5;
  const std::string html = make_html_report(r);
  const Markup page(html);
  EXPECT_EQ(page.error, "");
  EXPECT_THAT(page.text, HasSubstr("At most 2.5 MB over 2.5 s; planned peak 3.0 MB; limit 4.0 MB"));
  EXPECT_THAT(html, HasSubstr("<polyline class=\"line limit\""));
  EXPECT_THAT(page.text, HasSubstr("The largest is 5.000e-01, in down_proj of block 1"));
  EXPECT_THAT(html, HasSubstr("<rect class=\"q7\"")) << "the largest is darkest";
  EXPECT_THAT(html, HasSubstr("<rect class=\"q0\""));
}

TEST(HtmlReport, HostileNamesStayText) {
  const std::string evil = "a.0.</bdi><script>alert(\"1\")</script>&lt;'\x01\xff\xe2\x80\xae";
  Json r = report();
  r["model"] = evil;
  r["method"] = evil;
  r["scheme"] = evil;
  r["format"] = evil;
  r["command"] = evil;
  r["modules"] =
      Json::array({module(evil, 1, 2), module("", 1, 2), module("9999999999999999999999.x", 1, 2)});
  r["left_dense"] = Json::array({evil});
  r["fallbacks"] = Json::array({Json::object({{"module", evil}, {"reason", evil}})});
  r["warnings"] = Json::array({evil});
  r["calibration"] = Json::object({{evil, evil}});
  r["loaders"] = Json::array({Json::object({{"loader", evil}, {"fits", false}, {"reason", evil}})});
  r["evaluation"] = Json::object(
      {{"protocol", evil}, {"text", evil}, {"gates", Json::array({Json::object({{"name", evil}})})}});
  r["seconds_by_part"] = Json::object({{evil, 1.0}});
  const std::string html = make_html_report(r);
  const Markup page(html);
  EXPECT_EQ(page.error, "");
  EXPECT_THAT(page.elements, Not(::testing::Contains("script")));
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("\x01")));
  EXPECT_THAT(html, Not(HasSubstr("\xff")));
  EXPECT_THAT(page.text, HasSubstr("</bdi><script>alert(\"1\")</script>&lt;'\xEF\xBF\xBD\xEF\xBF\xBD"));
}

TEST(HtmlReport, AReportOfAnyShapeIsDrawn) {
  for (const Json& r :
       {Json(), Json::array(), Json::object(), Json::object({{"modules", 3}, {"evaluation", "x"}}),
        Json::object({{"modules", Json::array({Json(), Json::object({{"module", "a.1.b"}, {"loss", -1.0}}),
                                               Json::object({{"scale_histogram",
                                                              Json::object({{"first_octave", 1e300},
                                                                            {"bins_per_octave", 0}})}})})}})})
    EXPECT_EQ(Markup(make_html_report(r)).error, "") << r.dump();
}

TEST(HtmlCharts, BarsStandOnWholeDecadesAndKeepTheirRatio) {
  const std::vector<BarPair> bars = {{"a", 1e-3, 1e-4}, {"b", 1e-1, {}}, {"c", 0.0, 1.0}};
  const Decades decades = decades_of(bars);
  EXPECT_EQ(decades.first, -4);
  EXPECT_EQ(decades.last, 0);
  std::vector<double> heights;
  const std::string svg = bar_chart(bars, decades, "0", "2");
  const auto rest = [&svg](std::size_t from) { return svg.find(" height=\"", svg.find("<rect", from)); };
  for (std::size_t at = svg.find("<rect"); at != std::string::npos; at = svg.find("<rect", at + 1))
    heights.push_back(std::stod(svg.substr(rest(at) + 9)));
  // 122 pixels for 4 decades; the least amount keeps one pixel, 0 and nothing have no bar.
  EXPECT_THAT(heights, ElementsAre(30.5, 1.0, 91.5, 122.0));
}

TEST(HtmlCharts, TextIsSafeInMarkup) {
  EXPECT_EQ(html_text("a<b>&\"'é"), "a&lt;b&gt;&amp;&quot;&#39;é");
  EXPECT_EQ(html_text(std::string("\x00\x1f\x7f\xc3", 4)),
            "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(html_text("\xEF\xBF\xBF"), "\xEF\xBF\xBD");
}

}  // namespace
}  // namespace llmq::testing
