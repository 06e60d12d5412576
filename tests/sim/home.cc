#include "tests/sim/home.h"

#include <algorithm>
#include <utility>

#include "proto/convert/job_convert.h"
#include "server/convert/convert.h"

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

void SimPeers::Ask(uint32_t server, const Network::Question& question) {
  context_.network->Ask(context_.network->ServerNode(0), IndexOf(server), question,
                        [=, this](const absl::Status&) {
                          process_->Later(kCallAgain, [=, this] { Ask(server, question); });
                        });
}

void SimPeers::Seal(uint32_t server, const server::SealCall& call,
                    std::function<void(absl::StatusOr<server::SealAnswer>)> done) {
  Ask(server, [epoch = call.epoch, done = std::move(done)](StreamServer* to, const auto& answer) {
    to->OnSeal(epoch, [done, answer](const absl::StatusOr<server::SealAnswer>& sealed) {
      answer([done, sealed] { done(sealed); });
    });
  });
}

void SimPeers::AdoptEpoch(uint32_t server, const server::JobPlan& plan,
                          std::function<void(absl::Status)> done) {
  Ask(server, [plan, done = std::move(done)](StreamServer* to, const auto& answer) {
    to->OnAdopt(plan, [done, answer](const absl::Status& adopted) {
      answer([done, adopted] { done(adopted); });
    });
  });
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
                        std::function<void(absl::StatusOr<uint64_t>)>) {}
void SimPeers::RestoreJob(uint32_t, const server::RestoreOrder&,
                          std::function<void(absl::StatusOr<std::string>)>) {}
void SimPeers::Export(uint32_t, const server::ExportPart&, std::function<void(absl::Status)>) {}
void SimPeers::ImportJob(uint32_t, const server::ImportOrder&, std::function<void(absl::Status)>) {}

// --- Home ---------------------------------------------------------------------------------------

SimHome::SimHome(const Context& context, SimServer* server, const server::JobPlan& plan)
    : context_(context),
      server_(server),
      process_(server->process()),
      config_(ConfigOf(context)),
      peers_(context, process_),
      jobs_(config_, process_->clock(), &peers_, this, /*under_way=*/nullptr) {
  jobs_.Recover(plan, /*making=*/false);
}

void SimHome::Attach(const v1::AttachRequest& request, const Told& told) {
  absl::StatusOr<server::AttachCall> call = server::AttachFromProto(request);
  if (!call.ok()) return context_.world->Red(call.status().ToString());
  call->call = ++calls_;
  if (context_.mutant == Mutant::kShrinkTooFar) call->min_world = 1;
  jobs_.Attach(*call,
               process_->InLife([this, told](const absl::StatusOr<server::AttachResult>& seat) {
                 if (!seat.ok()) return told(seat.status());
                 told(Payload::FromString(ReplyOf(context_, *seat).SerializeAsString()));
               }));
}

void SimHome::Rendezvous(const v1::RendezvousRequest& request, const Told& told) {
  const absl::StatusOr<server::RendezvousCall> call = server::RendezvousFromProto(request);
  if (!call.ok()) return context_.world->Red(call.status().ToString());
  jobs_.rendezvous()->Ask(*call,
                          process_->InLife([told](const absl::StatusOr<rendezvous::Reply>& reply) {
                            if (!reply.ok()) return told(reply.status());
                            const v1::RendezvousReply out = server::RendezvousToProto(*reply);
                            told(Payload::FromString(out.SerializeAsString()));
                          }));
}

void SimHome::OnSeatFree(uint32_t slot, uint64_t incarnation, bool left) {
  PostHere([=, this] { jobs_.OnSeatFree(context_.plan->name(), {slot, incarnation, left}); });
}

void SimHome::OnEnded(const absl::Status& why) {
  PostHere([=, this] { jobs_.OnEnded(*context_.plan, {why, /*rests=*/true}); });
}

void SimHome::PostHere(std::function<void()> task) { process_->Later(0, std::move(task)); }

void SimHome::PostLater(std::chrono::nanoseconds delay, std::function<void()> task) {
  process_->Later(static_cast<Tick>(std::max<int64_t>(delay.count(), 0)), std::move(task));
}

void SimHome::SealHere(const server::SealCall& call,
                       std::function<void(absl::StatusOr<server::SealAnswer>)> done) {
  server_->OnSeal(call.epoch, std::move(done));
}

void SimHome::AdoptHere(const server::JobPlan& plan, std::function<void(absl::Status)> done) {
  server_->OnAdopt(plan, std::move(done));
}

std::shared_ptr<server::RoundEngine> SimHome::EngineOf(uint64_t) {
  return process_->shared_engine();
}

}  // namespace ballast::sim
