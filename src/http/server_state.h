// What the connections of one server share: its limits, its handler, and the counts that decide whom to
// serve. All but the counters belongs to the thread that runs `io`.
#pragma once
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <list>
#include <memory>

#include "http/durations.h"
#include "http/server.h"

namespace llmq {

class HttpConnection;

struct HttpServer::State {
  State(const HttpLimits& given, RefusalReply refuse)
      : limits(given),
        refusal_reply(std::move(refuse)),
        acceptor(io),
        signals(io),
        drain_timer(io),
        retry_timer(io) {}
  void accept();
  void admit(boost::asio::ip::tcp::socket socket);
  bool make_room();
  void remove(const HttpConnection* connection);
  void watch_signals();
  void drain();
  void await_drain(std::chrono::steady_clock::time_point deadline);

  HttpLimits limits;
  HttpHandler handler;
  RefusalReply refusal_reply;
  boost::asio::io_context io{1};
  boost::asio::ip::tcp::acceptor acceptor;
  boost::asio::signal_set signals;
  boost::asio::steady_timer drain_timer, retry_timer;
  std::list<std::shared_ptr<HttpConnection>> connections;  // the one that has been quiet the longest first
  std::size_t answering = 0, body_bytes = 0;
  bool draining = false, cut_off = false;
  double drain_seconds = 0;
  std::function<void()> on_drain;
  std::atomic<std::size_t> connection_count{0};
  std::atomic<std::int64_t> accepted{0}, evicted{0}, refused{0}, timed_out{0};
};

}  // namespace llmq
