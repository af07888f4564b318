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
  // What is certainly before any stop string; empty once stopped. Where the piece may not stop, a stop string
  // that ends in it is text like other.
  std::string push(std::string_view piece, bool may_stop = true);
  std::string finish();  // what was held back, when no stop string came
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::size_t early_ = 0;  // bytes of it where no stop string may end
  bool stopped_ = false;
};

}  // namespace llmq
