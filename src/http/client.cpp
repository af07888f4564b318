// Connections over Boost.Asio; Boost.Beast parses what comes back.
#include "http/client.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "http/durations.h"

namespace llmq {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kReadPiece = 16u << 10;

std::string request_text(const HttpTarget& target, const HttpCall& call) {
  std::string text = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAccept: */*\r\n",
                                 call.method, target.path, call.path, target.authority());
  if (!call.authorization.empty()) text += fmt::format("Authorization: {}\r\n", call.authorization);
  if (!call.body.empty())
    text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", call.body.size());
  return text + "\r\n" + call.body;
}

}  // namespace

struct HttpClient::State {
  State(HttpTarget to, const HttpClientLimits& given) : target(std::move(to)), limits(given) {}
  HttpTarget target;
  HttpClientLimits limits;
  asio::io_context io{1};
  tcp::resolver::results_type addresses;
  std::size_t under_way = 0;  // calls and acts; run() lasts as long
};

// One call. The deadline that runs is that of the present phase, or of the whole where that is sooner.
class HttpRun : public std::enable_shared_from_this<HttpRun> {
 public:
  HttpRun(HttpClient::State& client, const HttpCall& call, std::shared_ptr<HttpReader> reader)
      : client_(client),
        request_(request_text(client.target, call)),
        reader_(std::move(reader)),
        socket_(client.io),
        deadline_(client.io) {
    parser_.header_limit(static_cast<std::uint32_t>(client.limits.max_header));
    parser_.body_limit(client.limits.max_body);
    parser_.eager(true);
    parser_.skip(call.method == "HEAD");
  }

  void start() {
    ++client_.under_way;
    end_ = Clock::now() + as_duration(client_.limits.whole_seconds);
    wait_at_most(client_.limits.connect_seconds, "no connection");
    asio::async_connect(socket_, client_.addresses,
                        [self = shared_from_this()](error_code error, const tcp::endpoint&) {
                          if (self->over_) return;
                          if (error) return self->fail_with("cannot connect: " + error.message());
                          self->send();
                        });
  }

 private:
  void send() {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    wait_at_most(client_.limits.quiet_seconds, "the request was not taken");
    asio::async_write(socket_, asio::buffer(request_),
                      [self = shared_from_this()](error_code error, std::size_t) {
                        // A server may answer, and close, before it has read everything: its answer says more
                        // than this error.
                        if (!self->over_) self->read(error);
                      });
  }

  void read(error_code sending) {
    wait_at_most(client_.limits.quiet_seconds, "nothing came");
    socket_.async_read_some(
        asio::buffer(piece_), [self = shared_from_this(), sending](error_code error, std::size_t bytes) {
          if (self->over_) return;
          const Clock::time_point now = Clock::now();
          if (error == asio::error::eof) return self->ended(now);
          if (error) return self->fail_with("the connection broke: " + (sending ? sending : error).message());
          self->received(bytes, now);
        });
  }

  void received(std::size_t bytes, Clock::time_point now) {
    unread_.append(piece_.data(), bytes);
    while (!unread_.empty() && !parser_.is_done()) {
      error_code error;
      const std::size_t used = parser_.put(asio::const_buffer(unread_.data(), unread_.size()), error);
      unread_.erase(0, used);
      if (error && error != http::error::need_more) return fail_with(sentence_of(error));
      if (!pass_on(now)) return;
      if (used == 0) break;
    }
    if (parser_.is_done()) return finish(now);
    if (unread_.size() > client_.limits.max_header + kReadPiece)
      return fail_with("the answer is no HTTP: a part of it does not end");
    read({});
  }

  // What the parser has by now. False when the answer was given up.
  bool pass_on(Clock::time_point now) {
    if (parser_.is_header_done() && !head_given_) {
      head_given_ = true;
      const auto type = parser_.get()[http::field::content_type];
      reader_->head(static_cast<int>(parser_.get().result_int()), std::string(type.data(), type.size()));
    }
    const std::string piece = std::move(parser_.get().body());
    parser_.get().body().clear();
    if (piece.empty() || reader_->body(piece, now)) return true;
    close();
    return false;
  }

  // The server closed: the end of a body without a length, or too soon.
  void ended(Clock::time_point now) {
    error_code error;
    if (head_given_) parser_.put_eof(error);
    if (!head_given_ || error) return fail_with("the connection ended before the answer did");
    finish(now);
  }

  std::string sentence_of(error_code error) const {
    if (error == http::error::body_limit)
      return fmt::format("the answer has more than {} bytes", client_.limits.max_body);
    if (error == http::error::header_limit)
      return fmt::format("the answer's header has more than {} bytes", client_.limits.max_header);
    return "the answer is no HTTP: " + error.message();
  }

  void finish(Clock::time_point now) {
    close();
    reader_->done(now);
  }

  void fail_with(const std::string& why) {
    close();
    reader_->failed(client_.target.authority() + ": " + why);
  }

  void close() {
    over_ = true;
    --client_.under_way;
    deadline_.cancel();
    error_code ignored;
    socket_.close(ignored);
  }

  void wait_at_most(double limit, const char* what) {
    const Clock::time_point until = Clock::now() + as_duration(limit);
    const bool whole = end_ < until;
    deadline_.expires_at(std::min(until, end_));
    const std::string sentence =
        whole ? fmt::format("the answer took more than {} s", client_.limits.whole_seconds)
              : fmt::format("{} for {} s", what, limit);
    deadline_.async_wait([self = shared_from_this(), sentence, serial = ++serial_](error_code error) {
      if (!error && !self->over_ && serial == self->serial_) self->fail_with(sentence);
    });
  }

  HttpClient::State& client_;
  std::string request_;
  std::shared_ptr<HttpReader> reader_;
  tcp::socket socket_;
  asio::steady_timer deadline_;
  Clock::time_point end_;
  std::array<char, kReadPiece> piece_;
  std::string unread_;
  http::response_parser<http::string_body> parser_;
  bool head_given_ = false, over_ = false;
  std::uint64_t serial_ = 0;
};

std::string HttpTarget::authority() const {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
}

HttpTarget parse_http_url(const std::string& url, const std::string& flag) {
  const auto refuse = [&](const std::string& what, const std::string& hint) {
    fail(ErrorKind::kUsage, {what, {}, flag, hint});
  };
  constexpr std::string_view kScheme = "http://";
  if (url.starts_with("https://"))
    refuse("TLS is not spoken", "put a proxy beside the server, or give its plain http:// address");
  if (!url.starts_with(kScheme) ||
      std::any_of(url.begin(), url.end(), [](char c) { return c <= ' ' || c > '~'; }) ||
      url.find_first_of("@?#") != std::string::npos)
    refuse(fmt::format("'{}' is not the address of a server", url), "give it as http://host:port");
  std::string rest = url.substr(kScheme.size());
  HttpTarget target;
  if (const std::size_t slash = rest.find('/'); slash != std::string::npos) {
    target.path = rest.substr(slash);
    rest.resize(slash);
    while (target.path.ends_with('/')) target.path.pop_back();
  }
  const std::size_t bracket = rest.starts_with('[') ? rest.find(']') : std::string::npos;
  const std::size_t colon = rest.find(':', bracket == std::string::npos ? 0 : bracket);
  if (colon != std::string::npos) {
    const char *first = rest.data() + colon + 1, *last = rest.data() + rest.size();
    const auto [end, error] = std::from_chars(first, last, target.port);
    if (error != std::errc() || end != last || target.port < 1 || target.port > 65535)
      refuse(fmt::format("'{}' has no valid port", url), "give it as http://host:port");
    rest.resize(colon);
  }
  target.host = bracket == std::string::npos ? rest : rest.substr(1, bracket - 1);
  if (target.host.empty() || target.host.find_first_of("[]") != std::string::npos)
    refuse(fmt::format("'{}' names no host", url), "give it as http://host:port");
  return target;
}

HttpClient::HttpClient(HttpTarget target, const HttpClientLimits& limits)
    : state_(std::make_unique<State>(std::move(target), limits)) {
  tcp::resolver resolver(state_->io);
  error_code error;
  state_->addresses = resolver.resolve(state_->target.host, std::to_string(state_->target.port), error);
  if (error) fail(ErrorKind::kUsage, "no host '{}' is known: {}", state_->target.host, error.message());
}

HttpClient::~HttpClient() = default;

void HttpClient::call(HttpCall call, std::shared_ptr<HttpReader> reader) {
  std::make_shared<HttpRun>(*state_, std::move(call), std::move(reader))->start();
}

void HttpClient::at(Clock::time_point time, std::function<void()> act) {
  ++state_->under_way;
  auto timer = std::make_shared<asio::steady_timer>(state_->io, time);
  timer->async_wait([timer, state = state_.get(), act = std::move(act)](error_code) {
    --state->under_way;
    act();
  });
}

void HttpClient::run(const std::function<void()>& check) {
  while (state_->under_way > 0) {
    state_->io.restart();
    state_->io.run_one_for(std::chrono::milliseconds(100));
    state_->io.poll();
    if (check) check();
  }
}

namespace {

struct WholeText : HttpReader {
  void head(int status, const std::string& content_type) override {
    text.status = status;
    text.content_type = content_type;
  }
  bool body(std::string_view piece, Time) override {
    text.body += piece;
    return true;
  }
  void done(Time) override {}
  void failed(const std::string& reason) override { why = reason; }
  HttpText text;
  std::string why;
};

}  // namespace

HttpText ask(HttpClient& client, HttpCall call) {
  const auto reader = std::make_shared<WholeText>();
  client.call(std::move(call), reader);
  client.run();
  if (!reader->why.empty()) fail(ErrorKind::kIo, "{}", reader->why);
  return std::move(reader->text);
}

}  // namespace llmq
