// The page at "/": src/serve/page.html, put into the program when it is built.
#pragma once
#include <string>

namespace llmq {

extern const std::string kPage;

}  // namespace llmq
