#include "http/posted_answer.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "http/connection.h"

namespace llmq {

namespace asio = boost::asio;

PostedAnswer::~PostedAnswer() {
  if (answered_) return;
  asio::post(io_, [connection = connection_, serial = serial_] { connection->drop(serial); });
}

void PostedAnswer::reply(HttpReply reply) {
  answered_ = true;
  asio::post(io_, [connection = connection_, serial = serial_, reply = std::move(reply)]() mutable {
    connection->reply(serial, std::move(reply));
  });
}

void PostedAnswer::open_stream(const std::string& content_type) {
  answered_ = true;
  asio::post(io_, [connection = connection_, serial = serial_, content_type] {
    connection->open_stream(serial, content_type);
  });
}

void PostedAnswer::write(std::string text) {
  if (gone_) return;
  asio::post(io_, [connection = connection_, serial = serial_, text = std::move(text)] {
    connection->write(serial, text);
  });
}

void PostedAnswer::end() {
  asio::post(io_, [connection = connection_, serial = serial_] { connection->end(serial); });
}

void PostedAnswer::when_gone(std::function<void()> act) {
  {
    const std::lock_guard lock(mutex_);
    if (!gone_) {
      act_ = std::move(act);
      return;
    }
  }
  act();
}

void PostedAnswer::lose() {
  std::function<void()> act;
  {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    act = std::move(act_);
  }
  if (act) act();
}

}  // namespace llmq
