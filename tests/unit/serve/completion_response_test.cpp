// Answers, chunk by chunk, as OpenAI's documentation shows them; calls of functions in what a model writes.
#include "serve/completion_response.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/tool_calls.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;

const CompletionHead kHead{"chatcmpl-1", "m", 1700000000};

CompletionPart part(int index, const std::string& text, const std::string& reason = {}) {
  CompletionPart one;
  one.index = index;
  one.text = text;
  one.finish_reason = reason;
  return one;
}

TEST(CompletionResponse, Chat) {
  EXPECT_EQ(
      chat_completion(kHead, {part(0, "Hi", "stop")}, {5, 1, 4}).dump(),
      R"({"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Hi","refusal":null},)"
      R"("logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6,"prompt_tokens_details":{"cached_tokens":4}}})");
}

TEST(CompletionResponse, ChatStream) {
  EXPECT_EQ(event_text(chat_role_chunk(kHead, 0)),
            "data: "
            "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":"
            "\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
            "\"logprobs\":null,\"finish_reason\":null}]}\n\n");
  EXPECT_THAT(
      chat_chunk(kHead, part(1, "Hi")).dump(),
      HasSubstr(R"("choices":[{"index":1,"delta":{"content":"Hi"},"logprobs":null,"finish_reason":null}])"));
  EXPECT_THAT(chat_chunk(kHead, part(0, "", "length")).dump(),
              HasSubstr(R"("delta":{},"logprobs":null,"finish_reason":"length"}]})"));
  EXPECT_THAT(usage_chunk(kHead, true, {5, 1, 0}).dump(),
              HasSubstr(R"("choices":[],"usage":{"prompt_tokens":5)"));
}

TEST(CompletionResponse, ChatLogprobsCarryBytes) {
  CompletionPart one = part(0, "é", "stop");
  one.logprobs = {{"\xc3", -0.5, {{"\xc3", -0.5}, {"a", -1}}}, {"\xa9", -0.25, {}}};
  const Json content =
      chat_completion(kHead, {one}, {}).at("choices").items()[0].at("logprobs").at("content");
  EXPECT_EQ(
      content.items()[0].dump(),
      R"({"token":"�","logprob":-0.5,"bytes":[195],"top_logprobs":[{"token":"�","logprob":-0.5,"bytes":[195]},{"token":"a","logprob":-1.0,"bytes":[97]}]})");
  EXPECT_EQ(content.items().size(), 2u);
}

TEST(CompletionResponse, TextLogprobsTellBrokenTokensApart) {
  CompletionPart one = part(0, "aé", "stop");
  one.text_offset = 3;
  one.logprobs = {{"a", -0.5, {{"\xc3", -1}, {"\xc2", -2}}, 1},
                  {"\xc3", -0.25, {}, 1},
                  {"\xa9", 0, {}, 0},
                  {"</s>", 0, {}, 0}};
  EXPECT_EQ(
      text_completion(kHead, {one}, {}).at("choices").items()[0].at("logprobs").dump(),
      R"({"tokens":["a","bytes:\\xc3","bytes:\\xa9","</s>"],"token_logprobs":[-0.5,-0.25,0.0,0.0],"top_logprobs":[{"bytes:\\xc3":-1.0,"bytes:\\xc2":-2.0},{},{},{}],"text_offset":[3,4,5,5]})");
}

TEST(CompletionResponse, TextAndItsChunks) {
  EXPECT_THAT(
      text_completion(kHead, {part(0, "a", "stop"), part(1, "b", "length")}, {}).dump(),
      HasSubstr(
          R"("object":"text_completion","created":1700000000,"model":"m","choices":[{"text":"a","index":0,"logprobs":null,"finish_reason":"stop"},{"text":"b","index":1)"));
  EXPECT_THAT(text_chunk(kHead, part(0, "a")).dump(),
              HasSubstr(R"("choices":[{"text":"a","index":0,"logprobs":null,"finish_reason":null}]})"));
}

TEST(CompletionResponse, ToolCalls) {
  CompletionPart one = part(0, "", "tool_calls");
  one.tool_calls = {{"call_1", "f", "{\"x\":1}"}};
  EXPECT_THAT(
      chat_completion(kHead, {one}, {}).dump(),
      HasSubstr(
          R"("message":{"role":"assistant","content":null,"refusal":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]})"));
  EXPECT_THAT(chat_chunk(kHead, one).dump(),
              HasSubstr(R"("delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function")"));
}

// All of `text` in pieces of `step` bytes: what was shown, then "|", what was left, and the calls.
std::string read(const std::string& text, std::size_t step = 1,
                 const std::vector<std::string>& functions = {"f", "g"}) {
  ToolCallReader reader(functions);
  std::string shown;
  for (std::size_t i = 0; i < text.size(); i += step) shown += reader.push(text.substr(i, step));
  const ToolCallReader::Rest rest = reader.finish();
  shown += "|" + rest.text;
  for (const ToolCall& call : rest.calls) shown += "|" + call.name + call.arguments;
  return shown;
}

TEST(ToolCalls, Hermes) {
  for (const std::size_t step : {1u, 3u, 1000u}) {
    EXPECT_EQ(read("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>", step),
              "||f{\"x\":1}");
    EXPECT_EQ(
        read("Let me see.\n<tool_call>{\"name\": \"f\", \"arguments\": "
             "{}}</tool_call>\n<tool_call>{\"name\": \"g\", \"arguments\": {\"a\": \"</\"}}</tool_call>",
             step),
        "Let me see.||f{}|g{\"a\":\"</\"}");
    EXPECT_EQ(read("<tool_call>{\"name\": \"f\", \"arguments\": {}}", step), "||f{}")
        << "the end was cut off";
  }
}

TEST(ToolCalls, Llama) {
  for (const std::size_t step : {1u, 1000u}) {
    EXPECT_EQ(read("{\"name\": \"f\", \"parameters\": {\"x\": \"}\"}}", step), "||f{\"x\":\"}\"}");
    EXPECT_EQ(read("<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": "
                   "{\"y\": [2]}}",
                   step),
              "||f{}|g{\"y\":[2]}");
  }
}

TEST(ToolCalls, WhatIsForcedIsRead) {
  EXPECT_EQ(tool_call_form("within <tool_call></tool_call> tags"), ToolCallForm::kTagged);
  EXPECT_EQ(tool_call_form("{\"name\": function name}"), ToolCallForm::kPlain);
  for (const ToolCallForm form : {ToolCallForm::kTagged, ToolCallForm::kPlain})
    for (const bool one_call : {false, true}) {
      const ConstraintSpec spec = forced_calls(
          form, {{"f", Json::object(), "tools[0]"}, {"g\"", Json::object(), "tools[1]"}}, one_call);
      const auto& calls = std::get<FramedValues>(spec.kind);
      EXPECT_EQ(calls.between.has_value(), !one_call);
      ToolCallReader reader({"f", "g\""}, one_call);
      std::string said = reader.push(calls.frames.at(0).before + "{\"x\": 1}" + calls.frames.at(0).after);
      said += reader.push(calls.between.value_or(form == ToolCallForm::kTagged ? "" : ";") +
                          calls.frames.at(1).before + "{}" + calls.frames.at(1).after);
      const ToolCallReader::Rest rest = reader.finish();
      EXPECT_EQ(said + rest.text, "");
      ASSERT_EQ(rest.calls.size(), one_call ? 1u : 2u);
      EXPECT_EQ(rest.calls[0].name + rest.calls[0].arguments, "f{\"x\":1}");
      if (one_call) continue;
      EXPECT_EQ(rest.calls[1].name, "g\"");
    }
}

TEST(ToolCalls, WhatIsNoCallIsText) {
  const auto whole = [](const std::string& text, const std::vector<std::string>& functions = {"f"}) {
    std::string found = read(text, 1, functions);
    found.erase(found.find('|'), 1);
    return found;
  };
  for (const char* text : {"Hello, world ", "a < b, <tool", "{\"name\": \"unknown\", \"parameters\": {}}",
                           "{\"name\": \"f\"} and more", "<tool_call>{broken</tool_call> x",
                           "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>", "{", "\"f\"", ""})
    EXPECT_EQ(whole(text), text);
  EXPECT_EQ(whole("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", {}),
            "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>")
      << "no tools were offered";
}

TEST(ToolCalls, TextIsShownAsItComes) {
  ToolCallReader reader({"f"});
  EXPECT_EQ(reader.push("Once"), "Once");
  EXPECT_EQ(reader.push(" upon "), " upon");
  EXPECT_EQ(reader.push("a <"), " a");
  EXPECT_EQ(reader.push("b"), " <b");
}

}  // namespace
}  // namespace llmq
