// The calls between servers over gRPC keep the conformance of transports, over loopback.
#include "server/rpc/grpc_peer_transport.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/generic_server.h"
#include "tests/server/stream/peer_transport_conformance.h"

namespace ballast::server {
namespace {

class GrpcPeerBench final : public PeerBench {
 public:
  explicit GrpcPeerBench(UnaryCall::Handler handler) : handler_(std::move(handler)) { Start(); }

  std::string address() const override { return address_; }
  PeerTransport* transport() override { return &transport_; }
  void End() override { server_.reset(); }
  void Start() override {
    server_ = std::make_unique<GenericServer>();
    server_->AddMethod(method::kPeerRestoreJob, UnaryCall::Factory(handler_));
    GenericServerOptions options;
    options.address = address_;
    ASSERT_TRUE(server_->Start(options).ok());
    address_ = absl::StrCat("127.0.0.1:", server_->port());
  }
  bool RunUntil(const std::function<bool()>& done) override {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < give_up) {
      if (done()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

 private:
  const UnaryCall::Handler handler_;
  std::string address_ = "127.0.0.1:0";
  std::unique_ptr<GenericServer> server_;
  GrpcPeerTransport transport_{GrpcPeerOptions()};
};

INSTANTIATE_TEST_SUITE_P(Grpc, PeerTransportConformance,
                         ::testing::Values(MakePeerBench::Of<GrpcPeerBench>()),
                         [](const auto&) { return std::string("Grpc"); });

}  // namespace
}  // namespace ballast::server
