// Any bytes as a chat template: text or an Error with its file, inside the budget.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/utf8_sequence.h"
#include "tokenizer/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  static const llmq::Json request = llmq::Json::parse(
      R"({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "é 🦙\n"},
          {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, 2.5, null]}}}]}],
          "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], "add_generation_prompt": true})",
      "request");
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  try {
    const std::string rendered = llmq::ChatTemplate::parse(text, "input.jinja").render(request, std::tm{});
    if (!llmq::is_utf8(rendered)) std::abort();
  } catch (const llmq::Error& error) {
    if (error.kind() == llmq::ErrorKind::kInternal || error.detail().file.empty()) std::abort();
  }
  return 0;
}
