// Connections over Boost.Asio; Boost.Beast parses what they send. With http_client.cpp the only file that
// includes either.
//
// A connection goes idle -> header -> body -> answering -> idle, or ends in lingering: what the client still
// sends is thrown away for a moment, because closing at once would take back the answer on its way.
#include "http/server.h"

#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <list>
#include <mutex>
#include <optional>

#include "base/error.h"

namespace llmq {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::size_t kReadPiece = 8u << 10;
// that the parser cannot use yet, or pipelined behind a request
constexpr std::size_t kMaxBuffered = 64u << 10;
constexpr double kLingerSeconds = 2;
constexpr std::size_t kMaxTarget = 8u << 10;

std::chrono::steady_clock::duration seconds(double value) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(value));
}

const char* reason_of(int status) { return http::obsolete_reason(static_cast<http::status>(status)).data(); }

void listen_at(tcp::acceptor& acceptor, const std::string& host, int port) {
  error_code error;
  const auto address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, error);
  if (error)
    fail(ErrorKind::kUsage, {fmt::format("'{}' is no IP address", host),
                             {},
                             "--host",
                             "use 127.0.0.1, ::1, or the address of a network card"});
  const tcp::endpoint endpoint(address, static_cast<std::uint16_t>(port));
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(1024, error);
  if (error == boost::system::errc::address_not_available || error == boost::system::errc::invalid_argument)
    fail(ErrorKind::kUsage, {fmt::format("no network card here has the address {}", host),
                             {},
                             "--host",
                             "use 127.0.0.1, ::1, or the address of a network card"});
  if (error)
    fail(ErrorKind::kResource, {fmt::format("cannot listen on {}:{}: {}", host, port, error.message()),
                                {},
                                "--port",
                                "choose another port; 0 takes a free one"});
}

}  // namespace

class HttpConnection;
class HttpExchange;

struct HttpServer::State {
  State(const HttpLimits& given, HttpHandler handle, RefusalReply refuse)
      : limits(given),
        handler(std::move(handle)),
        refusal_reply(std::move(refuse)),
        acceptor(io),
        signals(io),
        drain_timer(io),
        retry_timer(io) {}
  void accept();
  void admit(tcp::socket socket);
  bool make_room();
  void remove(const HttpConnection* connection);
  void watch_signals();
  void drain();
  void await_drain(std::chrono::steady_clock::time_point deadline);

  HttpLimits limits;
  HttpHandler handler;
  RefusalReply refusal_reply;
  asio::io_context io{1};
  tcp::acceptor acceptor;
  asio::signal_set signals;
  asio::steady_timer drain_timer, retry_timer;
  std::list<std::shared_ptr<HttpConnection>> connections;  // the one that has been quiet the longest first
  std::size_t answering = 0, body_bytes = 0;
  bool draining = false, cut_off = false;
  double drain_seconds = 0;
  std::function<void()> on_drain;
  std::atomic<std::size_t> connection_count{0};
  std::atomic<std::int64_t> accepted{0}, evicted{0}, refused{0}, timed_out{0};
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Parser = http::request_parser<http::string_body>;
  enum class Phase { kIdle, kHeader, kBody, kAnswering, kLingering, kClosed };

  HttpConnection(HttpServer::State& server, tcp::socket socket)
      : server_(server), socket_(std::move(socket)), deadline_(server.io), write_deadline_(server.io) {}

  void start();
  void drop(std::uint64_t serial) {  // its handler let go of it without an answer
    reply(serial, server_.refusal_reply(HttpRefusal(500, "the server dropped this request")));
  }
  void refuse(const HttpRefusal& refusal);  // answers without having been asked, and closes
  void close();
  Phase phase() const { return phase_; }
  std::list<std::shared_ptr<HttpConnection>>::iterator place;

  // From an exchange; `serial` tells whether it is still the one that is answered.
  void reply(std::uint64_t serial, HttpReply reply);
  void open_stream(std::uint64_t serial, const std::string& content_type);
  void write(std::uint64_t serial, const std::string& text);
  void end(std::uint64_t serial);

 private:
  void enter(Phase phase, double limit);
  void expired();
  void read();
  void received(std::size_t bytes);
  void parse();
  void check_header();
  void take_body_bytes();
  void dispatch();
  void answered();
  void linger();
  void send(const std::string& text);
  void flush();
  std::string head_of(int status, const std::string& content_type) const;

  HttpServer::State& server_;
  tcp::socket socket_;
  asio::steady_timer deadline_, write_deadline_;
  std::array<char, kReadPiece> piece_;  // where a read puts its bytes; they move to unread_ when it is over
  std::string unread_;
  std::optional<Parser> parser_;
  std::weak_ptr<HttpExchange> exchange_;
  Phase phase_ = Phase::kIdle;
  std::uint64_t serial_ = 0, deadline_serial_ = 0;
  std::size_t counted_ = 0;  // bytes of the body in server_.body_bytes
  bool header_done_ = false, reading_ = false, writing_ = false, keep_alive_ = true, chunked_ = true,
       streaming_ = false, last_ = false;
  std::string out_, on_the_way_;
};

// The answer to one request: calls from any thread become work of the I/O thread.
class HttpExchange : public HttpAnswer, public std::enable_shared_from_this<HttpExchange> {
 public:
  HttpExchange(asio::io_context& io, std::shared_ptr<HttpConnection> connection, std::uint64_t serial)
      : io_(io), connection_(std::move(connection)), serial_(serial) {}
  ~HttpExchange() override {
    if (answered_) return;
    asio::post(io_, [connection = connection_, serial = serial_] { connection->drop(serial); });
  }

  void reply(HttpReply reply) override {
    answered_ = true;
    asio::post(io_, [connection = connection_, serial = serial_, reply = std::move(reply)]() mutable {
      connection->reply(serial, std::move(reply));
    });
  }
  void open_stream(const std::string& content_type) override {
    answered_ = true;
    asio::post(io_, [connection = connection_, serial = serial_, content_type] {
      connection->open_stream(serial, content_type);
    });
  }
  void write(std::string text) override {
    if (gone_) return;
    asio::post(io_, [connection = connection_, serial = serial_, text = std::move(text)] {
      connection->write(serial, text);
    });
  }
  void end() override {
    asio::post(io_, [connection = connection_, serial = serial_] { connection->end(serial); });
  }
  bool gone() const override { return gone_; }
  void when_gone(std::function<void()> act) override {
    {
      const std::lock_guard lock(mutex_);
      if (!gone_) {
        act_ = std::move(act);
        return;
      }
    }
    act();
  }
  void lose() {
    std::function<void()> act;
    {
      const std::lock_guard lock(mutex_);
      gone_ = true;
      act = std::move(act_);
    }
    if (act) act();
  }

 private:
  asio::io_context& io_;
  std::shared_ptr<HttpConnection> connection_;
  std::uint64_t serial_;
  std::atomic<bool> answered_{false}, gone_{false};
  std::mutex mutex_;
  std::function<void()> act_;
};

void HttpConnection::start() {
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  enter(Phase::kIdle, server_.limits.idle_seconds);
  read();
}

void HttpConnection::refuse(const HttpRefusal& refusal) {
  keep_alive_ = false;
  if (phase_ != Phase::kAnswering) {
    ++serial_;
    ++server_.answering;
    enter(Phase::kAnswering, server_.limits.write_seconds);
  }
  reply(serial_, server_.refusal_reply(refusal));
}

// A deadline that was set before has no say any more.
void HttpConnection::enter(Phase phase, double limit) {
  phase_ = phase;
  server_.connections.splice(server_.connections.end(), server_.connections, place);
  deadline_.expires_after(seconds(limit));
  deadline_.async_wait([self = shared_from_this(), serial = ++deadline_serial_](error_code error) {
    if (!error && serial == self->deadline_serial_) self->expired();
  });
}

void HttpConnection::expired() {
  ++server_.timed_out;
  if (phase_ == Phase::kHeader || phase_ == Phase::kBody)
    return refuse(HttpRefusal(408, "the request did not arrive in time", "request_timeout"));
  if (phase_ != Phase::kAnswering || streaming_ || last_) return close();
  if (const auto exchange = exchange_.lock()) exchange->lose();
  refuse(HttpRefusal(504, "the answer took longer than this server allows", "timeout"));
}

void HttpConnection::read() {
  if (reading_ || phase_ == Phase::kClosed || unread_.size() >= kMaxBuffered) return;
  reading_ = true;
  socket_.async_read_some(asio::buffer(piece_),
                          [self = shared_from_this()](error_code error, std::size_t bytes) {
                            self->reading_ = false;
                            if (self->phase_ == Phase::kClosed) return;
                            if (error) return self->close();
                            self->received(bytes);
                          });
}

void HttpConnection::received(std::size_t bytes) {
  if (phase_ != Phase::kLingering) unread_.append(piece_.data(), bytes);
  if (phase_ == Phase::kIdle || phase_ == Phase::kHeader || phase_ == Phase::kBody) return parse();
  read();  // pipelined, or thrown away; the end of the connection is seen here while an answer is made
}

void HttpConnection::parse() {
  if (phase_ == Phase::kIdle && !unread_.empty()) {
    parser_.emplace();
    parser_->header_limit(static_cast<std::uint32_t>(server_.limits.max_header));
    parser_->body_limit(server_.limits.max_body);
    header_done_ = false;
    enter(Phase::kHeader, server_.limits.header_seconds);
  }
  try {
    while (!unread_.empty() && !parser_->is_done()) {
      error_code error;
      unread_.erase(0, parser_->put(asio::const_buffer(unread_.data(), unread_.size()), error));
      take_body_bytes();
      if (error == http::error::need_more) break;
      if (error == http::error::body_limit)
        throw HttpRefusal(
            413, fmt::format("the body has more than the {} bytes allowed", server_.limits.max_body));
      if (error == http::error::header_limit)
        throw HttpRefusal(
            431, fmt::format("the header has more than the {} bytes allowed", server_.limits.max_header));
      if (error) throw HttpRefusal(400, "not a valid HTTP request: " + error.message());
      if (parser_->is_header_done() && !header_done_) check_header();
    }
    if (!parser_->is_done() && unread_.size() >= kMaxBuffered)
      throw HttpRefusal(400, "not a valid HTTP request: a part of it does not end");
  } catch (const HttpRefusal& error) {
    return refuse(error);
  }
  if (parser_ && parser_->is_done()) return dispatch();
  read();
}

// What Beast leaves to its users, and what the two programs on a proxied line could read differently.
void HttpConnection::check_header() {
  header_done_ = true;
  const auto& message = parser_->get();
  if (message.target().size() > kMaxTarget) throw HttpRefusal(414, "the path is too long");
  std::size_t fields = 0, hosts = 0;
  for (const auto& field : message) {
    ++fields;
    if (field.name() == http::field::host) ++hosts;
  }
  if (fields > server_.limits.max_fields)
    throw HttpRefusal(431, fmt::format("the header has more than {} fields", server_.limits.max_fields));
  if (message.version() != 10 && message.version() != 11)
    throw HttpRefusal(505, "only HTTP/1.0 and HTTP/1.1 are understood");
  if (hosts > 1 || (hosts == 0 && message.version() == 11))
    throw HttpRefusal(400, "not a valid HTTP request: one Host is needed");
  const std::string_view coding(message[http::field::transfer_encoding].data(),
                                message[http::field::transfer_encoding].size());
  if (!coding.empty() && coding != "chunked")
    throw HttpRefusal(501, "the only transfer coding understood is 'chunked'");
  const auto length = parser_->content_length();
  if (length && *length > server_.limits.max_body)
    throw HttpRefusal(413, fmt::format("the body has {} bytes, more than the {} allowed", *length,
                                       server_.limits.max_body));
  if (parser_->is_done()) return;
  enter(Phase::kBody, server_.limits.body_seconds);
  const auto expect = message[http::field::expect];
  if (!expect.empty()) send("HTTP/1.1 100 Continue\r\n\r\n");
  parser_->eager(true);
}

void HttpConnection::take_body_bytes() {
  const std::size_t now = parser_->get().body().size();
  server_.body_bytes += now - counted_;
  counted_ = now;
  if (server_.body_bytes > server_.limits.max_bodies)
    throw HttpRefusal(503, "the server holds as many requests as it can; try again", "overloaded");
}

void HttpConnection::dispatch() {
  auto message = parser_->release();
  parser_.reset();
  keep_alive_ = message.keep_alive() && !server_.draining;
  chunked_ = message.version() == 11;
  streaming_ = last_ = false;
  ++serial_;
  ++server_.answering;
  enter(Phase::kAnswering, server_.limits.request_seconds);
  const auto text = [](boost::beast::string_view view) { return std::string(view.data(), view.size()); };
  const std::string target = text(message.target());
  HttpRequest request{text(message.method_string()),
                      target.substr(0, target.find('?')),
                      text(message[http::field::host]),
                      text(message[http::field::authorization]),
                      text(message[http::field::content_type]),
                      std::move(message.body()),
                      std::chrono::steady_clock::now()};
  const auto exchange = std::make_shared<HttpExchange>(server_.io, shared_from_this(), serial_);
  exchange_ = exchange;
  server_.handler(std::move(request), exchange);
  read();
}

std::string HttpConnection::head_of(int status, const std::string& content_type) const {
  return fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nX-Content-Type-Options: nosniff\r\n{}", status,
                     reason_of(status), content_type, keep_alive_ ? "" : "Connection: close\r\n");
}

void HttpConnection::reply(std::uint64_t serial, HttpReply reply) {
  if (serial != serial_ || phase_ != Phase::kAnswering || streaming_ || last_) return;
  std::string head = head_of(reply.status, reply.content_type);
  for (const auto& header : reply.headers) head += fmt::format("{}: {}\r\n", header.first, header.second);
  last_ = true;
  send(fmt::format("{}Content-Length: {}\r\n\r\n", head, reply.body.size()) + reply.body);
}

void HttpConnection::open_stream(std::uint64_t serial, const std::string& content_type) {
  if (serial != serial_ || phase_ != Phase::kAnswering || streaming_ || last_) return;
  streaming_ = true;
  if (!chunked_) keep_alive_ = false;
  send(head_of(200, content_type) + "Cache-Control: no-cache\r\n" +
       (chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n"));
}

void HttpConnection::write(std::uint64_t serial, const std::string& text) {
  if (serial != serial_ || phase_ != Phase::kAnswering || !streaming_ || last_ || text.empty()) return;
  if (out_.size() + on_the_way_.size() + text.size() > server_.limits.max_unread) return close();
  send(chunked_ ? fmt::format("{:x}\r\n", text.size()) + text + "\r\n" : text);
}

void HttpConnection::end(std::uint64_t serial) {
  if (serial != serial_ || phase_ != Phase::kAnswering || !streaming_ || last_) return;
  last_ = true;
  send(chunked_ ? "0\r\n\r\n" : "");
}

void HttpConnection::send(const std::string& text) {
  out_ += text;
  flush();
}

void HttpConnection::flush() {
  if (writing_ || phase_ == Phase::kClosed) return;
  if (out_.empty()) {
    if (last_ && phase_ == Phase::kAnswering) answered();
    return;
  }
  writing_ = true;
  on_the_way_.swap(out_);
  out_.clear();
  write_deadline_.expires_after(seconds(server_.limits.write_seconds));
  write_deadline_.async_wait([self = shared_from_this()](error_code error) {
    if (error || !self->writing_) return;
    ++self->server_.timed_out;
    self->close();
  });
  asio::async_write(socket_, asio::buffer(on_the_way_),
                    [self = shared_from_this()](error_code error, std::size_t) {
                      self->writing_ = false;
                      self->on_the_way_.clear();
                      self->write_deadline_.cancel();
                      if (error) return self->close();
                      self->flush();
                    });
}

// The whole answer is sent: the next request, or the end.
void HttpConnection::answered() {
  --server_.answering;
  ++serial_;
  server_.body_bytes -= counted_;
  counted_ = 0;
  if (!keep_alive_ || server_.draining) return linger();
  enter(Phase::kIdle, server_.limits.idle_seconds);
  if (!unread_.empty()) return parse();
  unread_.shrink_to_fit();
  read();
}

void HttpConnection::linger() {
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  enter(Phase::kLingering, kLingerSeconds);
  unread_.clear();
  read();
}

void HttpConnection::close() {
  if (phase_ == Phase::kClosed) return;
  if (phase_ == Phase::kAnswering) {
    --server_.answering;
    if (const auto exchange = exchange_.lock()) exchange->lose();
  }
  server_.body_bytes -= counted_;
  counted_ = 0;
  phase_ = Phase::kClosed;
  ++deadline_serial_;
  deadline_.cancel();
  write_deadline_.cancel();
  error_code ignored;
  socket_.close(ignored);
  server_.remove(this);
}

void HttpServer::State::accept() {
  acceptor.async_accept([this](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (!error) {
      admit(std::move(socket));
      return accept();
    }
    // Out of descriptors, most likely: one makes room, and a moment is waited so that this is no busy loop.
    make_room();
    retry_timer.expires_after(seconds(0.05));
    retry_timer.async_wait([this](error_code stopped) {
      if (!stopped) accept();
    });
  });
}

void HttpServer::State::admit(tcp::socket socket) {
  ++accepted;
  const bool room = connections.size() < limits.max_connections || make_room();
  auto connection = std::make_shared<HttpConnection>(*this, std::move(socket));
  connection->place = connections.insert(connections.end(), connection);
  ++connection_count;
  if (room) return connection->start();
  ++refused;
  connection->refuse(
      HttpRefusal(503, "the server has as many connections as it can; try again", "overloaded"));
}

bool HttpServer::State::make_room() {
  for (const auto& connection : connections) {
    if (connection->phase() == HttpConnection::Phase::kAnswering) continue;
    ++evicted;
    const auto kept = connection;  // close() takes it off the list
    kept->close();
    return true;
  }
  return false;
}

void HttpServer::State::remove(const HttpConnection* connection) {
  connections.erase(connection->place);
  --connection_count;
}

void HttpServer::State::watch_signals() {
  signals.async_wait([this](error_code error, int) {
    if (error) return;
    drain();
    watch_signals();
  });
}

// The first time: no new answers, and the end when those under way are given. The second time: the end.
void HttpServer::State::drain() {
  if (draining) {
    cut_off = answering > 0;
    return io.stop();
  }
  draining = true;
  on_drain();
  await_drain(std::chrono::steady_clock::now() + seconds(drain_seconds));
}

void HttpServer::State::await_drain(std::chrono::steady_clock::time_point deadline) {
  cut_off = answering > 0 && std::chrono::steady_clock::now() >= deadline;
  if (answering == 0 || cut_off) return io.stop();
  drain_timer.expires_after(seconds(0.02));
  drain_timer.async_wait([this, deadline](error_code error) {
    if (!error) await_drain(deadline);
  });
}

void check_address(const std::string& host, int port) {
  asio::io_context io;
  tcp::acceptor acceptor(io);
  listen_at(acceptor, host, port);
}

HttpServer::HttpServer(const std::string& host, int port, const HttpLimits& limits, HttpHandler handler,
                       RefusalReply refusal)
    : state_(std::make_unique<State>(limits, std::move(handler), std::move(refusal))) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    constexpr rlim_t kOwnFiles = 64;  // for everything that is no connection
    files.rlim_cur = std::min<rlim_t>(files.rlim_max,
                                      std::max<rlim_t>(files.rlim_cur, limits.max_connections + kOwnFiles));
    setrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_cur > kOwnFiles)
      state_->limits.max_connections =
          std::min<std::size_t>(limits.max_connections, files.rlim_cur - kOwnFiles);
  }
  listen_at(state_->acceptor, host, port);
}

HttpServer::~HttpServer() {
  while (!state_->connections.empty()) state_->connections.front()->close();
}

int HttpServer::port() const { return state_->acceptor.local_endpoint().port(); }
bool HttpServer::on_loopback() const { return state_->acceptor.local_endpoint().address().is_loopback(); }

HttpCounters HttpServer::counters() const {
  return {state_->connection_count, state_->accepted, state_->evicted, state_->refused, state_->timed_out};
}

bool HttpServer::run(double drain_seconds, const std::function<void()>& on_drain, bool by_signal) {
  state_->drain_seconds = drain_seconds;
  state_->on_drain = on_drain;
  if (by_signal) {
    state_->signals.add(SIGTERM);
    state_->signals.add(SIGINT);
    state_->watch_signals();
  }
  state_->accept();
  state_->io.run();
  return !state_->cut_off;
}

void HttpServer::stop_soon() {
  asio::post(state_->io, [state = state_.get()] {
    if (!state->draining) state->drain();
  });
}

}  // namespace llmq
