// Streams text up to the first stop string, which may begin in one piece and end in another.
//
// What could still become a stop string is held back: at most the longest stop string less one byte.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace llmq {

class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops);  // empty strings are left out
  std::string push(std::string_view piece);  // what is certainly before any stop string; empty once stopped
  std::string finish();                      // what was held back, when no stop string came
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace llmq
