// HTTP/1.1 as a client, on the thread that calls run(): many calls at once, each on a connection of its own.
//
// The server is not trusted: connecting, silence and a whole answer each have a deadline, header and body a
// limit, and whatever is wrong becomes one sentence. Bodies arrive in pieces, with the time at which each was
// read.
#pragma once
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace llmq {

struct HttpTarget {
  std::string host;  // a name or an address, without brackets
  int port = 80;
  std::string path;               // what goes before every path: "" or "/openai"; without "/" at the end
  std::string authority() const;  // "[::1]:8000"
};

// "http://host[:port][/path]". Error(kUsage) naming `flag`: for https, too.
HttpTarget parse_http_url(const std::string& url, const std::string& flag);

struct HttpClientLimits {
  std::size_t max_header = 16u << 10;
  std::size_t max_body = 16u << 20;
  double connect_seconds = 10;
  double quiet_seconds = 120;  // between two reads, from the sending of the request on
  double whole_seconds = 600;
};

struct HttpCall {
  std::string method, path;   // "POST", "/v1/completions"
  std::string body;           // JSON, or empty
  std::string authorization;  // "Bearer ...", or empty
};

// Who reads an answer: head() body()... done(), or failed() at any place, after which nothing comes.
class HttpReader {
 public:
  using Time = std::chrono::steady_clock::time_point;
  virtual ~HttpReader() = default;
  virtual void head(int status, const std::string& content_type) = 0;
  // false: enough, the connection is closed and nothing more comes
  virtual bool body(std::string_view piece, Time read) = 0;
  virtual void done(Time read) = 0;
  virtual void failed(const std::string& why) = 0;  // "127.0.0.1:8000: nothing came for 120 s"
};

class HttpClient {
 public:
  // Looks the host up: Error(kUsage) where there is none of that name.
  HttpClient(HttpTarget target, const HttpClientLimits& limits);
  ~HttpClient();  // calls under way are dropped without a word
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // These only begin; things happen within run(), from where they may be called, too.
  void call(HttpCall call, std::shared_ptr<HttpReader> reader);
  void at(std::chrono::steady_clock::time_point time, std::function<void()> act);
  // Until every call has ended and every act is done, or until `check` throws: it is called ten times a
  // second.
  void run(const std::function<void()>& check = {});

  struct State;

 private:
  std::unique_ptr<State> state_;
};

struct HttpText {
  int status = 0;
  std::string content_type, body;
};
// One call and its whole answer. Error(kIo) with the sentence when there is none. No other call may be under
// way.
HttpText ask(HttpClient& client, HttpCall call);

}  // namespace llmq
