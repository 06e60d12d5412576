// SimPeers: the calls of one simulated server process to the others, over the simulated network. A
// call to which a server must say something is repeated until it does.
// Comes from: the process' job directory. Goes to: the services of the other servers.
// Thread safety: one thread.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "server/jobs/peer_calls.h"
#include "tests/sim/nodes/process.h"

namespace ballast::sim {

class SimPeers final : public server::PeerLink {
 public:
  // `process` outlives this.
  SimPeers(const Context& context, const SimProcess* process)
      : context_(context), process_(process) {}

  void CreateJob(uint32_t server, const server::JobPlan& plan,
                 std::function<void(absl::Status)> done) override;
  void ExtendJob(uint32_t server, const server::JobPlan& plan,
                 std::function<void(absl::Status)> done) override;
  void DropJob(uint32_t server, uint64_t job, std::function<void(absl::Status)> done) override;
  void WhichRest(uint32_t home, const std::vector<uint64_t>& jobs,
                 std::function<void(absl::StatusOr<std::vector<uint64_t>>)> done) override;
  void CompareJobs(uint32_t home, const server::JobRoll& roll,
                   std::function<void(absl::StatusOr<server::RollAnswer>)> done) override;
  void Seal(uint32_t server, const server::SealCall& call,
            std::function<void(absl::StatusOr<server::SealAnswer>)> done) override;
  void AdoptEpoch(uint32_t server, const server::JobPlan& plan,
                  std::function<void(absl::Status)> done) override;
  void Snapshot(uint32_t server, const server::SnapshotCall& call,
                std::function<void(absl::StatusOr<server::SnapshotAnswer>)> done) override;
  void RestoreJob(uint32_t server, const server::RestoreOrder& order,
                  std::function<void(absl::StatusOr<std::string>)> done) override;
  void ExportShare(uint32_t server, const server::ExportPart& part,
                   std::function<void(absl::Status)> done) override;
  void ImportJob(uint32_t server, const server::ImportOrder& order,
                 std::function<void(absl::Status)> done) override;

 private:
  struct Options {
    const char* method = nullptr;
    bool until_answered = false;
    Tick timeout = kCallTimeout;
  };
  struct UnderWay {
    uint32_t server = 0;
    Options options;
    Payload request;
    UnaryDone done;
  };
  // `done` gets the reply, or nothing of it.
  template <typename Reply, typename T>
  static UnaryDone Parsed(std::function<void(absl::StatusOr<T>)> done);
  static UnaryDone StatusOnly(std::function<void(absl::Status)> done);

  template <typename Message>
  void Call(uint32_t server, const Options& options, const Message& message, UnaryDone done);
  void Try(uint64_t number);
  void OnAnswer(uint64_t number, const absl::StatusOr<Payload>& answer);

  const Context context_;
  const SimProcess* const process_;
  uint64_t newest_ = 0;
  // Kept here, not by the network: a wait for an answer ends with the process.
  std::map<uint64_t, UnderWay> calls_;
};

}  // namespace ballast::sim
