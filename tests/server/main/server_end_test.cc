// The end of a server as its clients see it: health and readiness turn first, while its port still
// answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ballast/v1/health.pb.h"
#include "common/base/sync.h"
#include "proto/convert/methods.h"
#include "server/server.h"
#include "tests/server/main/http_get.h"
#include "tests/server/service/fakes.h"

namespace ballast::server {
namespace {

using Response = v1::HealthCheckResponse;

Response::ServingStatus Next(RawStream* watch) { return watch->ReadReply<Response>().status(); }

bool WaitFor(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kTestDeadline;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// The content of a page, while the port answers.
void ExpectSaid(const std::string& admin, const std::string& page, const std::string& text) {
  EXPECT_THAT(HttpGet(admin, page), testing::AnyOf(testing::HasSubstr(text), "")) << page;
}

class Supervisor {
 public:
  void Hear(absl::string_view lines) {
    MutexLock lock(&mu_);
    heard_.emplace_back(lines);
  }
  bool Heard(const std::string& lines) const {
    MutexLock lock(&mu_);
    return std::find(heard_.begin(), heard_.end(), lines) != heard_.end();
  }

 private:
  mutable Mutex mu_;
  std::vector<std::string> heard_ ABSL_GUARDED_BY(mu_);
};

TEST(ServerEnd, HealthAndReadinessTurnWhileItsPortsStillAnswer) {
  ServerOptions options;
  options.loaded.config = config::DefaultConfig();
  options.loaded.config.mutable_listen()->set_address("127.0.0.1:0");
  options.loaded.config.mutable_admin()->set_address("127.0.0.1:0");
  options.loaded.config.mutable_admin()->set_enabled(true);
  Supervisor supervisor;
  options.supervision.say = [&supervisor](absl::string_view lines) { supervisor.Hear(lines); };
  auto server = Server::Start(std::move(options));
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string admin = (*server)->admin_address();
  EXPECT_THAT(HttpGet(admin, "/readyz"), testing::HasSubstr(" 200 "));
  ExpectSaid(admin, "/metrics", "ballast_serving 1\n");
  ExpectSaid(admin, "/statusz?format=json", "\"state\": \"serving\"");
  EXPECT_TRUE(WaitFor([&] { return supervisor.Heard("READY=1\nSTATUS=serving\n"); }));
  EXPECT_FALSE(supervisor.Heard("STOPPING=1\nSTATUS=stopping\n"));

  RawStream watch((*server)->address(), method::kHealthWatch);
  watch.Write(SerializeMessage(v1::HealthCheckRequest()));
  EXPECT_EQ(Next(&watch), Response::SERVING);
  // A stream that says nothing holds up the end for as long as streams may take.
  RawStream silent((*server)->address(), method::kExchange);
  ASSERT_TRUE(WaitFor([&] {
    return testing::Value(HttpGet(admin, "/metrics"),
                          testing::HasSubstr("grpc_server_started_total{grpc_type=\"bidi_stream\","
                                             "grpc_service=\"ballast.v1.Data\",grpc_method="
                                             "\"Exchange\"} 1\n"));
  }));

  std::thread stop([&server] { (*server)->Stop(); });
  EXPECT_EQ(Next(&watch), Response::NOT_SERVING);
  EXPECT_THAT(HttpGet(admin, "/readyz"), testing::Not(testing::HasSubstr(" 200 ")));
  ExpectSaid(admin, "/metrics", "ballast_serving 0\n");
  // It lives until its port is closed: where a probe of life failed, the server would be killed.
  EXPECT_THAT(HttpGet(admin, "/healthz"), testing::AnyOf(testing::HasSubstr(" 200 "), ""));
  EXPECT_EQ(watch.Drain().code(), absl::StatusCode::kUnavailable);
  stop.join();
  EXPECT_TRUE(supervisor.Heard("STOPPING=1\nSTATUS=stopping\n"));
}

}  // namespace
}  // namespace ballast::server
