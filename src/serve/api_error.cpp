#include "serve/api_error.h"

#include <fmt/core.h>

#include <utility>

#include "base/log.h"

namespace llmq {
namespace {

// The words OpenAI uses, by which clients choose their own exception where they do not go by the status.
const char* type_of(int status) {
  if (status == 401) return "authentication_error";
  if (status == 403) return "permission_error";
  if (status == 429) return "rate_limit_error";
  if (status == 501) return "not_implemented_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

Json or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

}  // namespace

ApiError::ApiError(int status, const std::string& message, std::string param, std::string code)
    : std::runtime_error(message), status_(status), param_(std::move(param)), code_(std::move(code)) {}

ApiError ApiError::method_not_allowed(const std::string& methods) {
  ApiError error(405, "this path is asked by " + methods, {}, "method_not_allowed");
  error.allowed_ = methods;
  return error;
}

void ApiError::log(const std::string& path, const Json& fields) const {
  Json all = fields;
  all["path"] = path;
  all["status"] = status_;
  all["code"] = code_;
  const Json* id = fields.find("request_id");
  Log::get().detail(fmt::format("{}: {} was answered with status {}{}{}", id ? id->as_string() : "", path,
                                status_, code_.empty() ? "" : ", ", code_),
                    all);
}

Json ApiError::body() const {
  return Json::object({{"error", Json::object({{"message", what()},
                                               {"type", type_of(status_)},
                                               {"param", or_null(param_)},
                                               {"code", or_null(code_)}})}});
}

HttpReply ApiError::reply() const {
  HttpReply reply{status_, "application/json", body().dump(), {}};
  if (status_ == 429 || status_ == 503) reply.headers.emplace_back("Retry-After", "1");
  if (status_ == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (!allowed_.empty()) reply.headers.emplace_back("Allow", allowed_);
  return reply;
}

}  // namespace llmq
