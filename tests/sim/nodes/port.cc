#include "tests/sim/nodes/port.h"

#include <utility>
#include <vector>

#include "proto/convert/channel.h"
#include "proto/convert/methods.h"
#include "server/service/control_service.h"
#include "server/service/peer_service.h"
#include "tests/sim/net/server_unary.h"
#include "tests/sim/nodes/home.h"
#include "tests/sim/nodes/stream_watch.h"

namespace ballast::sim {

using server::JobPlan;

// A directory with one job. A call that is not simulated ends the run.
class SimPort::Jobs final : public server::JobDirectory,
                            public server::TrainerApi,
                            public server::JobShareApi,
                            public server::JobLookup {
 public:
  Jobs(World* world, SimServer* server) : world_(world), server_(server) {}

  server::JobApis apis() override { return {.trainers = this, .lookup = this, .shares = this}; }
  absl::Status Recover() override { return absl::OkStatus(); }
  void StartRecovered() override {}
  void PeerLost(uint32_t, const std::string&) override {}
  void Shutdown(std::function<void()>) override { NotSimulated(); }

  std::shared_ptr<server::RoundEngine> Find(uint64_t job) const override {
    const SimProcess* const process = server_->process();
    const auto engine = process == nullptr ? nullptr : process->shared_engine();
    return engine != nullptr && engine->job() == job ? engine : nullptr;
  }

  void Attach(server::AttachCall call,
              std::function<void(absl::StatusOr<server::AttachResult>)> done) override {
    if (server_->home() == nullptr) return NotSimulated();
    if (server_->process()->ended()) return done(server_->process()->failure());
    server_->home()->Attach(std::move(call), std::move(done));
  }
  void AttachCancelled(const QualifiedName&, uint32_t slot, uint64_t call) override {
    if (server_->home() != nullptr) server_->home()->HangUp(slot, call);
  }
  void Rendezvous(server::RendezvousCall call,
                  std::function<void(absl::StatusOr<rendezvous::Reply>)> done) override {
    if (server_->home() == nullptr) return NotSimulated();
    server_->home()->Rendezvous(call, std::move(done));
  }
  void Extend(server::ExtendCall, std::function<void(absl::StatusOr<JobPlan>)>) override {
    NotSimulated();
  }
  void Heard(server::DoingReport) override {}

  void Seal(server::SealCall call,
            std::function<void(absl::StatusOr<server::SealAnswer>)> done) override {
    server_->OnSeal(call.epoch, std::move(done));
  }
  void AdoptEpoch(JobPlan plan, std::function<void(absl::Status)> done) override {
    server_->OnAdopt(plan, std::move(done));
  }
  void CreateJob(JobPlan, std::function<void(absl::Status)>) override { NotSimulated(); }
  void ExtendJob(JobPlan, std::function<void(absl::Status)>) override { NotSimulated(); }
  void DropJob(uint64_t, std::function<void(absl::Status)>) override { NotSimulated(); }

 private:
  void NotSimulated() const { world_->Red("a call that is not simulated reaches the directory"); }

  World* const world_;
  SimServer* const server_;
};

SimPort::SimPort(const Context& context, SimServer* server, uint32_t index)
    : context_(context),
      process_(server->process()),
      node_(context.network->ServerNode(index)),
      timers_(server->process()->MakeExecutor("grpc")),
      holder_(absl::UnavailableError("the server starts")) {
  holder_.Set(std::make_shared<Jobs>(context.world, server));
  const Shape& shape = context.swarm->shape;
  deps_.directory = &holder_;
  deps_.executor = timers_.get();
  deps_.clock = server->process()->clock();
  deps_.config.chunk_bytes = shape.chunk_bytes;
  deps_.config.credit_bytes = shape.credit_bytes;
  deps_.config.max_frame_bytes = kMaxMessageBytes;
  deps_.config.max_control_bytes = kMaxMessageBytes;
  AddMethod(method::kExchange, server::TrainerStream::Factory(&deps_));
  server::AddControlMethods(this, &holder_, {shape.chunk_bytes, shape.credit_bytes},
                            [] { return server::ServerFacts(); });
  server::AddPeerMethods(this, &holder_,
                         {.id = context.plan->servers[index], .incarnation = process_->life()});
}

SimPort::~SimPort() {
  for (const auto& stream : streams_) stream->Drop();
  for (const std::weak_ptr<SimUnary>& weak : calls_) {
    if (const auto call = weak.lock()) call->Drop();
  }
}

void SimPort::AddMethod(absl::string_view method, server::StreamFactory factory,
                        server::MethodType) {
  methods_[std::string(method)] = std::move(factory);
}

void SimPort::Open(const StreamPtr& stream) {
  std::erase_if(streams_, [](const auto& old) { return old->over(); });
  const auto watch = std::make_shared<StreamWatch>(context_.world, process_);
  streams_.push_back(std::make_shared<SimStream>(
      context_.world, context_.network, stream, method::kExchange,
      SimStream::Sees{[watch](const Payload& message) { watch->OnUp(message); },
                      [watch](const Outgoing& message) { watch->OnDown(message); }}));
  streams_.back()->Begin(methods_.at(method::kExchange));
}

void SimPort::Call(const char* method, const Payload& request, UnaryDone answer) {
  std::erase_if(calls_, [](const std::weak_ptr<SimUnary>& weak) { return weak.expired(); });
  const auto call = std::make_shared<SimUnary>(context_.world, node_, method, std::move(answer));
  calls_.push_back(call);
  call->Begin(methods_.at(method), request);
}

}  // namespace ballast::sim
