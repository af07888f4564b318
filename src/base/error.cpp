#include "base/error.h"

#include <fmt/format.h>

#include <new>

namespace llmq {
namespace {

std::string sentence(const ErrorDetail& d) {
  std::string text;
  if (!d.file.empty()) text += d.file + ": ";
  if (!d.where.empty()) text += d.where + ": ";
  text += d.message;
  if (!d.hint.empty()) text += "; " + d.hint;
  return text;
}

}  // namespace

Error::Error(ErrorKind kind, ErrorDetail detail)
    : std::runtime_error(sentence(detail)), kind_(kind), detail_(std::move(detail)) {}

const char* kind_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kUsage:
      return "usage";
    case ErrorKind::kBadInput:
      return "bad input";
    case ErrorKind::kUnsupported:
      return "unsupported";
    case ErrorKind::kIo:
      return "i/o";
    case ErrorKind::kDevice:
      return "device";
    case ErrorKind::kResource:
      return "resource";
    case ErrorKind::kInternal:
      return "internal";
  }
  return "internal";
}

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kUsage:
    case ErrorKind::kBadInput:
    case ErrorKind::kUnsupported:
      return 2;
    default:
      return 1;
  }
}

Error as_error(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ErrorKind::kResource,
                 {"out of memory",
                  {},
                  {},
                  "lower --threads or the calibration samples, or use a machine with more memory"});
  } catch (const std::exception& error) {
    return Error(ErrorKind::kInternal,
                 {error.what(), {}, {}, "this is a defect of llmq: please report the command"});
  }
}

void fail(ErrorKind kind, const ErrorWords& words) {
  throw Error(kind, {std::string(words.message), std::string(words.file), std::string(words.where),
                     std::string(words.hint)});
}

void fail_formatted(ErrorKind kind, fmt::string_view format, fmt::format_args args) {
  fail(kind, {fmt::vformat(format, args), {}, {}, {}});
}

}  // namespace llmq
