// The variables that a template sees: those of the innermost loop or macro first, then those of the template,
// then what it was given, then the global functions.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace llmq::jinja {

class Variables {
 public:
  Variables(const Dict& context, Meter& meter) : context_(context), meter_(meter) {}

  void enter() { frames_.emplace_back(); }
  void leave() { frames_.pop_back(); }
  // A macro sees its own variables and those of the template, not its caller's; what the caller saw is given
  // back to leave_macro().
  std::size_t enter_macro() { return std::exchange(base_, frames_.size()); }
  void leave_macro(std::size_t caller) { base_ = caller; }

  Value lookup(const std::string& name) const;
  void assign(std::string_view name, Value value);
  void assign_target(const std::string& name, Value value);  // a name, or an attribute of a namespace

 private:
  using Frame = std::vector<std::pair<std::string_view, Value>>;  // names lie in the tree
  static const Value* find_in(const Frame& frame, std::string_view name);

  const Dict& context_;
  Meter& meter_;
  std::vector<Frame> frames_;
  std::size_t base_ = 0;  // of the macro that runs
};

}  // namespace llmq::jinja
