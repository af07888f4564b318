// Messages and tools of a chat request, checked, and as chat templates want to see them.
#pragma once
#include <string>
#include <vector>

#include "base/json.h"

namespace llmq {

// Text parts become one text, the arguments of earlier tool calls become objects; anything but text is
// refused.
Json read_messages(const Json::Array& messages);

struct Tools {
  Json definitions;  // as they came
  std::vector<std::string> names;
  std::vector<Json> parameters;  // schemas of their arguments; null where there are none
};
Tools read_tools(const Json::Array& tools);

}  // namespace llmq
