// The one error of llmq: a kind, a sentence, and where it happened.
//
// Thrown at boundaries with values; below a boundary inputs are facts. A message starts lower-case, says what
// was found and what would do. The tool prints "llmq: <file>: <where>: <message>; <hint>" and exits with
// exit_code(kind).
#pragma once
#include <fmt/core.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace llmq {

enum class ErrorKind { kUsage, kBadInput, kUnsupported, kIo, kDevice, kResource, kInternal };

// What a reader of the error needs; empty fields are left out when printed.
struct ErrorDetail {
  std::string message;  // what was found
  std::string file;     // path of the input or output at fault
  std::string where;    // tensor, key, line:column, flag or layer inside it
  std::string hint;     // what would do
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, ErrorDetail detail);
  ErrorKind kind() const { return kind_; }
  const ErrorDetail& detail() const { return detail_; }

 private:
  ErrorKind kind_;
  ErrorDetail detail_;
};

// "usage", "bad input", "unsupported", "i/o", "device", "resource", "internal".
const char* kind_name(ErrorKind kind);

// 2 when the usage or an input is at fault (usage, bad input, unsupported), else 1.
int exit_code(ErrorKind kind);

// An exception of the standard library as an Error, which it may be: else std::bad_alloc is of kind
// kResource, others of kInternal.
Error as_error(const std::exception_ptr& thrown);

// An ErrorDetail as it is written where something fails: views, so that hundreds of places copy nothing.
struct ErrorWords {
  std::string_view message, file, where, hint;
};
[[noreturn]] void fail(ErrorKind kind, const ErrorWords& words);

// fail(kind, "group_size {} does not divide {}", group, columns) where no file is known at this depth.
[[noreturn]] void fail_formatted(ErrorKind kind, fmt::string_view format, fmt::format_args args);
template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  fail_formatted(kind, format, fmt::make_format_args(args...));
}

}  // namespace llmq
