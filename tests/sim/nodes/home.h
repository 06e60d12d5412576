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

// Calls to the peers. One that gets no answer is repeated; a job's making and end are not
// simulated.
class SimPeers final : public server::PeerLink {
 public:
  SimPeers(const Context& context, const SimProcess* process)
      : context_(context), process_(process) {}

  void Seal(uint32_t server, const server::SealCall& call,
            std::function<void(absl::StatusOr<server::SealAnswer>)> done) override;
  void AdoptEpoch(uint32_t server, const server::JobPlan& plan,
                  std::function<void(absl::Status)> done) override;

  void CreateJob(uint32_t, const server::JobPlan&, std::function<void(absl::Status)>) override;
  void ExtendJob(uint32_t, const server::JobPlan&, std::function<void(absl::Status)>) override;
  void DropJob(uint32_t, uint64_t, std::function<void(absl::Status)>) override;
  void WhichRest(uint32_t, const std::vector<uint64_t>&,
                 std::function<void(absl::StatusOr<std::vector<uint64_t>>)>) override;
  void CompareJobs(uint32_t, const server::JobRoll&,
                   std::function<void(absl::StatusOr<server::RollAnswer>)>) override;
  void Snapshot(uint32_t, const server::SnapshotCall&,
                std::function<void(absl::StatusOr<uint64_t>)>) override;
  void RestoreJob(uint32_t, const server::RestoreOrder&,
                  std::function<void(absl::StatusOr<std::string>)>) override;
  void Export(uint32_t, const server::ExportPart&, std::function<void(absl::Status)>) override;
  void ImportJob(uint32_t, const server::ImportOrder&, std::function<void(absl::Status)>) override;

 private:
  uint32_t IndexOf(uint32_t server) const;
  // Asks until there is an answer.
  void Call(uint32_t server, const char* method, const Payload& request, const UnaryDone& done);

  const Context context_;
  const SimProcess* const process_;
};

class SimHome final : private server::HomeHost {
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
  void PostHere(std::function<void()> task) override;
  void PostLater(std::chrono::nanoseconds delay, std::function<void()> task) override;
  std::shared_ptr<void> Keep() override { return nullptr; }  // Its tasks end with the process.
  absl::Status MakeHere(const server::JobPlan&) override { return absl::OkStatus(); }
  void SealHere(const server::SealCall& call,
                std::function<void(absl::StatusOr<server::SealAnswer>)> done) override;
  void AdoptHere(const server::JobPlan& plan, std::function<void(absl::Status)> done) override;
  void GrowHere(const server::JobPlan&, std::function<void(absl::Status)>) override {}
  absl::Status SaveHere(const server::JobPlan&) override { return absl::OkStatus(); }
  std::shared_ptr<server::RoundEngine> EngineOf(uint64_t job) override;
  void ReleaseHere(uint64_t) override {}
  void ReleaseEnded() override {}
  void ForgetHere(uint64_t) override {}
  const server::JobPlan* Resting(const QualifiedName&) const override { return nullptr; }
  absl::Status HeldAtRest(const server::JobPlan&) const override { return absl::OkStatus(); }
  void RestsNoMore(const QualifiedName&) override {}

  const Context context_;
  SimServer* const server_;
  const SimProcess* const process_;
  const server::DirectoryConfig config_;
  SimPeers peers_;
  server::HomeJobs jobs_;
};

}  // namespace ballast::sim
