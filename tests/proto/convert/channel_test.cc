// Connection settings, seen on the real sockets of this process.
#include "proto/convert/channel.h"

#include <dirent.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "absl/cleanup/cleanup.h"

#include "tests/proto/convert/delayed_link.h"

namespace ballast {
namespace {

// Congestion controls of all TCP sockets this process has open.
std::multiset<std::string> OpenSockets() {
  std::multiset<std::string> names;
  DIR* dir = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(dir)) {
    const std::string name = CongestionControlOf(std::atoi(entry->d_name));
    if (!name.empty()) names.insert(name);
  }
  closedir(dir);
  return names;
}

bool KernelHas(const char* name) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const bool has =
      setsockopt(fd, IPPROTO_TCP, 13 /* TCP_CONGESTION */, name, std::string(name).size()) == 0;
  close(fd);
  return has;
}

// Shuts the queue down, and takes its content.
void Drain(grpc::CompletionQueue* queue) {
  queue->Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) {
  }
}

struct Loopback {
  grpc::AsyncGenericService service;
  std::unique_ptr<grpc::ServerCompletionQueue> queue;
  std::unique_ptr<grpc::Server> server;
  int port = 0;

  explicit Loopback(int wanted_port) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(wanted_port), MakeServerCredentials(),
                             &port);
    builder.RegisterAsyncGenericService(&service);
    queue = builder.AddCompletionQueue();
    ConfigureServer(&builder);
    server = builder.BuildAndStart();
  }

  ~Loopback() {
    if (server) server->Shutdown();
    Drain(queue.get());
  }
};

TEST(Channel, BothEndsOfAConnectionAvoidBbr) {
  Loopback loopback(0);
  ASSERT_NE(loopback.server, nullptr);
  auto channel = MakeChannel("127.0.0.1:" + std::to_string(loopback.port), /*time_scale=*/1);
  ASSERT_TRUE(
      channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(30)));
  const std::multiset<std::string> sockets = OpenSockets();
  // Listener and client; the accepted one may not have been taken yet.
  ASSERT_GE(sockets.size(), 2u);
  const std::string wanted = KernelHas("cubic") ? "cubic" : "reno";
  EXPECT_EQ(sockets.count(wanted), sockets.size());
}

TEST(Channel, TwoServersCannotShareAPort) {
  Loopback first(0);
  ASSERT_NE(first.server, nullptr);
  Loopback second(first.port);
  EXPECT_EQ(second.server, nullptr);
}

// Reads all messages of the one call that comes, then ends it. Returns as well when the server is
// shut down before a call has come.
void TakeAll(Loopback* loopback) {
  grpc::GenericServerContext context;
  grpc::GenericServerAsyncReaderWriter stream(&context);
  void* tag = nullptr;
  bool ok = false;
  loopback->service.RequestCall(&context, &stream, loopback->queue.get(), loopback->queue.get(),
                                nullptr);
  if (!loopback->queue->Next(&tag, &ok) || !ok) return;
  grpc::ByteBuffer message;
  stream.Read(&message, nullptr);
  while (loopback->queue->Next(&tag, &ok) && ok) stream.Read(&message, nullptr);
  stream.Finish(grpc::Status::OK, nullptr);
  loopback->queue->Next(&tag, &ok);
}

constexpr size_t kMessageBytes = 1 << 20;
constexpr size_t kWantedBytes = 3 * kMessageBytes;
constexpr int kMessagesMax = 400;

grpc::ByteBuffer OneMessage() {
  const grpc::Slice slice(std::string(kMessageBytes, 'x'));
  return grpc::ByteBuffer(&slice, 1);
}

// Without a probe of the network's latency the connection keeps HTTP/2's first window, 64 KiB, and
// no more than that and the message being read is ever under way.
TEST(Channel, MoreAndMoreMessagesAreUnderWayWhereTheNetworkHasALatency) {
  Loopback loopback(0);
  ASSERT_NE(loopback.server, nullptr);
  testing::DelayedLink link(loopback.port, std::chrono::milliseconds(20));
  grpc::GenericStub stub(MakeChannel("127.0.0.1:" + std::to_string(link.port()), /*time_scale=*/1));
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  grpc::Status status;
  void* tag = nullptr;
  bool ok = false;
  const auto call = stub.PrepareCall(&context, "/ballast.test/Take", &queue);
  std::thread taker([&] { TakeAll(&loopback); });
  const absl::Cleanup end = [&] {  // A failed ASSERT comes this way too.
    context.TryCancel();
    loopback.server->Shutdown(std::chrono::system_clock::now());
    taker.join();
    Drain(&queue);
  };
  const auto done = [&] { return queue.Next(&tag, &ok) && ok; };
  call->StartCall(nullptr);
  ASSERT_TRUE(done());
  const grpc::ByteBuffer message = OneMessage();
  int messages = 0;
  while (link.greatest_bytes() < kWantedBytes && messages < kMessagesMax) {
    call->Write(message, nullptr);
    ASSERT_TRUE(done());
    ++messages;
  }
  EXPECT_GE(link.greatest_bytes(), kWantedBytes) << "after " << messages << " messages";
  RecordProperty("messages", messages);
  call->WritesDone(nullptr);
  ASSERT_TRUE(done());
  call->Finish(&status, nullptr);
  ASSERT_TRUE(done());
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST(Channel, CongestionControlOfSomethingElseIsEmpty) { EXPECT_EQ(CongestionControlOf(-1), ""); }

}  // namespace
}  // namespace ballast
