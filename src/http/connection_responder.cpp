#include "http/connection_responder.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "http/connection.h"

namespace llmq {

namespace asio = boost::asio;

ConnectionResponder::~ConnectionResponder() {
  if (answered_) return;
  try {
    asio::post(io_, [connection = connection_, serial = serial_] { connection->drop(serial); });
  } catch (const std::exception&) {
    // There is no memory for the message: the deadline of the request closes the connection.
  }
}

void ConnectionResponder::reply(HttpReply reply) {
  answered_ = true;
  asio::post(io_, [connection = connection_, serial = serial_, reply = std::move(reply)] {
    connection->reply(serial, reply);
  });
}

void ConnectionResponder::open_stream(const std::string& content_type) {
  answered_ = true;
  asio::post(io_, [connection = connection_, serial = serial_, content_type] {
    connection->open_stream(serial, content_type);
  });
}

void ConnectionResponder::write(std::string text) {
  if (gone_) return;
  asio::post(io_, [connection = connection_, serial = serial_, text = std::move(text)] {
    connection->write(serial, text);
  });
}

void ConnectionResponder::end() {
  asio::post(io_, [connection = connection_, serial = serial_] { connection->end(serial); });
}

void ConnectionResponder::when_gone(std::function<void()> act) {
  {
    const std::lock_guard lock(mutex_);
    if (!gone_) {
      act_ = std::move(act);
      return;
    }
  }
  act();
}

void ConnectionResponder::lose() {
  std::function<void()> act;
  {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    act = std::move(act_);
  }
  if (act) act();
}

}  // namespace llmq
