// Who is let in, who makes room, and how a server ends.
#include "http/server_state.h"

#include "http/connection.h"

namespace llmq {

using boost::asio::ip::tcp;
using boost::system::error_code;

void HttpServer::State::accept() {
  acceptor.async_accept([this](error_code error, tcp::socket socket) {
    if (error == boost::asio::error::operation_aborted) return;
    if (!error) {
      admit(std::move(socket));
      return accept();
    }
    // Out of descriptors, most likely: one makes room, and a moment is waited so that this is no busy loop.
    make_room();
    retry_timer.expires_after(as_duration(0.05));
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
  await_drain(std::chrono::steady_clock::now() + as_duration(drain_seconds));
}

void HttpServer::State::await_drain(std::chrono::steady_clock::time_point deadline) {
  cut_off = answering > 0 && std::chrono::steady_clock::now() >= deadline;
  if (answering == 0 || cut_off) return io.stop();
  drain_timer.expires_after(as_duration(0.02));
  drain_timer.async_wait([this, deadline](error_code error) {
    if (!error) await_drain(deadline);
  });
}

}  // namespace llmq
