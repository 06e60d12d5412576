// The transport over gRPC keeps the conformance of streams, over a connection on loopback.
#include "server/rpc/generic_call.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/cpp/transport/grpc_transport.h"
#include "proto/convert/channel_factory.h"
#include "server/rpc/generic_server.h"
#include "tests/server/stream/stream_conformance.h"

namespace ballast::server {
namespace {

class GrpcStreamBench final : public StreamBench {
 public:
  void Serve(StreamFactory factory) override {
    server_.AddMethod(method::kExchange, std::move(factory), MethodType::kBidiStream);
    ASSERT_TRUE(server_.Start(GenericServerOptions()).ok());
  }
  std::string address() const override { return absl::StrCat("127.0.0.1:", server_.port()); }
  Mutex* mu() override { return &mu_; }
  client::Transport* transport() override { return &transport_; }
  bool RunUntil(const std::function<bool()>& done) override {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < give_up) {
      {
        MutexLock lock(&mu_);
        if (done()) return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

 private:
  GenericServer server_;
  Mutex mu_;
  client::GrpcTransport transport_{&mu_, std::make_shared<ChannelFactory>(), /*time_scale=*/1};
};

INSTANTIATE_TEST_SUITE_P(Grpc, StreamConformance,
                         ::testing::Values(MakeStreamBench::Of<GrpcStreamBench>()),
                         [](const auto&) { return std::string("Grpc"); });

}  // namespace
}  // namespace ballast::server
