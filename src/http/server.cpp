#include "http/server.h"

#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/post.hpp>

#include "base/error.h"
#include "http/connection.h"
#include "http/server_state.h"

namespace llmq {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

void listen_at(tcp::acceptor& acceptor, const std::string& host, int port) {
  boost::system::error_code error;
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

void check_address(const std::string& host, int port) {
  asio::io_context io;
  tcp::acceptor acceptor(io);
  listen_at(acceptor, host, port);
}

HttpServer::HttpServer(const std::string& host, int port, const HttpLimits& limits, RefusalReply refusal)
    : state_(std::make_unique<State>(limits, std::move(refusal))) {
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

void HttpServer::end_by_signal() {
  state_->signals.add(SIGTERM);
  state_->signals.add(SIGINT);
  state_->watch_signals();
}

bool HttpServer::run(HttpHandler handler, double drain_seconds, const std::function<void()>& on_drain) {
  state_->handler = std::move(handler);
  state_->drain_seconds = drain_seconds;
  state_->on_drain = on_drain;
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
