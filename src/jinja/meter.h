// What one rendering of a template may cost, and where it stands: every loop round, call, copied byte and
// kept element is charged before it happens, so that a hostile template ends in one sentence within a known
// time and memory.
//
//   steps   expressions evaluated, elements compared or copied, and one for every 16 bytes of text that are
//           looked at
//   bytes   everything ever made (texts, lists), released or not
//   depth   nested evaluations, macro calls included
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"

namespace llmq::jinja {

struct Limits {
  std::int64_t steps = 10'000'000;
  std::int64_t bytes = std::int64_t{256} << 20;
  int depth = 400;
  int value_depth = 200;  // lists in lists
};

class Meter {
 public:
  Meter(const Limits& limits, std::string file) : limits_(limits), left_(limits), file_(std::move(file)) {}

  void at_line(int line) { line_ = line; }
  void spend(std::int64_t steps) {
    if (steps > left_.steps) out_of(limits_.steps, "steps");
    left_.steps -= steps;
  }
  void spend_text(std::size_t bytes) { spend(1 + static_cast<std::int64_t>(bytes / 16)); }
  // Before `bytes` are allocated.
  void produce(std::size_t bytes) {
    spend_text(bytes);
    if (bytes > static_cast<std::size_t>(left_.bytes)) out_of(limits_.bytes, "bytes");
    left_.bytes -= static_cast<std::int64_t>(bytes);
  }
  void produce(std::size_t count, std::size_t each) {
    spend(static_cast<std::int64_t>(std::min(count, std::size_t{INT64_MAX})));
    if (count > static_cast<std::size_t>(left_.bytes) / each) out_of(limits_.bytes, "bytes");
    left_.bytes -= static_cast<std::int64_t>(count * each);
  }
  const Limits& limits() const { return limits_; }
  void enter() {
    if (--left_.depth < 0) out_of(limits_.depth, "nested evaluations");
  }
  void leave() { ++left_.depth; }

  [[noreturn]] void refuse(std::string message, std::string hint = {}) const {
    fail(ErrorKind::kBadInput, {std::move(message), file_, place(), std::move(hint)});
  }
  [[noreturn]] void unsupported(std::string message) const {
    fail(ErrorKind::kUnsupported,
         {std::move(message), file_, place(), "render the chat elsewhere and pass the text"});
  }

 private:
  std::string place() const { return "line " + std::to_string(line_); }
  [[noreturn]] void out_of(std::int64_t limit, const char* what) const {
    refuse("the chat template needs more than " + std::to_string(limit) + " " + what,
           "shorten the chat or mend the template");
  }

  Limits limits_, left_;
  std::string file_;
  int line_ = 1;
};

}  // namespace llmq::jinja
