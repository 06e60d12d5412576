#include "client/cpp/attach/grpc_connection.h"

#include <string>
#include <utility>

#include "client/cpp/transport/unary_call.h"

namespace ballast::client {
namespace {

class GrpcConnection final : public HomeConnection {
 public:
  explicit GrpcConnection(std::shared_ptr<grpc::Channel> channel) : channel_(std::move(channel)) {}

  bool ready() const override {
    return channel_->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY;
  }
  absl::Status Call(const char* method, const google::protobuf::MessageLite& request,
                    std::chrono::milliseconds timeout, const std::function<absl::Status()>& poll,
                    google::protobuf::MessageLite* reply) override {
    return CallUnary(channel_, method, request, timeout, poll, reply);
  }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace

HomeSearchDeps GrpcHomeSearch(std::shared_ptr<ChannelFactory> channels, double time_scale) {
  HomeSearchDeps deps;
  deps.connect = [channels, time_scale](const std::string& address) {
    return std::make_unique<GrpcConnection>(channels->Make(address, time_scale));
  };
  deps.explain = [channels](const std::string& address) { return channels->Explain(address); };
  deps.now = [] { return std::chrono::steady_clock::now(); };
  return deps;
}

}  // namespace ballast::client
