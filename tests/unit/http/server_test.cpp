// The server as bytes on a socket: what stands in an answer, and where it ends.
#include "http/server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <regex>
#include <thread>

namespace llmq {
namespace {

const std::size_t kLong = HttpLimits().max_unread + 1;

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A server that says its path, in a stream where that is /stream.
class Parrot {
 public:
  Parrot() : server_("127.0.0.1", 0, {}), thread_([this] { server_.run(answer, 5, [] {}); }) {}
  ~Parrot() {
    server_.stop_soon();
    thread_.join();
  }

  // All that comes back for `requests`, the last of which closes the connection.
  std::string ask(const std::string& requests) const {
    const int connection = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(server_.port()));
    EXPECT_EQ(connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(send(connection, requests.data(), requests.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(requests.size()));
    std::string answers;
    char piece[4096];
    for (ssize_t bytes; (bytes = recv(connection, piece, sizeof piece, 0)) > 0;)
      answers.append(piece, static_cast<std::size_t>(bytes));
    close(connection);
    return answers;
  }

 private:
  static void answer(const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder) {
    if (request.path == "/dropped") return;
    if (request.path != "/stream" && request.path != "/long")
      return responder->reply({200, "text/plain", request.path, {}});
    responder->open_stream("text/plain");
    if (request.path == "/long") responder->write(std::string(kLong, 'l'));
    responder->write("some ");
    responder->write("text");
    responder->end();
  }

  HttpServer server_;
  std::thread thread_;
};

std::string request(const std::string& method, const std::string& path, const std::string& more = "") {
  return method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + more + "\r\n";
}
const std::string kClose = "Connection: close\r\n";

// A HEAD is answered by the head of a GET's answer; a body behind it would be read as the next answer.
// A caller that was told the port may end the server before it runs.
TEST(HttpServer, ASignalBeforeItRunsEndsIt) {
  HttpServer server("127.0.0.1", 0, {});
  server.end_by_signal();
  std::raise(SIGTERM);
  bool drained = false;
  EXPECT_TRUE(server.run([](const auto&, const auto&) {}, 5, [&] { drained = true; }));
  EXPECT_TRUE(drained);
}

TEST(HttpServer, AHeadHasNoBodyAndTheNextAnswerIsRead) {
  const Parrot parrot;
  for (const std::string path : {"/first", "/stream"}) {
    const std::string answers = parrot.ask(request("HEAD", path) + request("GET", "/second", kClose));
    const std::size_t end = answers.find("\r\n\r\n");
    ASSERT_NE(end, std::string::npos) << answers;
    const std::string second = answers.substr(end + 4);
    EXPECT_THAT(answers, StartsWith("HTTP/1.1 200 OK\r\n")) << path;
    EXPECT_THAT(second, AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), EndsWith("\r\n\r\n/second"))) << path;
  }
  EXPECT_THAT(parrot.ask(request("HEAD", "/first", kClose)), HasSubstr("Content-Length: 6\r\n"));
}

TEST(HttpServer, AnAnswerSaysItsLengthAndWhenItWasGiven) {
  const Parrot parrot;
  const std::string answer = parrot.ask(request("GET", "/whole", kClose));
  EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("\r\nContent-Length: 6\r\n"),
                            HasSubstr("\r\nConnection: close\r\n"), EndsWith("\r\n\r\n/whole")));
  tm said{};
  ASSERT_NE(strptime(answer.c_str() + answer.find("\r\nDate: ") + 8, "%a, %d %b %Y %T GMT", &said), nullptr);
  EXPECT_NEAR(static_cast<double>(timegm(&said)), static_cast<double>(std::time(nullptr)), 60);
}

// Of an answer's head.
std::string id_in(const std::string& answer) {
  const std::size_t found = answer.find("\r\nX-Request-Id: ");
  if (found == std::string::npos) return "none";
  return answer.substr(found + 16, answer.find("\r\n", found + 16) - found - 16);
}

TEST(HttpServer, AnAnswerNamesItsRequest) {
  const Parrot parrot;
  const auto told = [&](const std::string& method, const std::string& path, const std::string& sent) {
    return id_in(parrot.ask(request(method, path, "x-request-id: " + sent + "\r\n" + kClose)));
  };
  const std::string own = "Aa9-_.:/+=@~", longest(128, 'a');
  for (const std::string path : {"/whole", "/stream", "/dropped"}) EXPECT_EQ(told("GET", path, own), own);
  EXPECT_EQ(told("HEAD", "/whole", own), own);
  EXPECT_EQ(told("GET", "/whole", longest), longest);
  const std::regex made("[0-9a-f]{24}");
  for (const std::string& hostile : {std::string(), longest + "a", std::string("a b"), std::string("\"a\""),
                                     std::string("<a>"), std::string("a\tb"), std::string("\xc3\xa9")})
    EXPECT_TRUE(std::regex_match(told("GET", "/whole", hostile), made)) << hostile;
  const std::string first = id_in(parrot.ask(request("GET", "/whole", kClose)));
  EXPECT_TRUE(std::regex_match(first, made)) << first;
  EXPECT_NE(id_in(parrot.ask(request("GET", "/whole", kClose))), first);
}

TEST(HttpServer, AnAnswerNamesNoOtherRequest) {
  const Parrot parrot;
  const std::string named = request("GET", "/first", "X-Request-Id: one\r\n");
  for (const std::string& next : {request("GET", "/next", kClose), std::string("GARBAGE\r\n\r\n")}) {
    const std::string both = parrot.ask(named + next);
    EXPECT_EQ(id_in(both), "one");
    const std::string second = id_in(both.substr(both.find("/first")));
    EXPECT_TRUE(std::regex_match(second, std::regex("[0-9a-f]{24}"))) << next << second;
  }
}

TEST(HttpServer, ARefusalNamesItsRequest) {
  const Parrot parrot;
  const std::string named = "X-Request-Id: one\r\n";
  for (const std::string& refused : {request("POST", "/", named + "Content-Length: 99999999999\r\n"),
                                     request("POST", "/", named + "Transfer-Encoding: gzip\r\n"),
                                     request("GET", "/", named + "X: " + std::string(20000, 'a') + "\r\n")})
    EXPECT_EQ(id_in(parrot.ask(refused)), "one") << refused.substr(0, 99);
  EXPECT_EQ(id_in(parrot.ask("GARBAGE\r\n\r\n")).size(), 24u);
}

// HTTP/1.0 knows no chunks: there a stream ends with its connection.
TEST(HttpServer, AStreamComesInChunks) {
  const Parrot parrot;
  EXPECT_THAT(parrot.ask(request("GET", "/stream", kClose)),
              AllOf(HasSubstr("\r\nTransfer-Encoding: chunked\r\n"), Not(HasSubstr("Content-Length")),
                    EndsWith("\r\n\r\n5\r\nsome \r\n4\r\ntext\r\n0\r\n\r\n")));
  EXPECT_THAT(parrot.ask("GET /stream HTTP/1.0\r\n\r\n"),
              AllOf(Not(HasSubstr("Transfer-Encoding")), EndsWith("\r\n\r\nsome text")));
}

// What a client may leave unread waits behind what is being sent, so that one long text comes whole.
TEST(HttpServer, OneTextMayBeLongerThanWhatMayBeLeftUnread) {
  const Parrot parrot;
  const std::string answer = parrot.ask(request("GET", "/long", kClose));
  EXPECT_GT(answer.size(), kLong);
  EXPECT_THAT(answer, EndsWith("\r\n0\r\n\r\n"));
}

// Refusals that no handler sees: alone, and behind an answer or a stream on the same connection.
TEST(HttpServer, ARefusalIsAnAnswer) {
  const Parrot parrot;
  const std::pair<const char*, std::string> cases[] = {
      {"400", "GARBAGE\r\n\r\n"},
      {"400", "GET / HTTP/1.1\r\n\r\n"},
      {"413", request("POST", "/", "Content-Length: 99999999999\r\n")},
      {"501", request("POST", "/", "Transfer-Encoding: gzip\r\n")},
      {"431", request("GET", "/", "X: " + std::string(20000, 'a') + "\r\n")}};
  for (const std::string& before : {std::string(), request("GET", "/first"), request("GET", "/stream")})
    for (const auto& [status, refused] : cases) {
      const std::string answers = parrot.ask(before + refused);
      const std::size_t last = answers.rfind("HTTP/1.1 ");
      ASSERT_NE(last, std::string::npos);
      EXPECT_THAT(answers.substr(last), StartsWith(std::string("HTTP/1.1 ") + status))
          << before << refused.substr(0, 99);
    }
}

}  // namespace
}  // namespace llmq
