#include "base/yaml.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace llmq {
namespace {

std::string yaml_refusal(std::string_view text) {
  try {
    Yaml::parse(text, "r.yaml");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    return error.what();
  }
  return "accepted";
}

template <typename Read>
std::string read_refusal(std::string_view text, const Read& read) {
  const Yaml node = Yaml::parse(text, "r.yaml");
  try {
    read(node.kind() == Yaml::Kind::kMapping ? node.members()[0].value : node);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Yaml, ReadsARecipeWithItsPlaces) {
  const Yaml root = Yaml::parse(
      "version: 1\nignore: [lm_head, \"re:.*x\"]\nawq:\n  grid: 20\n  clip: true\n  ratio: 5e-1\nempty:\n",
      "r.yaml");
  EXPECT_EQ(root.find("version")->as_integer(), 1);
  EXPECT_EQ(root.find("ignore")->items()[1].as_string(), "re:.*x");
  const Yaml& grid = *root.find("awq")->find("grid");
  EXPECT_EQ(grid.as_integer(), 20);
  EXPECT_EQ(grid.line(), 4);
  EXPECT_EQ(grid.column(), 9);
  EXPECT_EQ(root.members()[2].line, 3);
  EXPECT_TRUE(root.find("awq")->find("clip")->as_bool());
  EXPECT_EQ(root.find("awq")->find("ratio")->as_double(), 0.5);
  EXPECT_EQ(root.find("empty")->kind(), Yaml::Kind::kNull);
  EXPECT_EQ(root.find("absent"), nullptr);
}

TEST(Yaml, RefusesWhatARecipeMayNotHold) {
  const struct {
    const char* text;
    const char* expected;
  } cases[] = {
      {"a: &x 1\nb: 2\n", "r.yaml: 1:4: anchors"},
      {"a: &x 1\nb: *x\n", "anchors"},
      {"a: !!int 1\n", "r.yaml: 1:4: tags"},
      {"a: ! q\n", "tags"},
      {"a: !x [1]\n", "tags"},
      {"b: 1\n<<: {a: 1}\n", "r.yaml: 2:1: merge keys"},
      {"a: 1\nb: 2\na: 3\n", "r.yaml: 3:1: key 'a' stands already in line 1"},
      {"a: 1\n\"a\": 3\n", "stands already"},
      {"a: 1\n---\nb: 2\n", "a second document"},
      {"? [x]\n: 1\n", "a key is a word, found a list"},
      {"? {x: 1}\n: 1\n", "a key is a word, found a mapping"},
      {"a: [1\n", "not valid YAML"},
      {"a:\n\t- 1\n", "not valid YAML"},
      {"a: \"\\q\"\n", "not valid YAML"},
      {"a: b\xff\n", "r.yaml: 1:5: holds the byte 0xff, which is not UTF-8"},
      {"a: \xc3\xa9\n\xc3\xa9: \xed\xa0\x80", "r.yaml: 2:4: holds the byte 0xed, which is not UTF-8"},
      {"a: b\x01\n", "r.yaml: 1:5: holds the control character 0x01"},
  };
  for (const auto& c : cases)
    EXPECT_NE(yaml_refusal(c.text).find(c.expected), std::string::npos)
        << c.text << " -> " << yaml_refusal(c.text);
}

TEST(Yaml, RefusesTooMuch) {
  std::string many = "[";
  for (int i = 0; i < 9998; ++i) many += "1,";
  EXPECT_EQ(yaml_refusal(many + "1]"), "accepted");
  EXPECT_NE(yaml_refusal(many + "1,1]").find("more than 10000 values"), std::string::npos);
  EXPECT_NE(yaml_refusal("#" + std::string(1u << 20, 'x')).find("more than the 1048576"), std::string::npos);
  EXPECT_NE(yaml_refusal(std::string(65, '[') + std::string(65, ']')).find("deeper than 64"),
            std::string::npos);
  EXPECT_NE(yaml_refusal(std::string(100000, '[')), "accepted");
}

TEST(Yaml, OnlyPlainDecimalsAreNumbers) {
  const auto integer = [](const Yaml& node) { node.as_integer(); };
  const auto number = [](const Yaml& node) { node.as_double(); };
  for (const char* text : {"v: 012", "v: 0x10", "v: 1_000", "v: '1'", "v: 1.0", "v: +",
                           "v: 99999999999999999999", "v: [1]", "v:", "v: 1e3"})
    EXPECT_NE(read_refusal(text, integer).find("r.yaml: 1:"), std::string::npos) << text;
  for (const char* text : {"v: .nan", "v: .inf", "v: nan", "v: 1e999", "v: 01.5", "v: \"1.5\"", "v: .",
                           "v: 1e", "v: 0x1p3", "v: --1"})
    EXPECT_NE(read_refusal(text, number).find("r.yaml: 1:"), std::string::npos) << text;
  for (const char* text : {"v: 0", "v: -7", "v: +7", "v: 9223372036854775807"})
    EXPECT_EQ(read_refusal(text, integer), "accepted") << text;
  for (const char* text : {"v: .5", "v: 5.", "v: 1e-3", "v: +0.25", "v: -1.5E+2", "v: 3"})
    EXPECT_EQ(read_refusal(text, number), "accepted") << text;
}

TEST(Yaml, OnlyTrueAndFalseAreBooleans) {
  const auto boolean = [](const Yaml& node) { node.as_bool(); };
  for (const char* text : {"v: yes", "v: True", "v: on", "v: 1", "v: 'true'"})
    EXPECT_NE(read_refusal(text, boolean).find("r.yaml: 1:4: expected true or false"), std::string::npos)
        << text;
  EXPECT_EQ(read_refusal("v: false", boolean), "accepted");
}

TEST(Yaml, EmptyTextIsNothingAtTheTop) {
  const Yaml root = Yaml::parse("", "r.yaml");
  EXPECT_EQ(root.kind(), Yaml::Kind::kNull);
  EXPECT_THROW(root.fail_here("is empty"), Error);
  EXPECT_EQ(root.line(), 1);
}

}  // namespace
}  // namespace llmq
