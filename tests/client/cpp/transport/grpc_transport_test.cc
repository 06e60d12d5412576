// The transport over gRPC keeps the conformance of links, against a gRPC server in this process.
#include "client/cpp/transport/grpc_transport.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/client/cpp/fake_server.h"
#include "tests/client/cpp/transport/link_conformance.h"

namespace ballast::client {
namespace {

// Thread safety: thread-safe; handlers run on gRPC's threads.
class GrpcPeer final : public LinkPeer {
 public:
  GrpcPeer() { Restart(); }
  ~GrpcPeer() override { Stop(); }

  std::string address() const override { return address_; }
  void Send(const std::string& message) override {
    const grpc::Slice slice(message);
    std::lock_guard<std::mutex> lock(mu_);
    if (link_ != nullptr) link_->Send(grpc::ByteBuffer(&slice, 1));
  }
  void End(const absl::Status& status) override {
    std::lock_guard<std::mutex> lock(mu_);
    if (link_ != nullptr) link_->End(ToGrpc(status));
  }
  std::vector<std::string> received() override {
    std::lock_guard<std::mutex> lock(mu_);
    return received_;
  }
  int half_closes() override {
    std::lock_guard<std::mutex> lock(mu_);
    return half_closes_;
  }
  void AnswerCalls(absl::StatusOr<std::string> answer) override {
    std::lock_guard<std::mutex> lock(mu_);
    answer_ = std::move(answer);
  }
  void Stop() override {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  void Restart() override {
    service_ = std::make_unique<Service>(this);
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kFakeMaxBytes);
    int port = 0;
    builder.AddListeningPort(address_, MakeServerCredentials(), &port);
    builder.RegisterCallbackGenericService(service_.get());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    address_ = "127.0.0.1:" + std::to_string(port);
  }

 private:
  class Service : public grpc::CallbackGenericService {
   public:
    explicit Service(GrpcPeer* peer) : peer_(peer) {}
    grpc::ServerGenericBidiReactor* CreateReactor(
        grpc::GenericCallbackServerContext* context) override {
      return peer_->Take(context->method());
    }

   private:
    GrpcPeer* const peer_;
  };

  FakeStream* Take(const std::string& method) {
    const bool is_link = method == method::kExchange;
    auto receive = [this, is_link](FakeStream* call, const grpc::ByteBuffer& bytes) {
      std::lock_guard<std::mutex> lock(mu_);
      if (!is_link) return Answer(call);
      link_ = call;
      received_.push_back(ToPayload(bytes)->ToString());
    };
    auto gone = [this](FakeStream* call) {
      std::lock_guard<std::mutex> lock(mu_);
      if (link_ == call) link_ = nullptr;
    };
    auto half_closed = [this] {
      std::lock_guard<std::mutex> lock(mu_);
      ++half_closes_;
    };
    auto* const stream = new FakeStream(receive, gone, half_closed);
    if (is_link) stream->Hold();
    return stream;
  }
  void Answer(FakeStream* call) {
    if (!answer_.has_value()) return call->Hold();
    if (!answer_->ok()) return call->End(ToGrpc(answer_->status()));
    const grpc::Slice slice(**answer_);
    call->Send(grpc::ByteBuffer(&slice, 1));
    call->End(grpc::Status::OK);
  }

  std::mutex mu_;
  std::string address_ = "127.0.0.1:0";
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::string> received_;
  std::optional<absl::StatusOr<std::string>> answer_;
  FakeStream* link_ = nullptr;
  int half_closes_ = 0;
};

class GrpcBench final : public LinkBench {
 public:
  Mutex* mu() override { return &mu_; }
  Transport* transport() override { return &transport_; }
  LinkPeer* peer() override { return &peer_; }
  bool RunUntil(const std::function<bool()>& done) override {
    const Time give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
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
  GrpcPeer peer_;
  Mutex mu_;
  GrpcTransport transport_{&mu_, std::make_shared<ChannelFactory>(), /*time_scale=*/1};
};

INSTANTIATE_TEST_SUITE_P(Grpc, LinkConformance, ::testing::Values(MakeLinkBench::Of<GrpcBench>()),
                         [](const auto&) { return std::string("Grpc"); });

}  // namespace
}  // namespace ballast::client
