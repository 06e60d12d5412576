// PosixSockets on loopback: bound addresses, accepted connections, and the behaviour of a process
// without free descriptors.
#include "server/net/posix_sockets.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <utility>
#include <vector>

#include "common/system/socket_address.h"

namespace ballast::server {
namespace {

constexpr std::chrono::milliseconds kUserTimeout(1000);
constexpr std::chrono::seconds kLong(60);

std::unique_ptr<PosixSockets> Listen(const std::string& address) {
  auto sockets = PosixSockets::Listen(address, kUserTimeout);
  EXPECT_TRUE(sockets.ok()) << sockets.status();
  return *std::move(sockets);
}

bool HasIpv6() { return PosixSockets::Listen("[::1]:0", kUserTimeout).ok(); }

// The newest connection, once it exists.
Incoming AcceptOne(PosixSockets* sockets) {
  while (!sockets->Wait(kLong, true).listener) {
  }
  return sockets->Accept();
}

int Option(int fd, int level, int option) {
  int value = -1;
  socklen_t bytes = sizeof(value);
  EXPECT_EQ(getsockopt(fd, level, option, &value, &bytes), 0);
  return value;
}

TEST(PosixSockets, TakesAFreePortAndWhatItAcceptsIsSetUpAsGrpcDoes) {
  const auto sockets = Listen("127.0.0.1:0");
  ASSERT_GT(sockets->port(), 0);
  const int client = BeginConnect("127.0.0.1", sockets->port());
  const Incoming incoming = AcceptOne(sockets.get());
  ASSERT_EQ(incoming.result, Accepted::kConnection);
  EXPECT_EQ(incoming.address, "127.0.0.1");
  EXPECT_NE(Option(incoming.fd, IPPROTO_TCP, TCP_NODELAY), 0);
  EXPECT_EQ(Option(incoming.fd, IPPROTO_TCP, TCP_USER_TIMEOUT), kUserTimeout.count());
  char name[16] = {};
  socklen_t bytes = sizeof(name);
  ASSERT_EQ(getsockopt(incoming.fd, IPPROTO_TCP, TCP_CONGESTION, name, &bytes), 0);
  EXPECT_TRUE(std::string(name) == "cubic" || std::string(name) == "reno") << name;
  sockets->Close(incoming.fd);
  close(client);
}

TEST(PosixSockets, IPv6IsOneAddressPerNetwork) {
  if (!HasIpv6()) GTEST_SKIP() << "this machine has no IPv6";
  const auto sockets = Listen("[::1]:0");
  const int client = BeginConnect("::1", sockets->port());
  ASSERT_GE(client, 0);
  const Incoming incoming = AcceptOne(sockets.get());
  EXPECT_EQ(incoming.address, "::/64");
  sockets->Close(incoming.fd);
  close(client);
}

TEST(PosixSockets, AWildcardIsReachedByBothKinds) {
  if (!HasIpv6()) GTEST_SKIP() << "this machine has no IPv6";
  for (const char* address : {"0.0.0.0:0", "[::]:0"}) {
    const auto sockets = Listen(address);
    for (const char* host : {"127.0.0.1", "::1"}) {
      const int client = BeginConnect(host, sockets->port());
      const Incoming incoming = AcceptOne(sockets.get());
      EXPECT_EQ(incoming.result, Accepted::kConnection) << address << " by " << host;
      sockets->Close(incoming.fd);
      close(client);
    }
  }
}

TEST(PosixSockets, APortThatIsTakenIsNamed) {
  const auto first = Listen("127.0.0.1:0");
  const std::string address = "127.0.0.1:" + std::to_string(first->port());
  const auto second = PosixSockets::Listen(address, kUserTimeout);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find(address), absl::string_view::npos) << second.status();
}

TEST(PosixSockets, PeekLeavesTheBytesAndSeesTheEnd) {
  const auto sockets = Listen("127.0.0.1:0");
  const int client = BeginConnect("127.0.0.1", sockets->port());
  const Incoming incoming = AcceptOne(sockets.get());
  bool ended = true;
  EXPECT_EQ(sockets->Peek(incoming.fd, 24, &ended), "");
  EXPECT_FALSE(ended);
  sockets->Watch(incoming.fd);
  ASSERT_EQ(send(client, "hello", 5, 0), 5);
  while (sockets->Wait(kLong, false).connections.empty()) {
  }
  for (int i = 0; i < 2; ++i) EXPECT_EQ(sockets->Peek(incoming.fd, 24, &ended), "hello");
  sockets->Unwatch(incoming.fd);
  char taken[5];
  ASSERT_EQ(recv(incoming.fd, taken, sizeof(taken), 0), 5);
  shutdown(client, SHUT_WR);
  while (!ended) sockets->Peek(incoming.fd, 24, &ended);
  sockets->Close(incoming.fd);
  close(client);
}

TEST(PosixSockets, AClosedDescriptorLosesItsIdentityAlsoToTheNextOfItsNumber) {
  const auto sockets = Listen("127.0.0.1:0");
  const int first = BeginConnect("127.0.0.1", sockets->port());
  const Incoming one = AcceptOne(sockets.get());
  const uint64_t identity = sockets->Identity(one.fd);
  EXPECT_NE(identity, 0u);
  EXPECT_EQ(sockets->Identity(one.fd), identity);
  sockets->Close(one.fd);
  EXPECT_EQ(sockets->Identity(one.fd), 0u);
  const int second = BeginConnect("127.0.0.1", sockets->port());
  const Incoming two = AcceptOne(sockets.get());
  EXPECT_NE(sockets->Identity(two.fd), identity);
  sockets->Close(two.fd);
  close(first);
  close(second);
}

// The limit of this process, lowered for a while.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t limit) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit lower = before_;
    lower.rlim_cur = limit;
    setrlimit(RLIMIT_NOFILE, &lower);
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST(PosixSockets, WithoutADescriptorItStillRefusesAndAcceptsAgainLater) {
  const auto sockets = Listen("127.0.0.1:0");
  const int client = BeginConnect("127.0.0.1", sockets->port());
  const FewDescriptors limit(64);
  std::vector<int> taken;
  for (int fd = dup(0); fd >= 0; fd = dup(0)) taken.push_back(fd);
  EXPECT_EQ(AcceptOne(sockets.get()).result, Accepted::kNoDescriptor);
  EXPECT_TRUE(sockets->Refuse());
  char none;
  EXPECT_LE(recv(client, &none, 1, 0), 0);  // Closed by the server.
  for (const int fd : taken) close(fd);
  const int later = BeginConnect("127.0.0.1", sockets->port());
  const Incoming incoming = AcceptOne(sockets.get());
  EXPECT_EQ(incoming.result, Accepted::kConnection);
  sockets->Close(incoming.fd);
  close(client);
  close(later);
}

TEST(PosixSockets, WakeEndsAWait) {
  const auto sockets = Listen("127.0.0.1:0");
  sockets->Wake();
  const Happened happened = sockets->Wait(std::chrono::hours(1), true);
  EXPECT_FALSE(happened.listener);
  EXPECT_TRUE(happened.connections.empty());
}

}  // namespace
}  // namespace ballast::server
