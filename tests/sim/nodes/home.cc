#include "tests/sim/nodes/home.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/convert/job_convert.h"
#include "server/convert/control_convert.h"

namespace ballast::sim {
namespace {

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

// --- Home ---------------------------------------------------------------------------------------

SimHome::SimHome(const Context& context, SimServer* server, const server::JobPlan& plan)
    : context_(context),
      server_(server),
      process_(server->process()),
      self_(ConfigOf(context)),
      strand_(process_->executor()),
      damaged_(&self_, /*store=*/nullptr, /*metrics=*/nullptr),
      jobs_({.self = &self_,
             .strand = &strand_,
             .clock = process_->clock(),
             .shares = this,
             .resting = &resting_,
             .damaged = &damaged_,
             .peers = process_->peers()}) {
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
