#include "tests/sim/nodes/home.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ballast/v1/peer.pb.h"
#include "common/base/reason.h"
#include "proto/convert/channel.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/methods.h"
#include "server/convert/control_convert.h"
#include "server/convert/peer_convert.h"

namespace ballast::sim {
namespace {

constexpr Tick kCallAgain = 50 * kMillisecond;

server::DirectoryConfig ConfigOf(const Context& context) {
  server::DirectoryConfig config{.self = context.plan->servers.front()};
  config.servers = AddressesOf(*context.plan);
  // As the server does: a seat's process may take its lease and a little more to be given up.
  config.takeover_wait = config.engine.lease + config.engine.return_wait;
  return config;
}

}  // namespace

std::vector<server::ServerAddress> AddressesOf(const server::JobPlan& plan) {
  std::vector<server::ServerAddress> servers;
  for (const uint32_t id : plan.servers) {
    servers.push_back({id, Network::Address(static_cast<uint32_t>(servers.size()))});
  }
  return servers;
}

v1::AttachReply ReplyOf(const Context& context, const server::AttachResult& result) {
  const Shape& shape = context.swarm->shape;
  return server::AttachToProto(result, {shape.chunk_bytes, shape.credit_bytes}, kProtocolMax);
}

// --- Peers --------------------------------------------------------------------------------------

uint32_t SimPeers::IndexOf(uint32_t server) const {
  const auto& servers = context_.plan->servers;
  return static_cast<uint32_t>(std::lower_bound(servers.begin(), servers.end(), server) -
                               servers.begin());
}

void SimPeers::Call(uint32_t server, const char* method, const Payload& request,
                    const UnaryDone& done) {
  context_.network->Call(
      context_.network->ServerNode(0), IndexOf(server), method, request,
      [=, this](const absl::StatusOr<Payload>& answer) {
        const bool away =
            !answer.ok() &&
            (absl::IsUnavailable(answer.status()) || absl::IsDeadlineExceeded(answer.status())) &&
            ReasonOf(answer.status()) == Reason::kUnspecified;
        if (!away) return done(answer);
        process_->Later(kCallAgain, [=, this] { Call(server, method, request, done); });
      });
}

void SimPeers::Seal(uint32_t server, const server::SealCall& call,
                    std::function<void(absl::StatusOr<server::SealAnswer>)> done) {
  Call(server, method::kPeerSeal, Payload::FromString(server::ToProto(call).SerializeAsString()),
       [done = std::move(done)](const absl::StatusOr<Payload>& answer) {
         v1::PeerSealed sealed;
         const absl::Status status =
             answer.ok() ? ParseMessage(*answer, kMaxMessageBytes, &sealed) : answer.status();
         status.ok() ? done(server::FromProto(sealed)) : done(status);
       });
}

void SimPeers::AdoptEpoch(uint32_t server, const server::JobPlan& plan,
                          std::function<void(absl::Status)> done) {
  Call(server, method::kPeerAdoptEpoch,
       Payload::FromString(server::PeerJobToProto(plan).SerializeAsString()),
       [done = std::move(done)](const absl::StatusOr<Payload>& answer) { done(answer.status()); });
}

void SimPeers::CreateJob(uint32_t, const server::JobPlan&, std::function<void(absl::Status)>) {
  context_.world->Red("the home makes a job");
}
void SimPeers::ExtendJob(uint32_t, const server::JobPlan&, std::function<void(absl::Status)>) {
  context_.world->Red("the home lets a job grow");
}
void SimPeers::DropJob(uint32_t, uint64_t, std::function<void(absl::Status)>) {
  context_.world->Red("the home drops a job");
}
void SimPeers::WhichRest(uint32_t, const std::vector<uint64_t>&,
                         std::function<void(absl::StatusOr<std::vector<uint64_t>>)>) {}
void SimPeers::CompareJobs(uint32_t, const server::JobRoll&,
                           std::function<void(absl::StatusOr<server::RollAnswer>)>) {}
void SimPeers::Snapshot(uint32_t, const server::SnapshotCall&,
                        std::function<void(absl::StatusOr<server::SnapshotAnswer>)>) {}
void SimPeers::RestoreJob(uint32_t, const server::RestoreOrder&,
                          std::function<void(absl::StatusOr<std::string>)>) {}
void SimPeers::ExportShare(uint32_t, const server::ExportPart&, std::function<void(absl::Status)>) {
}
void SimPeers::ImportJob(uint32_t, const server::ImportOrder&, std::function<void(absl::Status)>) {}

// --- Home ---------------------------------------------------------------------------------------

SimHome::SimHome(const Context& context, SimServer* server, const server::JobPlan& plan)
    : context_(context),
      server_(server),
      process_(server->process()),
      self_(ConfigOf(context)),
      peers_(context, process_),
      strand_(process_->executor()),
      damaged_(&self_, /*store=*/nullptr, /*metrics=*/nullptr),
      jobs_({.self = &self_,
             .strand = &strand_,
             .clock = process_->clock(),
             .shares = this,
             .resting = &resting_,
             .damaged = &damaged_,
             .peers = &peers_}) {
  strand_.SetOwner(owner_);
  jobs_.Recover(plan, /*making=*/false);
}

void SimHome::Attach(server::AttachCall call,
                     std::function<void(absl::StatusOr<server::AttachResult>)> done) {
  if (context_.mutant == Mutant::kShrinkTooFar) call.min_world = 1;
  if (context_.world->tracing()) {
    context_.world->Trace(
        0, absl::StrCat("is asked for slot ", call.slot, " by incarnation ", call.incarnation));
  }
  jobs_.Attach(call, process_->InLife(std::move(done)));
}

void SimHome::HangUp(uint32_t slot, uint64_t call) {
  jobs_.AttachCancelled(context_.plan->name(), slot, call);
}

void SimHome::Rendezvous(const server::RendezvousCall& call,
                         std::function<void(absl::StatusOr<rendezvous::Reply>)> done) {
  jobs_.Rendezvous(call, process_->InLife(std::move(done)));
}

void SimHome::OnSeatFree(uint32_t slot, uint64_t incarnation, bool left) {
  strand_.Post([=, this] { jobs_.OnSeatFree(context_.plan->name(), {slot, incarnation, left}); });
}

void SimHome::OnEnded(const absl::Status& why) {
  strand_.Post([=, this] { jobs_.OnEnded(*context_.plan, {why, /*rests=*/true}); });
}

void SimHome::Seal(server::SealCall call,
                   std::function<void(absl::StatusOr<server::SealAnswer>)> done) {
  server_->OnSeal(call.epoch, std::move(done));
}

void SimHome::AdoptEpoch(server::JobPlan plan, std::function<void(absl::Status)> done) {
  server_->OnAdopt(plan, std::move(done));
}

std::shared_ptr<server::RoundEngine> SimHome::Find(uint64_t) const {
  return process_->shared_engine();
}

}  // namespace ballast::sim
