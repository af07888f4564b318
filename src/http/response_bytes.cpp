#include "http/response_bytes.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/buffers_to_string.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/serializer.hpp>
#include <ctime>

namespace llmq {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

using Head = http::response<http::empty_body>;

// "Sun, 06 Nov 1994 08:49:37 GMT"
std::string http_date(std::time_t time) {
  tm parts{};
  gmtime_r(&time, &parts);
  char text[40];
  return {text, std::strftime(text, sizeof text, "%a, %d %b %Y %T GMT", &parts)};
}

Head head_with(int status, const std::string& content_type, bool keep_alive, const std::string& id) {
  Head head(static_cast<http::status>(status), 11);
  head.set(http::field::date, http_date(std::time(nullptr)));
  head.set(http::field::content_type, content_type);
  head.set("X-Content-Type-Options", "nosniff");
  if (!id.empty()) head.set("X-Request-Id", id);
  head.keep_alive(keep_alive);
  return head;
}

std::string bytes_of(Head& head) {
  http::response_serializer<http::empty_body> serializer(head);
  serializer.split(true);  // the header alone
  std::string bytes;
  while (!serializer.is_header_done()) {
    beast::error_code error;
    serializer.next(error, [&](beast::error_code&, const auto& buffers) {
      bytes += beast::buffers_to_string(buffers);
      serializer.consume(asio::buffer_size(buffers));
    });
  }
  return bytes;
}

}  // namespace

std::string head_of_reply(const HttpReply& reply, bool keep_alive, const std::string& id) {
  Head head = head_with(reply.status, reply.content_type, keep_alive, id);
  for (const auto& [name, value] : reply.headers) head.insert(name, value);
  head.content_length(reply.body.size());
  return bytes_of(head);
}

std::string head_of_stream(const std::string& content_type, bool keep_alive, bool chunked,
                           const std::string& id) {
  Head head = head_with(200, content_type, keep_alive, id);
  head.set(http::field::cache_control, "no-cache");
  if (chunked) head.set(http::field::transfer_encoding, "chunked");
  return bytes_of(head);
}

std::string chunk_of(std::string_view text) {
  return beast::buffers_to_string(http::make_chunk(asio::buffer(text)));
}

std::string last_chunk() { return beast::buffers_to_string(http::make_chunk_last()); }

}  // namespace llmq
