// HTTP/1.1 on one thread: connections, limits and time-outs; what is asked and answered is up to the handler.
//
// Hostile by default: headers, bodies, idle connections, readers and whole requests each have a deadline;
// connections, bytes of one body and of all bodies together have a limit. When the limit of connections is
// reached, the one that has been quiet the longest and waits for no answer makes room: so a crowd of idle
// connections locks nobody out.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "http/exchange.h"

namespace llmq {

struct HttpLimits {
  std::size_t max_connections = 1024;
  std::size_t max_header = 16u << 10;
  std::size_t max_fields = 100;
  std::size_t max_body = 8u << 20;
  std::size_t max_bodies = 64u << 20;  // of all requests that are read or answered, together
  std::size_t max_unread = 4u << 20;   // of a stream whose client does not keep up, behind what is being sent
  double header_seconds = 10;          // from a request's first byte to the end of its header
  double body_seconds = 30;            // from there to the end of its body
  double idle_seconds = 30;            // until the first byte, also between two requests
  double write_seconds = 30;           // for what was written at once to be taken
  double request_seconds = 600;        // from a whole request to its whole answer
};

// Whether a server could listen there now, before what takes long is done for it: Error(kUsage) for an
// address that is none, Error(kResource) where it is taken.
void check_address(const std::string& host, int port);

class HttpServer {
 public:
  // Listens at once, or throws as check_address(). Port 0: any free one.
  // `refusal` says what a client reads when no handler is asked; plain_refusal() is one sentence.
  HttpServer(const std::string& host, int port, const HttpLimits& limits,
             RefusalReply refusal = plain_refusal);
  ~HttpServer();

  int port() const;
  bool on_loopback() const;
  HttpCounters counters() const;  // any thread

  // From now on SIGTERM and SIGINT end run(), also one that comes before it; without this they end the
  // process.
  void end_by_signal();
  // Asks `handler` until stop_soon() or a signal, and then until the answers under way are given: `on_drain`
  // is called when it begins; what takes longer than `drain_seconds`, or a second signal, is cut off. True
  // when every answer was given whole.
  bool run(HttpHandler handler, double drain_seconds, const std::function<void()>& on_drain);
  void stop_soon();  // any thread: as the first signal does

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace llmq
