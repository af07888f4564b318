// One HTTP request and the way back to who sent it, as plain values: what the API sees of HTTP.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace llmq {

struct HttpRequest {
  std::string method, path;  // "POST", "/v1/completions": without the query, as it was sent
  std::string host, authorization, content_type;
  std::string body;
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
class HttpAnswer {
 public:
  virtual ~HttpAnswer() = default;
  virtual void reply(HttpReply reply) = 0;
  virtual void open_stream(const std::string& content_type) = 0;
  // of a client that does not read, more than a limit ends the connection
  virtual void write(std::string text) = 0;
  virtual void end() = 0;
  // The client left, or was left because it is too slow or its time is over: nothing that is written arrives.
  virtual bool gone() const = 0;
  virtual void when_gone(std::function<void()> act) = 0;  // at once where it is gone; once, on another thread
};

using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<HttpAnswer>)>;  // must not wait

}  // namespace llmq
