// The way back from a handler to the connection it answers.
#pragma once
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "http/exchange.h"

namespace llmq {

class HttpConnection;

// The answer to one request: calls from any thread become work of the I/O thread.
class ConnectionResponder : public HttpResponder {
 public:
  ConnectionResponder(boost::asio::io_context& io, std::shared_ptr<HttpConnection> connection,
                      std::uint64_t serial)
      : io_(io), connection_(std::move(connection)), serial_(serial) {}
  ~ConnectionResponder() override;

  void reply(HttpReply reply) override;
  void open_stream(const std::string& content_type) override;
  void write(std::string text) override;
  void end() override;
  bool gone() const override { return gone_; }
  void when_gone(std::function<void()> act) override;
  void lose();  // from the connection: what is written arrives no more

 private:
  boost::asio::io_context& io_;
  std::shared_ptr<HttpConnection> connection_;
  std::uint64_t serial_;
  std::atomic<bool> answered_{false}, gone_{false};
  std::mutex mutex_;
  std::function<void()> act_;
};

}  // namespace llmq
