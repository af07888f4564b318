#include "serve/tool_calls.h"

#include <algorithm>

#include "base/error.h"
#include "base/trimmed.h"

namespace llmq {
namespace {

constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>", kPythonTag = "<|python_tag|>";

// Bytes at the end of `text` that may become `tag`.
std::size_t possible_start(std::string_view text, std::string_view tag) {
  for (std::size_t length = std::min(text.size(), tag.size() - 1); length > 0; --length)
    if (text.ends_with(tag.substr(0, length))) return length;
  return 0;
}

// Whether an answer that so begins may be a call in Llama's form.
bool may_be_plain_call(std::string_view text) {
  const std::string_view start = trimmed(text);
  return start.empty() || start.front() == '{' || kPythonTag.starts_with(start) ||
         start.starts_with(kPythonTag);
}

// The end of the JSON object that begins at text[0]; npos when it does not end.
std::size_t object_end(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (in_string) {
      if (text[i] == '\\')
        ++i;
      else if (text[i] == '"')
        in_string = false;
      continue;
    }
    if (text[i] == '"') in_string = true;
    if (text[i] == '{') ++depth;
    if (text[i] == '}' && --depth == 0) return i + 1;
  }
  return std::string_view::npos;
}

}  // namespace

ToolCallReader::ToolCallReader(std::vector<std::string> functions, bool one_call)
    : functions_(std::move(functions)), one_call_(one_call) {}

std::string ToolCallReader::push(std::string_view piece) {
  if (functions_.empty()) return std::string(piece);
  held_ += piece;
  if (may_be_call_ || (!said_text_ && may_be_plain_call(held_))) return {};
  const std::size_t open = held_.find(kOpen);
  may_be_call_ = open != std::string::npos;
  std::size_t keep = may_be_call_ ? held_.size() - open : possible_start(held_, kOpen);
  // Blanks before a call belong to it; they are text when none comes.
  while (keep < held_.size() && kBlanks.find(held_[held_.size() - keep - 1]) != std::string_view::npos)
    ++keep;
  std::string text = held_.substr(0, held_.size() - keep);
  held_.erase(0, text.size());
  said_text_ = said_text_ || !text.empty();
  return text;
}

ToolCallReader::Rest ToolCallReader::finish() {
  Rest rest;
  if (!read_tagged(held_, rest) && (said_text_ || !read_plain(held_, rest))) rest = {held_, {}};
  held_.clear();
  if (one_call_ && rest.calls.size() > 1) rest.calls.resize(1);
  return rest;
}

bool ToolCallReader::offers(const std::string& name) const {
  return std::find(functions_.begin(), functions_.end(), name) != functions_.end();
}

bool ToolCallReader::read_call(std::string_view json, std::vector<ToolCall>& calls) const {
  try {
    const Json call = Json::parse(json, "a tool call", {1u << 20, 64});
    const Json* name = call.find("name");
    const Json* arguments = call.find("arguments") ? call.find("arguments") : call.find("parameters");
    if (!name || !name->is_string() || !offers(name->as_string())) return false;
    if (arguments && !arguments->is_object()) return false;
    calls.push_back({{}, name->as_string(), arguments ? arguments->dump() : "{}"});
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Every tag must hold a call; one that the answer's end cut off counts as closed.
bool ToolCallReader::read_tagged(std::string_view text, Rest& rest) const {
  Rest found;
  std::size_t at = 0;
  for (std::size_t open; (open = text.find(kOpen, at)) != std::string_view::npos;) {
    found.text += trimmed(text.substr(at, open - at));
    const std::size_t begin = open + kOpen.size(), close = text.find(kClose, begin);
    if (!read_call(trimmed(text.substr(begin, close == std::string_view::npos ? close : close - begin)),
                   found.calls))
      return false;
    at = close == std::string_view::npos ? text.size() : close + kClose.size();
  }
  if (found.calls.empty()) return false;
  found.text += trimmed(text.substr(at));
  rest = std::move(found);
  return true;
}

bool ToolCallReader::read_plain(std::string_view text, Rest& rest) const {
  Rest found;
  text = trimmed(text);
  if (text.starts_with(kPythonTag)) text = trimmed(text.substr(kPythonTag.size()));
  while (!text.empty()) {
    const std::size_t end = text.front() == '{' ? object_end(text) : std::string_view::npos;
    if (end == std::string_view::npos || !read_call(text.substr(0, end), found.calls)) return false;
    text = trimmed(text.substr(end));
    if (text.starts_with(';')) text = trimmed(text.substr(1));
  }
  if (found.calls.empty()) return false;
  rest = std::move(found);
  return true;
}

ToolCallForm tool_call_form(std::string_view prompt) {
  return prompt.find(kOpen) != std::string_view::npos ? ToolCallForm::kTagged : ToolCallForm::kPlain;
}

ConstraintSpec forced_calls(ToolCallForm form, const std::vector<ChatRequest::Forced>& functions,
                            bool one_call) {
  const bool tagged = form == ToolCallForm::kTagged;
  FramedValues calls;
  for (const ChatRequest::Forced& function : functions) {
    const std::string name = Json(function.name).dump();
    if (tagged)
      calls.frames.push_back({std::string(kOpen) + "\n{\"name\": " + name + ", \"arguments\": ",
                              "}\n" + std::string(kClose), function.arguments, function.where});
    else
      calls.frames.push_back(
          {"{\"name\": " + name + ", \"parameters\": ", "}", function.arguments, function.where});
  }
  if (!one_call) calls.between = tagged ? "\n" : "; ";
  return {std::move(calls), "tool_choice"};
}

}  // namespace llmq
