// Gates as JUnit and as Markdown: well-formed whatever names there are, and true to the document.
#include "job/documents/gate_documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/markup.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kEvilName = "a]]></testcase><x y=\"1\">&|`<img src=x>\x01\nb";

Json gate(const char* name, Json limit, Json value, bool met) {
  return Json::object(
      {{"name", name}, {"limit", std::move(limit)}, {"value", std::move(value)}, {"met", met}});
}

Json quantized(Json gates) {
  return Json::object(
      {{"schema", "llmq.quantize/1"},
       {"status", "done"},
       {"output", kEvilName},
       {"bytes_out", 1234567},
       {"seconds", 12.5},
       {"fallbacks", Json::array({Json::object({{"module", kEvilName}, {"reason", "r"}})})},
       {"evaluation", Json::object({{"ppl", 20.25},
                                    {"against", Json::object({{"model", kEvilName}, {"kl_mean", 0.3}})},
                                    {"gates", std::move(gates)}})}});
}

// Markup reads pages, whose first line is another.
Markup read_xml(const std::string& text) {
  const std::string first = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  EXPECT_EQ(text.rfind(first, 0), 0u) << text;
  static std::string page;
  page = "<!DOCTYPE html>\n" + text.substr(first.size());
  return Markup(page);
}

TEST(GateDocuments, EveryGateIsATestCaseWithWhatWasMeasured) {
  const std::string xml = junit_text(
      quantized(Json::array({gate("max_kl", 0.2, 0.3, false), gate("max_ppl", 25, 20.25, true)})), false);
  const Markup read = read_xml(xml);
  EXPECT_EQ(read.error, "");
  EXPECT_EQ(std::count(read.elements.begin(), read.elements.end(), "testcase"), 2);
  EXPECT_EQ(std::count(read.elements.begin(), read.elements.end(), "failure"), 1);
  EXPECT_EQ(std::count(read.elements.begin(), read.elements.end(), "x"), 0);
  EXPECT_THAT(xml, HasSubstr("<testsuites name=\"llmq\" tests=\"2\" failures=\"1\" errors=\"0\">"));
  EXPECT_THAT(
      xml,
      HasSubstr("name=\"max_kl\" time=\"0\"><failure type=\"gate\" message=\"measured 0.3, limit 0.2\"/>"));
  EXPECT_THAT(xml,
              HasSubstr("name=\"max_ppl\" time=\"0\"><system-out>measured 20.25, limit 25</system-out>"));
  EXPECT_THAT(xml, HasSubstr("time=\"12.500\""));
}

TEST(GateDocuments, AFigureThatIsNotFiniteIsAFailure) {
  const std::string xml = junit_text(quantized(Json::array({gate("max_kl", 0.2, Json(), false)})), false);
  EXPECT_THAT(xml, HasSubstr("<failure type=\"gate\" message=\"measured nan, limit 0.2\"/>"));
}

TEST(GateDocuments, StrictIsAGateToo) {
  const Json document = quantized(Json::array());
  EXPECT_THAT(junit_text(document, false), Not(HasSubstr("strict")));
  EXPECT_THAT(junit_text(document, true), HasSubstr("name=\"strict\" time=\"0\"><failure"));
}

TEST(GateDocuments, SeveralModelsAreSeveralSuites) {
  const auto model = [](const char* name, bool met) {
    return Json::object({{"schema", "llmq.eval-ppl/1"},
                         {"model", name},
                         {"ppl", 3},
                         {"gates", Json::array({gate("max-ppl", 4, 3, met)})}});
  };
  const Json several = Json::object(
      {{"schema", "llmq.eval-ppl-models/1"}, {"models", Json::array({model("a", true), model("b", false)})}});
  const std::string xml = junit_text(several, false);
  EXPECT_THAT(xml, HasSubstr("<testsuite name=\"llmq eval-ppl a\" tests=\"1\" failures=\"0\""));
  EXPECT_THAT(xml, HasSubstr("<testsuite name=\"llmq eval-ppl b\" tests=\"1\" failures=\"1\""));
  EXPECT_THAT(summary_text(several, false), HasSubstr("| max-ppl | 3 | 4 | NOT MET |"));
}

TEST(GateDocuments, AnErrorIsATestCaseInError) {
  const std::string xml =
      junit_of_error("quantize", Error(ErrorKind::kBadInput, {"is <damaged>", "model.safetensors", {}, "h"}));
  EXPECT_EQ(read_xml(xml).error, "");
  EXPECT_THAT(xml, HasSubstr("errors=\"1\""));
  EXPECT_THAT(xml, HasSubstr("&lt;damaged&gt;"));
}

TEST(GateDocuments, TheSummaryIsATableThatNoNameBreaks) {
  const std::string text = summary_text(quantized(Json::array({gate("max_kl", 0.2, 0.3, false)})), false);
  EXPECT_THAT(
      text,
      HasSubstr("| gate | measured | limit | |\n|---|---|---|---|\n| max\\_kl | 0.3 | 0.2 | NOT MET |\n"));
  EXPECT_THAT(text, HasSubstr("| weights written | 1.2 MB |\n"));
  EXPECT_THAT(text, Not(HasSubstr("<img")));
  EXPECT_THAT(text, Not(HasSubstr("<x")));
  EXPECT_THAT(text, HasSubstr("&amp;\\|\\`&lt;img"));
  EXPECT_THAT(text, Not(HasSubstr("\nb"))) << "a name is one line";
}

}  // namespace
}  // namespace llmq::testing
