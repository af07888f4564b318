// The HTTP client against this house's own server, and against one that says whatever a test makes it say.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "base/error.h"
#include "evaluate/completion_stream.h"
#include "http/client.h"
#include "http/event_stream.h"
#include "http/server.h"

namespace llmq {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// Takes one connection, waits for the end of a header, says `answer`, and then closes or stays until the
// client goes.
class Liar {
 public:
  Liar(std::string answer, bool closes) : listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, answer = std::move(answer), closes] { serve(answer, closes); });
  }
  ~Liar() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  HttpTarget target() const { return {"127.0.0.1", port_, ""}; }
  std::string heard;  // after the client has its answer

 private:
  void serve(const std::string& answer, bool closes) {
    const int connection = accept(listener_, nullptr, nullptr);
    if (connection < 0) return;
    char piece[4096];
    while (heard.find("\r\n\r\n") == std::string::npos) {
      const ssize_t bytes = recv(connection, piece, sizeof piece, 0);
      if (bytes <= 0) break;
      heard.append(piece, static_cast<std::size_t>(bytes));
    }
    for (std::size_t sent = 0; sent < answer.size();) {
      const ssize_t bytes = send(connection, answer.data() + sent, answer.size() - sent, MSG_NOSIGNAL);
      if (bytes <= 0) break;
      sent += static_cast<std::size_t>(bytes);
    }
    if (closes) shutdown(connection, SHUT_WR);
    while (recv(connection, piece, sizeof piece, 0) > 0) {
    }
    close(connection);
  }
  int listener_, port_ = 0;
  std::thread thread_;
};

std::string why(const std::string& answer, bool closes = true, double quiet_seconds = 60) {
  Liar liar(answer, closes);
  HttpClientLimits limits;
  limits.max_body = 1000;
  limits.quiet_seconds = quiet_seconds;
  HttpClient client(liar.target(), limits);
  try {
    const HttpText text = ask(client, {"GET", "/", {}, {}});
    return "status " + std::to_string(text.status) + ", " + text.body;
  } catch (const Error& error) {
    return error.detail().message;
  }
}

TEST(HttpClient, HostileAnswersBecomeOneSentence) {
  const std::string good = "HTTP/1.1 200 OK\r\n";
  EXPECT_THAT(why(""), HasSubstr("the connection ended before the answer did"));
  EXPECT_THAT(why("SSH-2.0-OpenSSH_9.2\r\n\r\n"), HasSubstr("the answer is no HTTP"));
  EXPECT_THAT(why(good + "Content-Length: 10\r\n\r\nabc"), HasSubstr("ended before the answer did"));
  EXPECT_THAT(why(good + "Content-Length: 10\r\nContent-Length: 3\r\n\r\nabc"),
              HasSubstr("the answer is no HTTP"));
  EXPECT_THAT(why(good + "Content-Length: 99999999999999999999999\r\n\r\n"),
              HasSubstr("the answer is no HTTP"));
  EXPECT_THAT(why(good + "Content-Length: 5000\r\n\r\n"), HasSubstr("more than 1000 bytes"));
  EXPECT_THAT(why(good + "\r\n" + std::string(5000, 'x')), HasSubstr("more than 1000 bytes"));
  EXPECT_THAT(why(good + "Transfer-Encoding: chunked\r\n\r\nzz\r\n"), HasSubstr("the answer is no HTTP"));
  EXPECT_THAT(why(good + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"),
              HasSubstr("the answer is no HTTP"));
  EXPECT_THAT(why(good + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"),
              HasSubstr("ended before the answer did"));
  EXPECT_THAT(why(good + "X: " + std::string(40000, 'x')), HasSubstr("header has more than 16384 bytes"));
  EXPECT_THAT(why(good, false, 0.1), HasSubstr("nothing came for 0.1 s"));
  EXPECT_THAT(why(good + "Content-Length: 3\r\n\r\nab", false, 0.1), HasSubstr("nothing came for 0.1 s"));
}

TEST(HttpClient, BodiesOfEveryFormArriveWhole) {
  const std::string good = "HTTP/1.1 200 OK\r\n";
  EXPECT_EQ(why(good + "Content-Length: 3\r\n\r\nabc", false), "status 200, abc");
  EXPECT_EQ(why(good + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n", false),
            "status 200, abc");
  EXPECT_EQ(why(good + "\r\nabc"), "status 200, abc");  // until the end of the connection
  EXPECT_EQ(why("HTTP/1.0 404 Gone\r\n\r\n"), "status 404, ");
}

TEST(HttpClient, SaysWhoAsksForWhat) {
  Liar liar("HTTP/1.1 204 No Content\r\n\r\n", false);
  HttpTarget target = liar.target();
  target.path = "/openai";
  HttpClient client(target, {});
  EXPECT_EQ(ask(client, {"POST", "/v1/x", "{}", "Bearer k"}).status, 204);
  EXPECT_THAT(liar.heard, AllOf(StartsWith("POST /openai/v1/x HTTP/1.1\r\nHost: 127.0.0.1:" +
                                           std::to_string(target.port) + "\r\n"),
                                HasSubstr("\r\nAuthorization: Bearer k\r\n"),
                                HasSubstr("\r\nContent-Type: application/json\r\nContent-Length: 2\r\n")));
}

TEST(HttpClient, ReadsAddresses) {
  const auto shown = [](const std::string& url) {
    const HttpTarget target = parse_http_url(url, "--endpoint");
    return target.authority() + target.path;
  };
  EXPECT_EQ(shown("http://localhost:8000"), "localhost:8000");
  EXPECT_EQ(shown("http://a.b/openai/"), "a.b:80/openai");
  EXPECT_EQ(shown("http://[::1]:81/x"), "[::1]:81/x");
  for (const char* bad : {"", "localhost:8000", "ftp://x", "https://x", "http://", "http://:80",
                          "http://x:", "http://x:0", "http://x:65536", "http://x:8x", "http://u@x",
                          "http://x/a b", "http://x/\r\nA: b", "http://x?y", "http://[::1"})
    EXPECT_THROW(parse_http_url(bad, "--endpoint"), Error) << bad;
}

TEST(HttpClient, NobodyListens) {
  HttpTarget target;
  {
    const Liar liar("", true);
    target = liar.target();
  }
  HttpClient client(target, {});
  try {
    ask(client, {"GET", "/", {}, {}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.detail().message, HasSubstr("cannot connect"));
  }
}

struct Pieces : HttpReader {
  explicit Pieces(std::size_t wanted) : most(wanted) {}
  void head(int status, const std::string&) override { text += std::to_string(status) + ":"; }
  bool body(std::string_view piece, Time) override {
    text += piece;
    return ++count < most;
  }
  void done(Time) override { text += "."; }
  void failed(const std::string& why) override { text += why; }
  std::string text;
  std::size_t count = 0, most;
};

// Each path is said twice; /early has no end.
TEST(HttpClient, ManyCallsToThisServerAtOnce) {
  std::vector<std::shared_ptr<HttpResponder>> kept;
  HttpServer server("127.0.0.1", 0, {});
  const auto answer_twice = [&](HttpRequest request, std::shared_ptr<HttpResponder> answer) {
    answer->open_stream("text/plain");
    answer->write(request.path);
    answer->write(request.path);
    if (request.path != "/early") answer->end();
    kept.push_back(answer);
  };
  std::thread thread([&] { server.run(answer_twice, 5, [] {}); });
  {
    HttpClient client({"127.0.0.1", server.port(), ""}, {});
    std::vector<std::shared_ptr<Pieces>> readers;
    for (int i = 0; i < 20; ++i)
      client.call({"GET", "/" + std::to_string(i), {}, {}},
                  readers.emplace_back(std::make_shared<Pieces>(100)));
    const auto early = std::make_shared<Pieces>(1);
    client.call({"GET", "/early", {}, {}}, early);
    bool acted = false;
    client.at(std::chrono::steady_clock::now(), [&] { acted = true; });
    client.run();
    for (int i = 0; i < 20; ++i)
      EXPECT_EQ(readers[static_cast<std::size_t>(i)]->text,
                "200:/" + std::to_string(i) + "/" + std::to_string(i) + ".");
    EXPECT_THAT(early->text, StartsWith("200:/early"));
    EXPECT_TRUE(acted);
    client.call({"GET", "/early", {}, {}}, std::make_shared<Pieces>(100));
    EXPECT_THROW(client.run([] { throw std::runtime_error("enough"); }), std::runtime_error);
  }
  server.stop_soon();
  thread.join();
  kept.clear();  // they hold connections, which end before their server
}

TEST(EventStream, TheSameEventsHoweverTheyAreCut) {
  const std::string text =
      "data: one\n\n: a comment\nevent: x\ndata:two\r\ndata:  three\r\n\r\nid: 7\n\ndata\n\ndata: left";
  for (std::size_t cut = 1; cut <= text.size(); ++cut) {
    EventStream stream;
    std::vector<std::string> found;
    for (std::size_t at = 0; at < text.size(); at += cut)
      stream.feed(std::string_view(text).substr(at, cut),
                  [&](const std::string& data) { found.push_back(data); });
    EXPECT_THAT(found, ElementsAre("one", "two\n three", "")) << cut;
  }
  EventStream small(10);
  EXPECT_THROW(small.feed("data: 0123456789", [](const std::string&) {}), Error);
  EventStream joined(20);
  EXPECT_THROW(joined.feed("data: 12345\ndata: 12345\ndata: 123456\n", [](const std::string&) {}), Error);
}

TEST(CompletionStream, ReadsChunksOfSeveralServers) {
  EXPECT_TRUE(read_stream_event("[DONE]").ends);
  EXPECT_TRUE(read_stream_event(R"({"choices":[{"text":"a","finish_reason":null}],"usage":null})").delivers);
  EXPECT_TRUE(read_stream_event(R"({"choices":[{"text":"","index":0}]})").delivers)
      << "a token that gave no text yet";
  const StreamPart end = read_stream_event(R"({"choices":[{"text":"","finish_reason":"length"}]})");
  EXPECT_TRUE(end.ends);
  EXPECT_FALSE(end.delivers);
  const StreamPart last = read_stream_event(
      R"({"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8}})");
  ASSERT_TRUE(last.usage);
  EXPECT_EQ(last.usage->completion_tokens, 5);
  EXPECT_FALSE(last.delivers || last.ends);
}

TEST(CompletionStream, WhatIsNoChunkIsNamed) {
  const auto said = [](const std::string& data) {
    try {
      read_stream_event(data);
    } catch (const Error& error) {
      return error.detail().message;
    }
    return std::string();
  };
  EXPECT_THAT(said("<html>"), HasSubstr("no JSON: <html>"));
  EXPECT_THAT(said("[1]"), HasSubstr("no chunk"));
  EXPECT_THAT(said("{}"), HasSubstr("no choices"));
  EXPECT_THAT(said(R"({"choices":7})"), HasSubstr("no choices"));
  EXPECT_THAT(said(R"({"error":{"message":"out of\nmemory"}})"), HasSubstr("the server says: out of memory"));
  EXPECT_THAT(said(R"({"choices":[],"usage":{"prompt_tokens":-1,"completion_tokens":5}})"),
              HasSubstr("no sound prompt_tokens"));
  EXPECT_THAT(said(std::string(5000, '[')),
              AllOf(HasSubstr("no JSON"), ::testing::SizeIs(::testing::Lt(300u))));
  EXPECT_EQ(said(R"({"choices":[1,null,"x",{"finish_reason":3}]})"), "");
  EXPECT_EQ(error_words(R"({"error":{"message":"no"}})"), "no");
  EXPECT_EQ(error_words(R"({"object":"error","message":"no"})"), "no");
  EXPECT_EQ(error_words("<html>\nmore\x1b[0m"), "<html>");
  EXPECT_THAT(error_words(""), IsEmpty());
}

}  // namespace
}  // namespace llmq
