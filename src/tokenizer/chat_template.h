// A model's chat template: messages -> the text the model was trained to read.
//
// render() equals Transformers' apply_chat_template(tokenize=False), byte for byte, for templates inside the
// subset of Jinja that jinja/*.h describe: no include, import, block, call, recursive loop or escaping.
// Templates come with models from anywhere, so a rendering has a budget (jinja/meter.h), sees nothing but its
// request, and ends in text or in one sentence.
#pragma once
#include <array>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/io.h"
#include "base/json.h"
#include "tokenizer/tokenizer_config.h"

namespace llmq {

// Who may speak in a chat. Templates see "developer" where a chat has it; not all know it.
inline constexpr std::array<std::string_view, 5> kChatRoles = {"system", "developer", "user", "assistant",
                                                               "tool"};

class ChatTemplate {
 public:
  // `config`: an object whose "bos_token", "eos_token" ... the template sees (tokenizer_config.json has
  // them).
  static ChatTemplate parse(std::string_view source, const std::string& file,
                            const Json& config = Json::object());
  // chat_template.jinja of a model directory, else "chat_template" of its tokenizer_config.json (one, or
  // several by name), or that of a .gguf; none where the model has none.
  static std::optional<ChatTemplate> open(Io& io, const Path& model);
  // `config`: the model's, where it is read already.
  static std::optional<ChatTemplate> open(Io& io, const Path& model, const TokenizerConfig& config);

  // `request` has "messages"; it may have "tools", "documents", "add_generation_prompt" (false when absent)
  // and any other variable of the template. Where the model has a template named "tool_use" it is taken when
  // there are tools. `now` is what strftime_now() prints.
  std::string render(const Json& request, const std::tm& now) const;
  const std::string& source() const;  // of the template that is taken without tools

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

// The local time, for render().
std::tm local_time();

}  // namespace llmq
