// How a connection reads one request: Boost.Beast parses, and what it leaves to its users is checked here.
#include <fmt/core.h>

#include <boost/beast/http/error.hpp>

#include "http/connection.h"
#include "http/request_id.h"

namespace llmq {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr std::size_t kMaxTarget = 8u << 10;

}  // namespace

void HttpConnection::parse() {
  if (phase_ == Phase::kIdle && !unread_.empty()) {
    parser_.emplace();
    parser_->header_limit(static_cast<std::uint32_t>(server_.limits.max_header));
    parser_->body_limit(server_.limits.max_body);
    header_done_ = head_only_ = false;
    request_id_.clear();
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

// By what is read of its header so far.
void HttpConnection::name_request() {
  boost::beast::string_view sent;
  if (parser_) sent = parser_->get()["X-Request-Id"];
  request_id_ = request_id({sent.data(), sent.size()});
}

// What Beast leaves to its users, and what the two programs on a proxied line could read differently.
void HttpConnection::check_header() {
  header_done_ = true;
  const auto& message = parser_->get();
  head_only_ = message.method() == http::verb::head;
  name_request();
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

}  // namespace llmq
