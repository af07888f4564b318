// Bodies of requests: what is read, and what is refused with the name of the field at fault.
#include "serve/requests/completion_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/api_error.h"

namespace llmq {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RequestLimits limits() {
  RequestLimits limits;
  limits.vocabulary_size = 2048;
  return limits;
}

TextRequest text(const std::string& body) { return parse_text_request(body, limits()); }
ChatRequest chat(const std::string& body) { return parse_chat_request(body, limits()); }

template <typename Parse>
ApiError refusal(const Parse& parse) {
  try {
    parse();
  } catch (const ApiError& error) {
    return error;
  }
  ADD_FAILURE() << "was not refused";
  return ApiError(0, "");
}
ApiError refused_text(const std::string& fields) {
  return refusal([&] { text(R"({"prompt": "a", )" + fields + "}"); });
}
ApiError refused_chat(const std::string& fields) {
  return refusal([&] { chat(R"({"messages": [{"role": "user", "content": "a"}], )" + fields + "}"); });
}

TEST(CompletionRequest, ReadsEveryField) {
  const TextRequest r = text(
      R"({"model": "m", "prompt": ["a", "b"], "max_tokens": 7, "min_tokens": 3, "temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "top_k": -1,
      "presence_penalty": 1, "frequency_penalty": -1.5, "repetition_penalty": 1.1, "logit_bias": {"5": -100, "7": 2.5}, "seed": -3, "stop": ["x", "y"],
      "stop_token_ids": [2], "ignore_eos": true, "n": 2, "logprobs": 4, "priority": -2, "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true, "include_obfuscation": false},
      "user": "u", "echo": null, "suffix": null, "best_of": 2})");
  EXPECT_EQ(r.options.model, "m");
  ASSERT_EQ(r.prompts.size(), 2u);
  EXPECT_EQ(std::get<std::string>(r.prompts[1]), "b");
  EXPECT_EQ(r.options.max_tokens, 7);
  EXPECT_EQ(r.options.min_tokens, 3);
  EXPECT_EQ(r.options.sampling.temperature, 0.5);
  EXPECT_EQ(r.options.sampling.top_p, 0.9);
  EXPECT_EQ(r.options.sampling.min_p, 0.1);
  EXPECT_EQ(r.options.sampling.top_k, 0);
  EXPECT_EQ(r.options.sampling.presence_penalty, 1);
  EXPECT_EQ(r.options.sampling.frequency_penalty, -1.5);
  EXPECT_EQ(r.options.sampling.repetition_penalty, 1.1);
  EXPECT_THAT(r.options.sampling.logit_bias, ElementsAre(std::pair(5, -100.0f), std::pair(7, 2.5f)));
  EXPECT_EQ(r.options.seed, static_cast<std::uint64_t>(-3));
  EXPECT_THAT(r.options.stop, ElementsAre("x", "y"));
  EXPECT_THAT(r.options.stop_token_ids, ElementsAre(2));
  EXPECT_TRUE(r.options.ignore_eos && r.options.stream && r.options.include_usage &&
              r.options.continuous_usage);
  EXPECT_EQ(r.options.n, 2);
  EXPECT_EQ(r.options.logprobs, 4);
  EXPECT_EQ(r.options.priority, -2);
}

TEST(CompletionRequest, DefaultsAreOpenAis) {
  const AnswerOptions o = text(R"({"prompt": "a"})").options;
  EXPECT_EQ(o.sampling.temperature, 1);
  EXPECT_EQ(o.sampling.top_p, 1);
  EXPECT_EQ(o.n, 1);
  EXPECT_FALSE(o.max_tokens || o.min_tokens != 0 || o.seed || o.logprobs || o.stream || o.continuous_usage);
}

// As vllm-router 0.1.17 writes a request anew; an answer that would be another one is not given silently.
TEST(CompletionRequest, WhatARouterAddsIsTakenAtItsDefaultOnly) {
  text(
      R"({"model": "m", "prompt": "a", "temperature": 0.0, "stream": false, "echo": false, "no_stop_trim": false,
      "ignore_eos": true, "skip_special_tokens": true, "return_hidden_states": false})");
  chat(
      R"({"messages": [{"role": "user", "content": "a"}], "logprobs": false, "no_stop_trim": false, "ignore_eos": false,
      "continue_final_message": false, "skip_special_tokens": true, "separate_reasoning": true,
      "stream_reasoning": true, "return_hidden_states": false, "include_reasoning": true})");
  EXPECT_EQ(refused_text(R"("skip_special_tokens": false)").param(), "skip_special_tokens");
  EXPECT_EQ(refused_text(R"("no_stop_trim": true)").param(), "no_stop_trim");
  EXPECT_EQ(refused_chat(R"("continue_final_message": true)").param(), "continue_final_message");
}

TEST(CompletionRequest, PromptsAreTextsOrIds) {
  EXPECT_THAT(std::get<TokenIds>(text(R"({"prompt": [5, 6]})").prompts.at(0)), ElementsAre(5, 6));
  const TextRequest two = text(R"({"prompt": [[5], [6, 7]]})");
  EXPECT_THAT(std::get<TokenIds>(two.prompts.at(1)), ElementsAre(6, 7));
}

TEST(CompletionRequest, NamesTheFieldAtFault) {
  const struct {
    const char *fields, *param, *message;
  } cases[] = {
      {R"("tempreature": 1)", "tempreature", "not a field"},
      {R"("temperature": "hot")", "temperature", "expected a number, found a string"},
      {R"("temperature": 2.1)", "temperature", "between 0 and 2"},
      {R"("top_p": 0)", "top_p", "no token"},
      {R"("max_tokens": 0)", "max_tokens", "between 1"},
      {R"("min_tokens": -1)", "min_tokens", "between 0"},
      {R"("max_tokens": 1.5)", "max_tokens", "expected an integer"},
      {R"("max_tokens": 99999999999999999999)", "max_tokens", "expected an integer"},
      {R"("n": 129)", "n", "between 1 and 128"},
      {R"("stop": [1])", "stop[0]", "expected a string"},
      {R"("stop": "")", "stop", "empty"},
      {R"("logit_bias": {"x": 1})", "logit_bias", "below 2048"},
      {R"("logit_bias": {"2048": 1})", "logit_bias", "below 2048"},
      {R"("logit_bias": {"1": 101})", "logit_bias", "between -100 and 100"},
      {R"("stream_options": {"include_usage": true})", "stream_options", "'stream'"},
      {R"("stream": true, "stream_options": {"usage": true})", "stream_options.usage", "not a field"},
      {R"("stream": true, "stream_options": {"continuous_usage_stats": 1})",
       "stream_options.continuous_usage_stats", "expected a boolean"},
      {R"("suffix": "x")", "suffix", "not supported"},
      {R"("best_of": 3)", "best_of", "not supported"},
      {R"("guided_regex": "a+")", "guided_regex", "not a field"},
      {R"("stop_token_ids": [-1])", "stop_token_ids", "below 2048"},
  };
  for (const auto& one : cases) {
    const ApiError error = refused_text(one.fields);
    EXPECT_EQ(error.status(), 400) << one.fields;
    EXPECT_EQ(error.param(), one.param) << one.fields;
    EXPECT_THAT(error.what(), HasSubstr(one.message));
  }
  EXPECT_EQ(refusal([] { text("{}"); }).param(), "prompt");
  EXPECT_EQ(refusal([] { text(R"({"prompt": [5, "a"]})"); }).param(), "prompt");
  EXPECT_EQ(refusal([] { text(R"({"prompt": ["a", {}]})"); }).param(), "prompt[1]");
}

TEST(CompletionRequest, OneRequestHasALimitOfAnswers) {
  std::string prompts = R"(["a")";
  for (int i = 1; i < 128; ++i) prompts += R"(,"a")";
  EXPECT_EQ(text(R"({"prompt": )" + prompts + "]}").prompts.size(), 128u);
  EXPECT_EQ(refusal([&] { text(R"({"n": 2, "prompt": )" + prompts + "]}"); }).param(), "prompt");
}

TEST(CompletionRequest, HostileBodiesAreRefusedBeforeTheyAreRead) {
  const auto status = [](const std::string& body) { return refusal([&] { text(body); }).status(); };
  EXPECT_EQ(status(""), 400);
  EXPECT_EQ(status("[]"), 400);
  EXPECT_EQ(status("{\"prompt\": \"a\"} x"), 400);
  EXPECT_EQ(status("{\"prompt\": \"\xff\"}"), 400);
  EXPECT_EQ(status("{\"prompt\": \"\xed\xa0\x80\"}"), 400);
  EXPECT_EQ(status(R"({"prompt": "a", "prompt": "b"})"), 400);
  EXPECT_THAT(refusal([] { text(std::string(1'000'000, '[')); }).what(), HasSubstr("deeper than 64"));
  std::string many = R"({"prompt": [1)";
  for (int i = 0; i < 300'000; ++i) many += ",1";
  EXPECT_THAT(refusal([&] { text(many + "]}"); }).what(), HasSubstr("more than 262144 values"));
  EXPECT_EQ(status(R"({"prompt": ")" + std::string(9u << 20, 'a') + "\"}"), 413);
  // Brackets and commas in strings are text.
  EXPECT_EQ(text(R"({"prompt": ")" + std::string(1000, '[') + "\\\",,,\"}").prompts.size(), 1u);
}

TEST(ChatRequest, TemplatesSeeMessagesToolsAndVariables) {
  const ChatRequest r = chat(
      R"({"model": "m", "max_tokens": 5, "max_completion_tokens": 9, "logprobs": true, "top_logprobs": 3, "chat_template_kwargs": {"enable_thinking": false},
      "messages": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"}],
      "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]})");
  EXPECT_EQ(r.options.max_tokens, 9);
  EXPECT_EQ(r.options.logprobs, 3);
  EXPECT_THAT(r.tools, ElementsAre("f"));
  EXPECT_EQ(r.chat.at("add_generation_prompt"), Json(true));
  EXPECT_EQ(r.chat.at("enable_thinking"), Json(false));
  EXPECT_EQ(r.chat.at("tools").items().size(), 1u);
  const Json::Array& messages = r.chat.at("messages").items();
  EXPECT_EQ(messages[0].at("role"), Json("system"));
  EXPECT_EQ(messages[1].at("content"), Json("ab"));
  EXPECT_EQ(messages[2].at("tool_calls").items()[0].at("function").at("arguments"), Json::object({{"x", 1}}));
  EXPECT_EQ(messages[3].at("tool_call_id"), Json("c1"));
}

TEST(ChatRequest, ToolChoiceNoneHidesTheTools) {
  const ChatRequest r = chat(
      R"({"messages": [{"role": "user", "content": "a"}], "tool_choice": "none", "tools": [{"type": "function", "function": {"name": "f"}}]})");
  EXPECT_TRUE(r.tools.empty());
  EXPECT_EQ(r.chat.find("tools"), nullptr);
}

TEST(ChatRequest, CallsCanBeForced) {
  const std::string tools =
      R"("messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function", "function": {"name": "f"}},
      {"type": "function", "function": {"name": "g", "parameters": {"properties": {"x": {"type": "integer"}}}}}])";
  const ChatRequest any = chat("{" + tools + R"(, "tool_choice": "required"})"),
                    one = chat("{" + tools +
                               R"(, "tool_choice": {"type": "function", "function": {"name": "g"}}})");
  ASSERT_EQ(any.forced.size(), 2u);
  EXPECT_FALSE(any.one_call);
  EXPECT_EQ(any.forced[0].arguments,
            Json::parse(R"({"type": "object", "additionalProperties": false})", "none"));
  ASSERT_EQ(one.forced.size(), 1u);
  EXPECT_TRUE(one.one_call);
  EXPECT_EQ(one.forced[0].name, "g");
  EXPECT_EQ(one.forced[0].where, "tools[1].function.parameters");
  EXPECT_EQ(one.forced[0].arguments.at("type"), Json("object"));
  EXPECT_EQ(one.tools.size(), 2u) << "the template shows all of them";
  const ChatRequest free = chat("{" + tools + R"(, "parallel_tool_calls": false})");
  EXPECT_TRUE(free.forced.empty() && free.one_call);
}

TEST(ChatRequest, NamesTheFieldAtFault) {
  const struct {
    const char *fields, *param;
  } cases[] = {
      {R"("logprobs": 3)", "logprobs"},
      {R"("top_logprobs": 3)", "top_logprobs"},
      {R"("logprobs": true, "top_logprobs": 21)", "top_logprobs"},
      {R"("response_format": {"type": "json_schema"})", "response_format.json_schema"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "pattern": "a"}})",
       "response_format.json_schema.pattern"},
      {R"("response_format": {"type": "xml"})", "response_format.type"},
      {R"("response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"})",
       "structured_outputs"},
      {R"("structured_outputs": {"grammar": "a", "regex": "a"})", "structured_outputs.grammar"},
      {R"("structured_outputs": {"choice": ["a", 1]})", "structured_outputs.choice"},
      {R"("structured_outputs": {"choice": ["a"], "regex": "a"})", "structured_outputs"},
      {R"("guided_json": {})", "guided_json"},
      {R"("tool_choice": "required")", "tool_choice"},
      {R"("tool_choice": "always")", "tool_choice"},
      {R"("tool_choice": {"type": "allowed_tools"})", "tool_choice.type"},
      {R"("tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [{"type": "function", "function": {"name": "f"}}])",
       "tool_choice"},
      {R"("tool_choice": "required", "response_format": {"type": "json_object"}, "tools": [{"type": "function", "function": {"name": "f"}}])",
       "tool_choice"},
      {R"("tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}])",
       "tools[0].function.parameters.type"},
      {R"("tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f", "parameters": {"anyOf": [{}]}}}])",
       "tools[0].function.parameters.anyOf"},
      {R"("parallel_tool_calls": 1)", "parallel_tool_calls"},
      {R"("functions": [])", "functions"},
      {R"("tools": [{"type": "retrieval"}])", "tools[0].type"},
      {R"("tools": [{"type": "function", "function": {"name": "f", "pattern": "("}}])",
       "tools[0].function.pattern"},
      {R"("chat_template": "{{ x }}")", "chat_template"},
      {R"("chat_template_kwargs": {"messages": 1})", "chat_template_kwargs.messages"},
      {R"("chat_template_kwargs": {"x": [1]})", "chat_template_kwargs.x"},
  };
  for (const auto& one : cases) EXPECT_EQ(refused_chat(one.fields).param(), one.param) << one.fields;
  std::string variables = R"("chat_template_kwargs": {"k": 0)";
  for (int i = 0; i < 64; ++i) variables += ", \"k" + std::to_string(i) + "\": 0";
  EXPECT_EQ(refused_chat(variables + "}").param(), "chat_template_kwargs");
  const struct {
    const char *messages, *param;
  } messages[] = {
      {"[]", "messages"},
      {R"([1])", "messages[0]"},
      {R"([{"role": "robot", "content": "a"}])", "messages[0].role"},
      {R"([{"role": "user"}])", "messages[0].content"},
      {R"([{"role": "user", "content": 5}])", "messages[0].content"},
      {R"([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])",
       "messages[0].content[0].type"},
      {R"([{"role": "user", "content": "a", "colour": 1}])", "messages[0].colour"},
      {R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}])",
       "messages[0].tool_calls[0].function.arguments"},
  };
  for (const auto& one : messages)
    EXPECT_EQ(refusal([&] { chat(std::string("{\"messages\": ") + one.messages + "}"); }).param(), one.param)
        << one.messages;
}

TEST(ChatRequest, AnImageIsRefusedInOneSentence) {
  for (const char* type : {"image_url", "image", "video_url", "input_audio"}) {
    const ApiError refused = refusal([&] {
      chat(fmt::format(R"({{"messages": [{{"role": "user", "content": [{{"type": "{}"}}]}}]}})", type));
    });
    EXPECT_EQ(refused.status(), 400) << type;
    EXPECT_NE(std::string(refused.what()).find("this server evaluates text alone"), std::string::npos)
        << type;
  }
}

TEST(ApiErrors, AreOpenAisObject) {
  EXPECT_EQ(
      ApiError(404, "no", "model", "model_not_found").body().dump(),
      R"({"error":{"message":"no","type":"invalid_request_error","param":"model","code":"model_not_found"}})");
  EXPECT_EQ(ApiError(500, "x").body().at("error").at("code"), Json());
  EXPECT_EQ(refused_text(R"("seed": true)").code(), "invalid_type");
  // A long name from outside is not repeated whole.
  EXPECT_LT(refused_text("\"" + std::string(100'000, 'k') + "\": 1").param().size(), 80u);
}

TEST(TokenizeRequest, TakesAPromptOrAChat) {
  EXPECT_EQ(parse_tokenize_request(R"({"model": "m", "prompt": "a"})", limits()).prompt, "a");
  EXPECT_FALSE(parse_tokenize_request(R"({"messages": [{"role": "user", "content": "a"}]})", limits())
                   .add_special_tokens);
  EXPECT_EQ(refusal([] { parse_tokenize_request("{}", limits()); }).param(), "prompt");
  EXPECT_THAT(parse_detokenize_request(R"({"tokens": [1, 2]})", limits()), ElementsAre(1, 2));
  EXPECT_EQ(refusal([] { parse_detokenize_request(R"({"tokens": [2048]})", limits()); }).param(), "tokens");
}

}  // namespace
}  // namespace llmq
