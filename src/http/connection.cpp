#include "http/connection.h"

#include <boost/asio/write.hpp>
#include <utility>

#include "http/request_id.h"
#include "http/response_bytes.h"

namespace llmq {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr double kLingerSeconds = 2;

}  // namespace

void HttpConnection::start() {
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  enter(Phase::kIdle, server_.limits.idle_seconds);
  read();
}

void HttpConnection::refuse(const HttpRefusal& refusal) {
  keep_alive_ = false;
  if (request_id_.empty()) name_request();
  if (phase_ != Phase::kAnswering) {
    streaming_ = last_ = false;  // of the answer before
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
  deadline_.expires_after(as_duration(limit));
  deadline_.async_wait([self = shared_from_this(), serial = ++deadline_serial_](error_code error) {
    if (!error && serial == self->deadline_serial_) self->expired();
  });
}

void HttpConnection::expired() {
  ++server_.timed_out;
  if (phase_ == Phase::kHeader || phase_ == Phase::kBody)
    return refuse(HttpRefusal(408, "the request did not arrive in time", "request_timeout"));
  if (phase_ != Phase::kAnswering || streaming_ || last_) return close();
  if (const auto responder = responder_.lock()) responder->lose();
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
                      request_id_,
                      read_traceparent(text(message["traceparent"])),
                      std::chrono::steady_clock::now()};
  const auto responder = std::make_shared<ConnectionResponder>(server_.io, shared_from_this(), serial_);
  responder_ = responder;
  server_.handler(std::move(request), responder);
  read();
}

void HttpConnection::reply(std::uint64_t serial, const HttpReply& reply) {
  if (serial != serial_ || phase_ != Phase::kAnswering || streaming_ || last_) return;
  last_ = true;
  const std::string head = head_of_reply(reply, keep_alive_, request_id_);
  send(head_only_ ? head : head + reply.body);
}

void HttpConnection::open_stream(std::uint64_t serial, const std::string& content_type) {
  if (serial != serial_ || phase_ != Phase::kAnswering || streaming_ || last_) return;
  streaming_ = true;
  if (!chunked_) keep_alive_ = false;
  send(head_of_stream(content_type, keep_alive_, chunked_, request_id_));
}

void HttpConnection::write(std::uint64_t serial, const std::string& text) {
  if (serial != serial_ || phase_ != Phase::kAnswering || !streaming_ || last_ || text.empty()) return;
  // What waits behind the next text, whose sending has a deadline: one may be longer than a client may leave.
  if (out_.size() > next_ + server_.limits.max_unread) return close();
  if (!head_only_) send(chunked_ ? chunk_of(text) : text);
}

void HttpConnection::end(std::uint64_t serial) {
  if (serial != serial_ || phase_ != Phase::kAnswering || !streaming_ || last_) return;
  last_ = true;
  send(chunked_ && !head_only_ ? last_chunk() : "");
}

void HttpConnection::send(std::string_view text) {
  if (out_.empty()) next_ = text.size();
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
  write_deadline_.expires_after(as_duration(server_.limits.write_seconds));
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
    if (const auto responder = responder_.lock()) responder->lose();
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

}  // namespace llmq
