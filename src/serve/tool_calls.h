// Calls of functions in what a model writes, in the two forms that our chat templates teach:
//   Hermes and Qwen:  text <tool_call>{"name": ..., "arguments": {...}}</tool_call> ...
//   Llama-3.1:        {"name": ..., "parameters": {...}} as the whole answer, several of them behind ';'
// What calls no function that the request offered, or is no JSON, stays text.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "serve/completion_response.h"

namespace llmq {

// An answer as it comes. push() gives the text that is certainly no part of a call; what may be one is held to the end.
class ToolCallReader {
 public:
  explicit ToolCallReader(std::vector<std::string> functions);  // empty: everything is text
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
  std::string held_;
  bool said_text_ = false, may_be_call_ = false;
};

}  // namespace llmq
