// Tests of server/admin/admin_server.h with a plain socket as the client.
#include "server/admin/admin_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "common/metrics/metrics.h"

namespace ballast {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A connection to the port, or -1. All data arrives within a minute or not at all. `receive_bytes`:
// size of the receive buffer; 0 leaves the choice to the kernel.
int Connect(int port, int receive_bytes = 0, const char* from = "127.0.0.1") {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (receive_bytes > 0) {
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
  }
  const timeval limit = {60, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, from, &address.sin_addr);
  EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
  close(fd);
  return -1;
}

// The whole answer to `bytes`, or "" when nobody answers.
std::string Say(int port, const std::string& bytes) {
  const int fd = Connect(port);
  std::string answer;
  if (fd >= 0) {
    EXPECT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    char buffer[4096];
    for (ssize_t n = 0; (n = recv(fd, buffer, sizeof(buffer), 0)) > 0;) {
      answer.append(buffer, static_cast<size_t>(n));
    }
    close(fd);
  }
  return answer;
}

std::string Request(int port, const std::string& method, const std::string& target,
                    const std::string& headers = "") {
  return Say(port, method + " " + target + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
}

std::string Get(int port, const std::string& target) { return Request(port, "GET", target); }

std::string Body(const std::string& answer) {
  const size_t end = answer.find("\r\n\r\n");
  return end == std::string::npos ? "" : answer.substr(end + 4);
}

class AdminServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    AdminPages pages;
    pages.metrics = &metrics_.registry();
    pages.alive = [this] {
      return alive_ ? absl::OkStatus() : absl::UnavailableError("the port does not answer");
    };
    pages.ready = [this] {
      return ready_ ? absl::OkStatus() : absl::UnavailableError("waiting for server 2");
    };
    pages.status = [](bool json) { return json ? "{\"round\":7}" : "round 7\n"; };
    pages.status_html = [] { return "<p>round 7</p>"; };
    pages.config = [](bool json) { return json ? "{\"port\":0}" : "port: 0\n"; };
    absl::StatusOr<std::unique_ptr<AdminServer>> server = AdminServer::Start({}, std::move(pages));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::string Fetch(const std::string& target) { return Get(server_->port(), target); }

  ServerMetrics metrics_{BuildInfo{"0.1.0", "", "scalar"}};
  std::atomic<bool> alive_{true};
  std::atomic<bool> ready_{true};
  std::unique_ptr<AdminServer> server_;
};

TEST_F(AdminServerTest, PortZeroBindsAFreePort) {
  EXPECT_GT(server_->port(), 0);
  absl::StatusOr<std::unique_ptr<AdminServer>> second = AdminServer::Start({}, {});
  ASSERT_TRUE(second.ok());
  EXPECT_NE((*second)->port(), server_->port());
}

TEST_F(AdminServerTest, ServesMetricsThatFollowTheCounters) {
  const std::shared_ptr<JobMetrics> job = metrics_.Job({.name = "gpt"});
  job->push_bytes.Add(5);
  const std::string answer = Fetch("/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(Body(answer),
              HasSubstr("\nballast_push_bytes_total{tenant=\"default\",run=\"gpt\"} 5\n"));
  metrics_.RemoveJob({.name = "gpt"});
  EXPECT_THAT(Body(Fetch("/metrics")), Not(HasSubstr("gpt")));
}

TEST_F(AdminServerTest, HealthzSaysWhyOnlyARestartHelps) {
  EXPECT_THAT(Fetch("/healthz"), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_EQ(Body(Fetch("/healthz")), "ok\n");
  alive_ = false;
  EXPECT_THAT(Fetch("/healthz"), StartsWith("HTTP/1.1 503 "));
  EXPECT_EQ(Body(Fetch("/healthz")), "not alive: the port does not answer\n");
}

TEST_F(AdminServerTest, ReadyzFollowsTheCallbackAndSaysWhyNot) {
  EXPECT_THAT(Fetch("/readyz"), StartsWith("HTTP/1.1 200 OK\r\n"));
  ready_ = false;
  const std::string answer = Fetch("/readyz");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503 Service Unavailable\r\n"));
  EXPECT_EQ(Body(answer), "not ready: waiting for server 2\n");
}

TEST_F(AdminServerTest, StatuszAndConfigzComeAsTextAndAsJson) {
  EXPECT_EQ(Body(Fetch("/statusz")), "round 7\n");
  EXPECT_EQ(Body(Fetch("/statusz?format=text")), "round 7\n");
  EXPECT_EQ(Body(Fetch("/statusz?format=jsonish-and-long")), "round 7\n");
  const std::string json = Fetch("/statusz?format=json");
  EXPECT_EQ(Body(json), "{\"round\":7}");
  EXPECT_THAT(json, HasSubstr("Content-Type: application/json\r\n"));
  EXPECT_EQ(Body(Fetch("/configz")), "port: 0\n");
  EXPECT_EQ(Body(Fetch("/configz?x=1&format=json")), "{\"port\":0}");
}

TEST_F(AdminServerTest, StatuszIsAPageForABrowser) {
  const std::string accept = "Accept: text/html,application/xhtml+xml;q=0.9,*/*;q=0.8\r\n";
  const auto get = [&](const std::string& target) {
    return Request(server_->port(), "GET", target, accept);
  };
  const std::string page = get("/statusz");
  EXPECT_EQ(Body(page), "<p>round 7</p>");
  EXPECT_THAT(page, HasSubstr("Content-Type: text/html; charset=utf-8\r\n"));
  EXPECT_THAT(page, HasSubstr("Content-Security-Policy: default-src 'none'"));
  EXPECT_THAT(page, HasSubstr("Vary: Accept\r\n"));
  EXPECT_EQ(Body(get("/statusz?format=json")), "{\"round\":7}");
  EXPECT_EQ(Body(get("/statusz?format=text")), "round 7\n");
  EXPECT_EQ(Body(get("/configz")), "port: 0\n");
  EXPECT_EQ(Body(Fetch("/statusz?format=html")), "<p>round 7</p>");
  EXPECT_EQ(Body(Request(server_->port(), "GET", "/statusz", "Accept: */*\r\n")), "round 7\n");
}

TEST(AdminToken, PagesWithContentsAskForItAndProbesDoNot) {
  AdminServerOptions options;
  options.token = "0123456789abcdef";
  AdminPages pages;
  pages.status = [](bool) { return "round 7\n"; };
  pages.config = [](bool) { return "port: 0\n"; };
  const auto server = AdminServer::Start(options, std::move(pages));
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = (*server)->port();
  for (const char* page : {"/metrics", "/statusz", "/configz", "/none"}) {
    for (const char* header :
         {"", "Authorization: Bearer\r\n", "Authorization: Bearer 0123456789abcdeg\r\n",
          "Authorization: Bearer 0123456789abcdef0\r\n", "Authorization: 0123456789abcdef\r\n"}) {
      const std::string answer = Request(port, "GET", page, header);
      EXPECT_THAT(answer, StartsWith("HTTP/1.1 401 ")) << page << header;
      EXPECT_THAT(answer, HasSubstr("\r\nWWW-Authenticate: Bearer\r\n"));
      EXPECT_THAT(answer, Not(HasSubstr("round 7")));
    }
  }
  EXPECT_EQ(Body(Request(port, "GET", "/statusz", "Authorization: Bearer 0123456789abcdef\r\n")),
            "round 7\n");
  EXPECT_EQ(Body(Get(port, "/healthz")), "ok\n");
  EXPECT_EQ(Body(Get(port, "/readyz")), "ok\n");
}

TEST_F(AdminServerTest, TheRootListsThePages) {
  EXPECT_THAT(Body(Fetch("/")), HasSubstr("/metrics"));
}

TEST_F(AdminServerTest, UnknownPagesAre404AndNoFileIsServed) {
  for (const char* target : {"/nope", "/metrics/x", "/healthz/", "/../../etc/passwd",
                             "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd"}) {
    EXPECT_THAT(Fetch(target), StartsWith("HTTP/1.1 404 Not Found\r\n")) << target;
  }
}

TEST_F(AdminServerTest, OtherMethodsAreRefusedAndHeadHasNoBody) {
  for (const char* method : {"POST", "PUT", "DELETE"}) {
    EXPECT_THAT(Request(server_->port(), method, "/statusz"),
                StartsWith("HTTP/1.1 405 Method Not Allowed\r\n"))
        << method;
  }
  const std::string head = Request(server_->port(), "HEAD", "/healthz");
  EXPECT_THAT(head, HasSubstr("Content-Length: 3\r\n"));
  EXPECT_THAT(head, EndsWith("\r\n\r\n"));
}

// Each thread that makes a page keeps the memory for it.
TEST(AdminServerStartTest, OneThreadMakesAllPagesOfMetrics) {
  MetricRegistry registry;
  std::mutex mu;
  std::set<std::thread::id> makers;
  registry.Declare("watched", MetricKind::kGauge, "Read by the thread that makes the page.");
  registry.AddCallback("watched", {}, [&] {
    std::lock_guard lock(mu);
    makers.insert(std::this_thread::get_id());
    return 1.0;
  });
  AdminPages pages;
  pages.metrics = &registry;
  const auto server = AdminServer::Start({}, std::move(pages));
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&] {
      for (int n = 0; n < 5; ++n) {
        EXPECT_THAT(Body(Get((*server)->port(), "/metrics")), HasSubstr("watched 1\n"));
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(makers.size(), 1u);
}

TEST_F(AdminServerTest, ManyClientsAtOnceAllGetTheirPage) {
  std::atomic<int> good{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&] {
      for (int n = 0; n < 5; ++n) good += Body(Fetch("/metrics")).empty() ? 0 : 1;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(good, 40);
}

// A client that has sent only a part of its request, until the end of the test.
class HalfRequest {
 public:
  explicit HalfRequest(int port, const char* from = "127.0.0.1") : fd_(Connect(port, 0, from)) {
    const std::string half = "GET /healthz HTTP/1.1\r\nHost: loc";
    EXPECT_EQ(send(fd_, half.data(), half.size(), MSG_NOSIGNAL), static_cast<ssize_t>(half.size()));
  }
  ~HalfRequest() { close(fd_); }
  HalfRequest(const HalfRequest&) = delete;
  // Until the server hangs up, after whatever it says; false when it does not.
  bool HungUp() const {
    char buffer[4096];
    ssize_t bytes = 0;
    while ((bytes = recv(fd_, buffer, sizeof(buffer), 0)) > 0) {
    }
    return bytes == 0 || errno == ECONNRESET;
  }

 private:
  const int fd_;
};

TEST(AdminServerStartTest, ClientsThatNeverFinishTheirRequestsDoNotHoldUpAProbe) {
  AdminServerOptions options;
  options.request_timeout = std::chrono::minutes(10);  // beyond the end of the test
  const absl::StatusOr<std::unique_ptr<AdminServer>> server = AdminServer::Start(options, {});
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<std::unique_ptr<HalfRequest>> halves;
  // More than threads; a new one of the same address may still come.
  for (int i = 0; i < 3 * kAdminThreads; ++i) {
    halves.push_back(std::make_unique<HalfRequest>((*server)->port()));
  }
  EXPECT_EQ(Body(Get((*server)->port(), "/healthz")), "ok\n");
}

TEST(AdminServerStartTest, OneAddressCannotTakeThePlacesOfOthers) {
  AdminServerOptions options;
  options.request_timeout = std::chrono::minutes(10);  // beyond the end of the test
  const absl::StatusOr<std::unique_ptr<AdminServer>> server = AdminServer::Start(options, {});
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<std::unique_ptr<HalfRequest>> halves;
  for (size_t i = 0; i <= kAdminConnections.per_address; ++i) {
    halves.push_back(std::make_unique<HalfRequest>((*server)->port(), "127.0.0.2"));
  }
  EXPECT_TRUE(halves.back()->HungUp());
  EXPECT_EQ(Body(Get((*server)->port(), "/healthz")), "ok\n");
}

TEST_F(AdminServerTest, MalformedRequestsAreRefused) {
  for (const char* line : {"GET /healthz\r\n\r\n", "GET /healthz HTTP/2.0\r\n\r\n",
                           "GET healthz HTTP/1.1\r\n\r\n", "GET  /healthz HTTP/1.1\r\n\r\n"}) {
    EXPECT_THAT(Say(server_->port(), line), StartsWith("HTTP/1.1 400 Bad Request\r\n")) << line;
  }
  const std::string long_header = "Cookie: " + std::string(kRequestHeadBytesMax, 'x') + "\r\n";
  EXPECT_THAT(Request(server_->port(), "GET", "/healthz", long_header),
              StartsWith("HTTP/1.1 400 "));
  EXPECT_EQ(Say(server_->port(), "\x16\x03\x01"), "");
  EXPECT_EQ(Say(server_->port(), "hello"), "");
}

TEST_F(AdminServerTest, ABodyThatNobodyReadsTakesNoAnswerAway) {
  EXPECT_THAT(Request(server_->port(), "POST", "/statusz", "Content-Length: 4\r\n\r\nbody"),
              StartsWith("HTTP/1.1 405 "));
}

TEST(AdminServerStartTest, AClientThatNeverFinishesItsRequestIsHungUpOn) {
  AdminServerOptions options;
  options.request_timeout = std::chrono::milliseconds(50);
  const absl::StatusOr<std::unique_ptr<AdminServer>> server = AdminServer::Start(options, {});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE(HalfRequest((*server)->port()).HungUp());
}

// A client that has asked for a page larger than the buffers between the two, and reads nothing of
// it until the end of the test.
class NeverReader {
 public:
  NeverReader(int port, const std::string& target) : fd_(Connect(port, /*receive_bytes=*/4096)) {
    const std::string request = "GET " + target + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
    EXPECT_EQ(send(fd_, request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
  }
  ~NeverReader() { close(fd_); }
  NeverReader(const NeverReader&) = delete;
  // Returns when the answer begins to arrive: a thread of the server is at it.
  bool Arrives() const {
    char first = 0;
    return recv(fd_, &first, 1, MSG_PEEK) == 1;
  }

 private:
  const int fd_;
};

class NeverReadTest : public ::testing::Test {
 protected:
  // Two pages of 8 MiB, which is more than a kernel keeps of one connection by default.
  NeverReadTest() {
    const auto value = std::make_shared<Gauge>();
    for (int i = 0; i < 128; ++i) {
      const std::string label = std::to_string(i) + std::string(size_t{64} << 10, 'x');
      metrics_.registry().Add("ballast_state_bytes", {{"tier", label}},
                              std::shared_ptr<const Gauge>(value));
    }
  }
  void Start(std::chrono::milliseconds request_timeout) {
    AdminServerOptions options;
    options.request_timeout = request_timeout;
    AdminPages pages;
    pages.metrics = &metrics_.registry();
    pages.status = [](bool) { return std::string(size_t{8} << 20, 'x'); };
    absl::StatusOr<std::unique_ptr<AdminServer>> server =
        AdminServer::Start(options, std::move(pages));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  // Returns when the answer begins to arrive, or when the server has hung up: false.
  bool Ask(const std::string& page) {
    readers_.push_back(std::make_unique<NeverReader>(server_->port(), page));
    return readers_.back()->Arrives();
  }

  ServerMetrics metrics_{BuildInfo{"0.1.0", "", "scalar"}};
  std::unique_ptr<AdminServer> server_;
  std::vector<std::unique_ptr<NeverReader>> readers_;  // last: the server's end waits for them
};

TEST_F(NeverReadTest, ClientsThatNeverReadTheirScrapeDoNotHoldUpAProbe) {
  Start(std::chrono::minutes(10));  // beyond the end of the test
  EXPECT_TRUE(Ask("/metrics"));
  while (readers_.size() < kAdminThreads) EXPECT_TRUE(Ask("/statusz"));
  EXPECT_EQ(Body(Get(server_->port(), "/healthz")), "ok\n");
}

TEST_F(NeverReadTest, ClientsThatNeverReadAreHungUpOn) {
  Start(std::chrono::milliseconds(200));
  Ask("/metrics");
  while (readers_.size() < kAdminThreads) Ask("/statusz");
  // One more finds a thread when another is hung up on.
  EXPECT_TRUE(Ask("/metrics"));
}

TEST_F(AdminServerTest, AfterStopNobodyAnswers) {
  const int port = server_->port();
  server_->Stop();
  server_->Stop();
  EXPECT_EQ(Get(port, "/healthz"), "");
}

TEST(AdminServerStartTest, PagesWithoutAContentAre404) {
  absl::StatusOr<std::unique_ptr<AdminServer>> server = AdminServer::Start({}, {});
  ASSERT_TRUE(server.ok()) << server.status();
  for (const char* target : {"/metrics", "/statusz", "/configz"}) {
    EXPECT_THAT(Get((*server)->port(), target), StartsWith("HTTP/1.1 404")) << target;
  }
  EXPECT_THAT(Get((*server)->port(), "/readyz"), StartsWith("HTTP/1.1 200"));
}

TEST(AdminServerStartTest, ATakenPortIsNamed) {
  absl::StatusOr<std::unique_ptr<AdminServer>> first = AdminServer::Start({}, {});
  ASSERT_TRUE(first.ok()) << first.status();
  AdminServerOptions options;
  options.port = (*first)->port();
  const absl::Status status = AdminServer::Start(options, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("127.0.0.1:" + std::to_string(options.port)));
}

TEST(AdminServerStartTest, TakesIpv6WithAndWithoutBrackets) {
  for (const char* host : {"::1", "[::1]"}) {
    AdminServerOptions options;
    options.host = host;
    const absl::StatusOr<std::unique_ptr<AdminServer>> server = AdminServer::Start(options, {});
    if (absl::IsUnavailable(server.status())) GTEST_SKIP() << "no IPv6 loopback here";
    ASSERT_TRUE(server.ok()) << server.status();
    EXPECT_GT((*server)->port(), 0);
  }
}

TEST(AdminServerStartTest, BadAddressesAreRefused) {
  for (const char* host : {"", "localhost,0.0.0.0", "1.2.3", "host name", "[127.0.0.1"}) {
    AdminServerOptions options;
    options.host = host;
    EXPECT_EQ(AdminServer::Start(options, {}).status().code(), absl::StatusCode::kInvalidArgument)
        << host;
  }
  for (int port : {-1, 65536}) {
    AdminServerOptions options;
    options.port = port;
    EXPECT_EQ(AdminServer::Start(options, {}).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace ballast
