// Texts of a JSON object that may lack them.
#pragma once
#include <string>
#include <string_view>

#include "base/json.h"

namespace llmq {

// The text of a key; empty where it is absent or of another kind.
inline std::string text_at(const Json& object, std::string_view key) {
  const Json* found = object.find(key);
  return found != nullptr && found->is_string() ? found->as_string() : std::string();
}

}  // namespace llmq
