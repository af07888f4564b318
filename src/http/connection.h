// One connection: reads requests one after another, hands each to the handler, and sends its answer.
//
// A connection goes idle -> header -> body -> answering -> idle, or ends in lingering: what the client still
// sends is thrown away for a moment, because closing at once would take back the answer on its way.
#pragma once
#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "http/connection_responder.h"
#include "http/server_state.h"

namespace llmq {

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  enum class Phase { kIdle, kHeader, kBody, kAnswering, kLingering, kClosed };

  HttpConnection(HttpServer::State& server, boost::asio::ip::tcp::socket socket)
      : server_(server), socket_(std::move(socket)), deadline_(server.io), write_deadline_(server.io) {}

  void start();
  void drop(std::uint64_t serial) {  // the handler let go of it without an answer
    reply(serial, server_.refusal_reply(HttpRefusal(500, "the server dropped this request")));
  }
  void refuse(const HttpRefusal& refusal);  // answers without having been asked, and closes
  void close();
  Phase phase() const { return phase_; }
  std::list<std::shared_ptr<HttpConnection>>::iterator place;

  // From its ConnectionResponder; `serial` tells whether it is still the one that is answered.
  void reply(std::uint64_t serial, const HttpReply& reply);
  void open_stream(std::uint64_t serial, const std::string& content_type);
  void write(std::uint64_t serial, const std::string& text);
  void end(std::uint64_t serial);

 private:
  static constexpr std::size_t kReadPiece = 8u << 10;
  // that the parser cannot use yet, or pipelined behind a request
  static constexpr std::size_t kMaxBuffered = 64u << 10;

  void enter(Phase phase, double limit);
  void expired();
  void read();
  void received(std::size_t bytes);
  void parse();
  void name_request();
  void check_header();
  void take_body_bytes();
  void dispatch();
  void answered();
  void linger();
  void send(std::string_view text);
  void flush();

  HttpServer::State& server_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer deadline_, write_deadline_;
  std::array<char, kReadPiece> piece_;  // where a read puts its bytes; they move to unread_ when it is over
  std::string unread_;
  std::optional<Parser> parser_;
  std::string request_id_;  // empty until the header is read, or refused
  std::weak_ptr<ConnectionResponder> responder_;
  Phase phase_ = Phase::kIdle;
  std::uint64_t serial_ = 0, deadline_serial_ = 0;
  std::size_t counted_ = 0;  // bytes of the body in server_.body_bytes
  bool header_done_ = false, reading_ = false, writing_ = false, keep_alive_ = true, chunked_ = true,
       head_only_ = false, streaming_ = false, last_ = false;
  std::string out_, on_the_way_;
  std::size_t next_ = 0;  // bytes of the first text in out_
};

}  // namespace llmq
