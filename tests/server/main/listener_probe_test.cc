// ListenerProbe against a gRPC server, against a port that takes connections and never speaks, and
// against none.
#include "server/net/listener_probe.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <future>
#include <thread>

#include "common/base/clock.h"
#include "common/metrics/declarations.h"
#include "common/system/socket_address.h"
#include "common/threads/thread_executor.h"
#include "server/rpc/generic_server.h"

namespace ballast::server {
namespace {

constexpr std::chrono::milliseconds kPatience(50);

class ListenerProbeTest : public testing::Test {
 protected:
  ListenerProbeTest() { DeclareMetrics(&registry_); }

  std::shared_ptr<ListenerProbe> Start(const std::string& host, int port) {
    ProbeTarget target;
    target.host = host;
    target.port = port;
    return ListenerProbe::Start(target, kPatience, &clock_, &executor_, &registry_);
  }
  // False only when the probe never says so.
  bool WaitFor(const ListenerProbe& probe, bool accepts) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (probe.accepts() != accepts) {
      clock_.Advance(kPatience / 5);
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  FakeClock clock_;
  ThreadExecutor executor_{"probe", 1};
  MetricRegistry registry_;
};

TEST_F(ListenerProbeTest, APortThatNeverSpeaksDoesNotAccept) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener, 100), 0);  // The kernel takes connections, no process does.
  socklen_t length = sizeof(address);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const auto probe = Start("127.0.0.1", ntohs(address.sin_port));
  EXPECT_TRUE(probe->accepts());
  EXPECT_TRUE(WaitFor(*probe, false));
  EXPECT_THAT(probe->Health().message(), testing::HasSubstr("has not answered"));
  probe->Stop();
  close(listener);
}

TEST_F(ListenerProbeTest, AServerAcceptsUntilItsPortIsClosed) {
  GenericServer server;
  ASSERT_TRUE(server.Start({}).ok());
  const auto probe = Start("0.0.0.0", server.port());
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (probe->beats() < 3 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(probe->Health().ok());
  EXPECT_TRUE(WaitFor(*probe, true));  // Later, where this machine was too slow for one beat.
  server.Shutdown(std::chrono::milliseconds(0));
  EXPECT_TRUE(WaitFor(*probe, false));
  probe->Stop();
}

TEST_F(ListenerProbeTest, APortThatIsFullIsNotDead) {
  GenericServer server;
  GenericServerOptions options;
  options.connections.total = 1;
  options.time_scale = 100;  // The stranger keeps its place while the test waits.
  ASSERT_TRUE(server.Start(options).ok());
  const int stranger = BeginConnect("127.0.0.1", server.port());
  const auto probe = Start("127.0.0.1", server.port());
  const uint64_t before = probe->beats();
  while (probe->beats() < before + 20) {
    clock_.Advance(kPatience / 5);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(WaitFor(*probe, true));  // Later, where this machine was too slow for one beat.
  probe->Stop();
  close(stranger);
}

TEST_F(ListenerProbeTest, AnExecutorThatHangsIsNoticedAndOneThatIsBusyIsNot) {
  GenericServer server;
  ASSERT_TRUE(server.Start({}).ok());
  const auto probe = Start("127.0.0.1", server.port());
  std::promise<void> hangs;
  std::promise<void> until;
  executor_.Post([&] {
    hangs.set_value();
    until.get_future().wait();
  });
  hangs.get_future().wait();
  clock_.Advance(kPatience * 29);
  EXPECT_TRUE(probe->Health().ok());
  clock_.Advance(kPatience * 2);
  EXPECT_THAT(probe->Health().message(), testing::HasSubstr("the executor has run no task"));
  until.set_value();
  // False only when it never ends.
  while (!probe->Health().ok()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  probe->Stop();
}

TEST_F(ListenerProbeTest, AHostThatIsNoAddressHasNoProbe) {
  EXPECT_EQ(Start("server.example", 7000), nullptr);
  EXPECT_TRUE(registry_.Collect().empty());
}

}  // namespace
}  // namespace ballast::server
