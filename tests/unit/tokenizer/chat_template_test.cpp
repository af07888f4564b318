// Hostile templates end in one sentence inside their budget; templates are found where models keep them.
#include "tokenizer/chat_template.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "support/temporary_directory.h"
#include "tokenizer/tokenizer_config.h"

namespace llmq {
namespace {

Json one_message() {
  return Json::object({{"messages", Json::array({Json::object({{"role", "user"}, {"content", "Hi"}})})}});
}

std::string render(std::string_view source, const Json& request = one_message()) {
  return ChatTemplate::parse(source, "t.jinja").render(request, std::tm{});
}

// The sentence with which a template ends.
std::string refusal(std::string_view source, const Json& request = one_message()) {
  try {
    const std::string text = render(source, request);
    return "rendered " + text.substr(0, 200);
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), 2) << error.what();
    return error.what();
  }
}

std::string repeated(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

// As Jinja renders them with trim_blocks and lstrip_blocks, which Transformers sets.
TEST(ChatTemplate, BlanksAroundBlocksGo) {
  EXPECT_EQ(render("a\n  {% if true %}\n  b\n  {% endif %}\nc"), "a\n  b\nc");
  EXPECT_EQ(render("x {% if true %}\ny{% endif %}"), "x y");
  EXPECT_EQ(render("  {%+ if true %}z{% endif %}"), "  z");
  EXPECT_EQ(render("  {{ 1 }}\n  {# c #}\nq"), "  1\nq");
}

TEST(ChatTemplate, EndlessWorkIsStopped) {
  for (const char* source : {
           "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
           "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
           "{% macro m(n) %}{{ m(n) + m(n) }}{% endmacro %}{{ m(1) }}",
           "{{ 'a' * 1000000000000 }}",
           "{{ [1] * 1000000000000 }}",
           "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% "
           "endfor %}",
           "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
           "{% set ns = namespace(x='a') %}{% for i in range(90000) %}{% set ns.x = ns.x ~ 'aaaaaaaa' %}{% "
           "endfor %}",
           "{{ 'a'.replace('', 'b' * 100000000) }}",
           "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
           "{{ ('\\n' * 1000000) | indent(1000, blank=true) }}",
           "{{ (',' * 90000000).split(',') | length }}",
           "{{ (['a' * 1000] * 100000) | join('b' * 1000000) }}",
           "{{ (range(100000) | list) * 1000 }}",
       })
    EXPECT_NE(refusal(source).find("the chat template needs more than"), std::string::npos)
        << source << "\n"
        << refusal(source);
}

// x = [x, x], a hundred times: two to the hundred leaves in a hundred lists.
TEST(ChatTemplate, SharedValuesAreCountedEachTimeTheyAreSeen) {
  const std::string grow =
      "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
  for (const char* use : {"{{ ns.x }}", "{{ ns.x | tojson }}", "{{ ns.x | tojson(indent=4) }}",
                          "{{ ns.x == [ns.x[0], ns.x[0] + []] }}", "{{ ns.x | string | length }}"})
    EXPECT_NE(refusal(grow + use).find("needs more than"), std::string::npos) << use << refusal(grow + use);
}

TEST(ChatTemplate, DeepNestingIsRefused) {
  EXPECT_NE(refusal("{{ " + repeated("(", 100000) + "1" + repeated(")", 100000) + " }}").find("nests deeper"),
            std::string::npos);
  EXPECT_NE(refusal("{{ " + repeated("[", 100000) + repeated("]", 100000) + " }}").find("nests deeper"),
            std::string::npos);
  EXPECT_NE(refusal("{{ " + repeated("not ", 100000) + "1 }}").find("nests deeper"), std::string::npos);
  EXPECT_NE(refusal("{{ " + repeated("-", 100000) + "1 }}").find("nests deeper"), std::string::npos);
  EXPECT_NE(refusal("{{ 1" + repeated(" + 1", 100000) + " }}").find("deeper than"), std::string::npos);
  EXPECT_NE(refusal("{{ x" + repeated(".a", 100000) + " }}").find("deeper than"), std::string::npos);
  EXPECT_NE(refusal("{{ x" + repeated("|trim", 100000) + " }}").find("deeper than"), std::string::npos);
  EXPECT_NE(refusal("{{ 1" + repeated(" if 1", 100000) + " }}").find("deeper than"), std::string::npos);
  EXPECT_NE(refusal(repeated("{% if 1 %}", 100000)).find("nests deeper"), std::string::npos);
  EXPECT_NE(
      refusal("{% set ns = namespace(x=[]) %}{% for i in range(10000) %}{% set ns.x = [ns.x] %}{% endfor %}")
          .find("nests values deeper"),
      std::string::npos);
  EXPECT_NE(refusal("{% set ns = namespace() %}{% set ns.x = ns %}").find("stores a namespace"),
            std::string::npos);
  EXPECT_NE(refusal("{% set ns = namespace() %}{% set ns.x = [ns] %}").find("stores a namespace"),
            std::string::npos);
}

TEST(ChatTemplate, AnErrorNamesTheLine) {
  EXPECT_EQ(refusal("a\n{% for m in messages %}\n{{ m.content.x + 1 }}{% endfor %}"),
            "t.jinja: line 3: 'str object' has no attribute 'x'");
  EXPECT_EQ(refusal("\n\n{{ raise_exception('no tools') }}"),
            "t.jinja: line 3: the chat template refuses: no tools");
  EXPECT_NE(refusal("\n{% include 'x' %}").find("t.jinja: line 2: the chat template uses {% include %}"),
            std::string::npos);
  EXPECT_NE(refusal("{{ 9223372036854775807 + 1 }}").find("beyond 64 bits"), std::string::npos);
  EXPECT_EQ(render("{{ -9223372036854775807 - 1 }}"), "-9223372036854775808");
  EXPECT_NE(refusal("{{ 'ß'.upper() }}").find("one to one"), std::string::npos);
  EXPECT_EQ(refusal("a\xff"), "t.jinja: byte 1: the chat template is not UTF-8");
}

TEST(ChatTemplate, ARequestIsChecked) {
  const auto with = [](const char* key, Json value) {
    Json request = one_message();
    request[key] = std::move(value);
    return request;
  };
  EXPECT_NE(refusal("x", Json::object()).find("at least one message"), std::string::npos);
  EXPECT_NE(refusal("x", with("messages", Json::array())).find("at least one message"), std::string::npos);
  EXPECT_NE(refusal("x", with("messages", Json::array({1}))).find("messages[0]: expected a message"),
            std::string::npos);
  EXPECT_NE(refusal("x", with("tools", 1)).find("tools: expected a list"), std::string::npos);
  EXPECT_NE(refusal("x", with("add_generation_prompt", "yes")).find("expected true or false"),
            std::string::npos);
  EXPECT_NE(refusal("x", with("continue_final_message", true)).find("cannot be continued"),
            std::string::npos);
  EXPECT_EQ(render("{{ enable_thinking }}", with("enable_thinking", false)), "False");
}

TEST(ChatTemplate, IsFoundWhereModelsKeepIt) {
  const testing::TemporaryDirectory directory;
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(directory.path() / name) << text;
  };
  EXPECT_FALSE(ChatTemplate::open(system_io(), directory.path()).has_value());
  write(
      "tokenizer_config.json",
      R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "{{ bos_token }}{{ eos_token }}"})");
  EXPECT_EQ(ChatTemplate::open(system_io(), directory.path())->render(one_message(), {}), "<s></s>");
  write("special_tokens_map.json", R"({"bos_token": "<beside>", "pad_token": {"content": "<pad>"}})");
  const Json config = tokenizer_config(system_io(), directory.path()).json;
  EXPECT_EQ(config.at("bos_token").at("content"), Json("<s>")) << "the map is looked at last";
  EXPECT_EQ(config.at("pad_token"), Json("<pad>"));
  write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]})");
  const auto several = ChatTemplate::open(system_io(), directory.path());
  EXPECT_EQ(several->render(one_message(), {}), "plain");
  EXPECT_EQ(several->source(), "plain");
  Json request = one_message();
  request["tools"] = Json::array();
  EXPECT_EQ(several->render(request, {}), "tools");
  write("chat_template.jinja", "own\n");
  EXPECT_EQ(ChatTemplate::open(system_io(), directory.path())->render(one_message(), {}), "own");
  EXPECT_EQ(ChatTemplate::open(system_io(), directory.path())->source(), "own\n");
  write("tokenizer_config.json", "[]");
  EXPECT_THROW(tokenizer_config(system_io(), directory.path()), Error);
}

}  // namespace
}  // namespace llmq
