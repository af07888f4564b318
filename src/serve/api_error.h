// What a client is told when a request is not served: an HTTP status and OpenAI's error object,
//   {"error": {"message", "type", "param", "code"}}.
#pragma once
#include <stdexcept>
#include <string>

#include "base/json.h"
#include "http/exchange.h"

namespace llmq {

class ApiError : public std::runtime_error {
 public:
  // `param`: the field at fault, `code`: a word for programs; empty ones become null.
  ApiError(int status, const std::string& message, std::string param = {}, std::string code = {});
  int status() const { return status_; }
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }
  // 405, with the methods that the path knows: "GET, HEAD"
  static ApiError method_not_allowed(const std::string& methods);
  // For whoever reads the log with -v: that a request was refused, and nothing that stood in it.
  void log(const std::string& path, const Json& fields) const;
  Json body() const;
  // with what HTTP wants beside the body: Retry-After, WWW-Authenticate, Allow
  HttpReply reply() const;

 private:
  int status_;
  std::string param_, code_, allowed_;
};

}  // namespace llmq
