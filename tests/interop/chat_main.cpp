// llmq_chat: renders chats for comparison with another library's. Each line of standard input is a JSON
// object with "template", "config" (special tokens) and "request"; each line of output is {"text"} or
// {"error"}. The clock stands at 2026-07-26 09:05.
#include <iostream>
#include <string>

#include "base/error.h"
#include "tokenizer/chat_template.h"

int main() {
  using namespace llmq;
  std::tm now{};
  now.tm_year = 126, now.tm_mon = 6, now.tm_mday = 26, now.tm_hour = 9, now.tm_min = 5;
  for (std::string line; std::getline(std::cin, line);) {
    Json answer = Json::object();
    try {
      const Json given = Json::parse(line, "standard input");
      answer["text"] = ChatTemplate::parse(given.at("template").as_string(), "template", given.at("config"))
                           .render(given.at("request"), now);
    } catch (const Error& error) {
      answer["error"] = std::string(kind_name(error.kind())) + ": " + error.what();
    }
    std::cout << answer.dump() << "\n";
  }
}
