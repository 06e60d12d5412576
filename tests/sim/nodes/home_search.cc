#include "tests/sim/nodes/home_search.h"

#include <optional>
#include <string>
#include <utility>

#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "proto/convert/channel.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/methods.h"

namespace ballast::sim {
namespace {

using std::chrono::milliseconds;

// As gRPC's client polls while it waits for an answer.
constexpr Tick kPoll = 100 * kMillisecond;

}  // namespace

class SimHomeSearch::Connection final : public client::HomeConnection {
 public:
  Connection(SimHomeSearch* search, std::string address)
      : search_(search), address_(std::move(address)) {}

  // A cut counts at once; gRPC's keepalive would take a while to find it.
  bool ready() const override {
    const Network* const network = search_->context_.network;
    return network->Reaches(search_->node_, network->ServerNode(Network::IndexOf(address_)));
  }
  absl::Status Call(const char* method, const google::protobuf::MessageLite& request,
                    milliseconds timeout, const std::function<absl::Status()>& poll,
                    google::protobuf::MessageLite* reply) override {
    const absl::Status status = search_->Call({address_, method, timeout}, request, poll, reply);
    search_->OnEnded(method, status);
    return status;
  }

 private:
  SimHomeSearch* const search_;
  const std::string address_;
};

SimHomeSearch::SimHomeSearch(const Context& context, uint32_t process, SimTransport* transport,
                             client::JobOptions options, const v1::AttachRequest& request,
                             Done done)
    : context_(context),
      node_(context.network->TrainerNode(process)),
      transport_(transport),
      options_(std::move(options)),
      done_(std::move(done)),
      program_(context.world, node_, [this, request] { Run(request); }) {
  const uint32_t servers = context.swarm->shape.servers;
  const uint64_t first = Random(Mix(context.swarm->seed) ^ Mix(0x5EA2C4 + process)).Below(servers);
  for (uint32_t i = 0; i < servers; ++i) {
    options_.endpoints.push_back(Network::Address(static_cast<uint32_t>((first + i) % servers)));
  }
}

client::HomeSearchDeps SimHomeSearch::Deps() {
  client::HomeSearchDeps deps;
  deps.connect = [this](const std::string& address) {
    return std::make_unique<Connection>(this, address);
  };
  deps.explain = [](const std::string&) { return std::string(); };
  deps.now = [this] { return transport_->Now(); };
  deps.sleep = [this](milliseconds time) {
    WaitFor(static_cast<Tick>(time.count()) * kMillisecond);
  };
  return deps;
}

bool SimHomeSearch::WaitFor(Tick time) {
  ended_ = ended_ || !program_.WaitFor(time);
  return !ended_;
}

absl::Status SimHomeSearch::Call(const client::CallTarget& target,
                                 const google::protobuf::MessageLite& request,
                                 const std::function<absl::Status()>& poll,
                                 google::protobuf::MessageLite* reply) {
  std::optional<absl::StatusOr<Payload>> answer;
  const std::unique_ptr<client::CallHandle> call =
      transport_->Start(target, request, [this, &answer](absl::StatusOr<Payload> arrived) {
        answer.emplace(std::move(arrived));
        program_.Wake();
      });
  while (!answer.has_value()) {
    if (!WaitFor(kPoll)) return absl::CancelledError("the process has ended");
    if (!answer.has_value() && poll) BALLAST_RETURN_IF_ERROR(poll());
  }
  return answer->ok() ? ParseMessage(**answer, kMaxMessageBytes, reply) : answer->status();
}

void SimHomeSearch::OnEnded(const std::string& method, const absl::Status& status) const {
  if (method == method::kJobStatus && status.ok()) context_.world->Met(Cover::kHomeAsked);
  if (ReasonOf(status) == Reason::kNotHome) context_.world->Met(Cover::kHomeNamed);
  if (absl::IsUnavailable(status)) context_.world->Met(Cover::kHomeAway);
}

void SimHomeSearch::Run(const v1::AttachRequest& request) {
  const absl::StatusOr<v1::AttachReply> reply = client::AttachToHome(options_, Deps(), request);
  if (ended_) return;
  context_.world->After(0, node_, EventKind::kTimer, [this, reply] { done_(reply); });
}

}  // namespace ballast::sim
