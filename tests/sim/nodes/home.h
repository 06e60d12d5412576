// SimHome: the job's home in one process of server 0: the shipped HomeJobs, and the parts it works
// on: this server's share of the job, calls to the peers, timers.
// Comes from: SimServer with index 0. Goes to: HomeJobs, its engine, the other servers.
// Thread safety: one thread.
#pragma once

#include <functional>
#include <memory>

#include "ballast/v1/control.pb.h"
#include "server/home/home_jobs.h"
#include "tests/sim/nodes/server.h"

namespace ballast::sim {

// The servers of the job, and the reply to an attach with this result.
std::vector<server::ServerAddress> AddressesOf(const server::JobPlan& plan);
v1::AttachReply ReplyOf(const Context& context, const server::AttachResult& result);

class SimHome final : private server::LocalShares {
 public:
  // `server` has started a process, and outlives it; `plan` comes from its manifest.
  SimHome(const Context& context, SimServer* server, const server::JobPlan& plan);

  // The peers can be reached.
  void Start() { jobs_.Start(); }
  void Attach(server::AttachCall call,
              std::function<void(absl::StatusOr<server::AttachResult>)> done);
  // The caller of the pending Attach with this AttachCall::call has hung up.
  void HangUp(uint32_t slot, uint64_t call);
  void Rendezvous(const server::RendezvousCall& call,
                  std::function<void(absl::StatusOr<rendezvous::Reply>)> done);
  void OnSeatFree(uint32_t slot, uint64_t incarnation, bool left);
  void OnEnded(const absl::Status& why);

 private:
  std::shared_ptr<server::RoundEngine> Find(uint64_t job) const override;
  bool Runs(uint64_t) const override { return !process_->ended(); }
  absl::Status Make(const server::JobPlan&) override { return absl::OkStatus(); }
  absl::Status Save(const server::JobPlan&) override { return absl::OkStatus(); }
  void Drop(uint64_t) override {}
  bool DropEnded(const std::string*) override { return false; }
  absl::Status Forget(uint64_t) override { return absl::OkStatus(); }
  void CreateJob(server::JobPlan, std::function<void(absl::Status)>) override {}
  void ExtendJob(server::JobPlan, std::function<void(absl::Status)>) override {}
  void DropJob(uint64_t, std::function<void(absl::Status)>) override {}
  void Seal(server::SealCall call,
            std::function<void(absl::StatusOr<server::SealAnswer>)> done) override;
  void AdoptEpoch(server::JobPlan plan, std::function<void(absl::Status)> done) override;

  const Context context_;
  SimServer* const server_;
  const SimProcess* const process_;
  const server::ThisServer self_;
  const std::shared_ptr<void> owner_ = std::make_shared<int>();
  server::OwnerStrand strand_;
  server::RestingJobs resting_;
  const server::DamagedJobs damaged_;
  server::HomeJobs jobs_;
};

}  // namespace ballast::sim
