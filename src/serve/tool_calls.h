// Calls of functions in what a model writes, in the two forms that our chat templates teach:
//   Hermes and Qwen:  text <tool_call>{"name": ..., "arguments": {...}}</tool_call> ...
//   Llama-3.1:        {"name": ..., "parameters": {...}} as the whole answer, several of them behind ';'
// What calls no function that the request offered, or is no JSON, stays text.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "serve/completion_response.h"
#include "serve/requests/completion_request.h"

namespace llmq {

// An answer as it comes. push() gives the text that is certainly no part of a call; what may be one is held
// to the end.
class ToolCallReader {
 public:
  // No functions: everything is text. `one_call`: of several calls the first is given.
  explicit ToolCallReader(std::vector<std::string> functions, bool one_call = false);
  std::string push(std::string_view piece);

  struct Rest {
    std::string text;
    std::vector<ToolCall> calls;  // without ids
  };
  Rest finish();

 private:
  bool offers(const std::string& name) const;
  bool read_call(std::string_view json, std::vector<ToolCall>& calls) const;
  bool read_tagged(std::string_view text, Rest& rest) const;
  bool read_plain(std::string_view text, Rest& rest) const;

  std::vector<std::string> functions_;
  bool one_call_;
  std::string held_;
  bool said_text_ = false, may_be_call_ = false;
};

// Which of the two forms a rendered chat with tools teaches; the second where it teaches neither.
enum class ToolCallForm : std::uint8_t { kTagged, kPlain };
ToolCallForm tool_call_form(std::string_view prompt);
// Calls of one of `functions` in this form and nothing else: one, or several.
ConstraintSpec forced_calls(ToolCallForm form, const std::vector<ChatRequest::Forced>& functions,
                            bool one_call);

}  // namespace llmq
