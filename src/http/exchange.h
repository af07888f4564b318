// One HTTP request and the way back to who sent it, as plain values: what the API sees of HTTP.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/disk/trace_file.h"

namespace llmq {

struct HttpRequest {
  std::string method, path;  // "POST", "/v1/completions": without the query, as it was sent
  std::string host, authorization, content_type;
  std::string body;
  std::string id;      // request_id.h; the answer has it, too
  TraceContext trace;  // that the request belongs to; empty: none
  std::chrono::steady_clock::time_point received;
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

// Any thread may call; nothing here waits for the network. A reply, or a stream that is opened, written and
// ended. Letting go of it without either tells the client that the server failed.
class HttpResponder {
 public:
  virtual ~HttpResponder() = default;
  virtual void reply(HttpReply reply) = 0;
  virtual void open_stream(const std::string& content_type) = 0;
  // of a client that does not read, more than a limit ends the connection
  virtual void write(std::string text) = 0;
  virtual void end() = 0;
  // The client left, or was left because it is too slow or its time is over: nothing that is written arrives.
  virtual bool gone() const = 0;
  virtual void when_gone(std::function<void()> act) = 0;  // at once where it is gone; once, on another thread
};

struct HttpCounters {
  std::size_t connections = 0;  // now
  std::int64_t accepted = 0, evicted = 0, refused = 0, timed_out = 0;
};

// A request that the server refuses by itself: a status, a sentence, and a word for programs ("" for none).
class HttpRefusal : public std::runtime_error {
 public:
  HttpRefusal(int status, const std::string& sentence, std::string code = {})
      : std::runtime_error(sentence), status_(status), code_(std::move(code)) {}
  int status() const { return status_; }
  const std::string& code() const { return code_; }

 private:
  int status_;
  std::string code_;
};
using RefusalReply = std::function<HttpReply(const HttpRefusal&)>;

inline HttpReply plain_refusal(const HttpRefusal& refusal) {
  return {refusal.status(), "text/plain", std::string(refusal.what()) + "\n", {}};
}

using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<HttpResponder>)>;  // must not wait

}  // namespace llmq
