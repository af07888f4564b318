// A plan and what it costs are made by src/quant/plan and constant from then on: nobody else in src/ and
// tools/ has one that could change, as a parameter, a member or a variable. Search over text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "unit/house/source_text.h"

namespace llmq::house {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// "src/job/x.cpp:3: ..." for each plan, or costs of one, that is not const where it is referred to, held or
// copied. Functions may return one.
Findings changing_plans(const std::string& path, const std::string& text) {
  static const std::regex use(
      "(const\\s+)?\\b(Plan|GgufPlan|PlanCosts)\\b(\\s*[&*>]|\\s+\\w+\\s*[;=,){]|\\s*[,)])");
  Findings found;
  if (path.starts_with("src/quant/plan/")) return found;
  const std::vector<std::string> lines = lines_of_code(text);
  for (std::size_t i = 0; i < lines.size(); ++i)
    for (std::sregex_iterator match(lines[i].begin(), lines[i].end(), use), end; match != end; ++match)
      if (!(*match)[1].matched)
        found.push_back(at_line(path, i, (*match)[2].str() + " is made once: it is const here"));
  return found;
}

TEST(House, APlanIsMadeOnce) {
  Findings found;
  for (const Source& source : sources_of({"src", "tools"}))
    append(found, changing_plans(source.path, source.text));
  EXPECT_THAT(found, IsEmpty());
}

TEST(HouseCheck, CatchesPlansThatCouldChange) {
  const std::string path = "src/job/x.cpp";
  EXPECT_THAT(changing_plans(path, "int x;\nvoid settle(Plan& plan);\n"),
              ElementsAre("src/job/x.cpp:2: Plan is made once: it is const here"));
  for (const char* code : {"void f(int x, GgufPlan* plan);", "  PlanCosts costs_;", "Plan tried = plan;",
                           "std::unique_ptr<Plan> plan_;", "void f(Plan plan);", "  Plan plan{};",
                           "std::pair<Plan, int> both;", "const int x = f(const_cast<Plan&>(plan));"})
    EXPECT_THAT(changing_plans(path, code), SizeIs(1)) << code;
  for (const char* code :
       {"void f(const Plan& plan, const PlanCosts& costs);", "const GgufPlan plan_;", "Plan make_plan(int);",
        "for (const GgufPlan::Tensor& tensor : plan.tensors) {}", "std::unique_ptr<const Plan> plan_;",
        "// what a Plan& was for", "struct Plan;", "f(\"Plan& plan\");", "PlanOutline outline;"})
    EXPECT_THAT(changing_plans(path, code), IsEmpty()) << code;
  EXPECT_THAT(changing_plans("src/quant/plan/plan_limits.cpp", "void settle(Plan& plan);"), IsEmpty());
}

}  // namespace
}  // namespace llmq::house
