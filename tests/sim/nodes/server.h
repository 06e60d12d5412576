// SimServer: one machine with a disk and, while it runs, one server process: streams of trainers,
// the job's engine. Processes end and begin again; the disk stays.
// Comes from: the simulation (faults), the network. Goes to: SimProcess.
// Thread safety: one thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/durability/job_storage.h"
#include "tests/sim/net/network.h"
#include "tests/sim/nodes/context.h"
#include "tests/sim/nodes/flush_check.h"
#include "tests/sim/nodes/process.h"
#include "tests/sim/world/disk.h"

namespace ballast::sim {

// As timing.lease: silence after which a seat is taken away.
inline constexpr Tick kLease = 10 * kSecond;

class SimHome;
class SimPort;
class SimSnapshots;

class SimServer : public StreamServer {
 public:
  SimServer(const Context& context, uint32_t index);
  ~SimServer() override;

  // Makes the job's files; with a disk that is too small at first, when the swarm says so.
  absl::Status CreateJob();
  // Starts the process; it serves a little later, if its disk lets it.
  void Start();
  // Ends the process. With `power` the machine loses unsynced data.
  void End(bool power);
  // The machine, whose process has ended already, loses unsynced data.
  void LosePower();
  bool running() const { return running_; }
  // Damage while the process is down; the next start knows nothing of it: so many bits turn around,
  // or a file is gone from its directory.
  void Rot(uint32_t bits);
  SimDisk* disk() { return &disk_; }
  // The directory of snapshots, as this machine sees it.
  SimDisk* shelf_disk() { return &shelf_disk_; }
  // Null while no process has come as far as its engine.
  SimProcess* process() { return started_ ? process_.get() : nullptr; }
  // At the home, while it serves; else null.
  SimHome* home() { return started_ ? home_.get() : nullptr; }
  SimSnapshots* snapshots() { return started_ ? snapshots_.get() : nullptr; }
  // A typed error that damage explains: the job cannot go on here.
  const absl::Status& refusal() const { return refusal_; }
  bool damaged() const { return damaged_; }
  void set_damaged() { damaged_ = true; }
  // Its files were damaged, or its disk has told this process of an error.
  bool disk_failed() const { return damaged_ || disk_.errors() != disk_errors_; }
  // After every event: frees what ended processes have left.
  void Sweep() { graveyard_.clear(); }

  // A process that is not, or not any more, a member asks for a stream.
  void StrayHello(const server::SlotHello& hello);

  bool Serves() const override { return running_ && started_; }
  void OnOpen(const StreamPtr& stream) override;
  void OnCall(const char* method, const Payload& request, UnaryDone answer) override;
  // This server's part of a change of the epoch.
  void OnSeal(uint32_t epoch, std::function<void(absl::StatusOr<server::SealAnswer>)> done);
  void OnAdopt(const server::JobPlan& plan, std::function<void(absl::Status)> done);
  void OnSnapshot(const server::SnapshotCall& call,
                  const std::shared_ptr<server::CapturedRound>& before,
                  const std::function<void(absl::StatusOr<uint64_t>)>& done) override;

 private:
  NodeId node() const { return context_.network->ServerNode(index_); }
  void Boot();
  // Its engine stands: the process serves. `restarted`: the job ran before.
  void Serve(const server::JobPlan& plan, bool restarted);
  // `why` keeps the process from serving. `errors`: of the disk, when it began.
  void CannotServe(const absl::Status& why, uint64_t errors);
  absl::Status OpenProcess(const absl::StatusOr<server::JobPlan>& plan, SimProcess* process);
  absl::StatusOr<server::JobPlan> ReadManifest();
  // The state of the starting process.
  void NewProcess();
  absl::StatusOr<std::unique_ptr<server::JobStorage>> OpenStorage();
  absl::StatusOr<std::unique_ptr<server::JobStorage>> CreateStorage();
  // That of the process that starts.
  absl::StatusOr<std::unique_ptr<server::JobStorage>> TakeStorage();
  void OnStorageFailed(const absl::Status& status, uint64_t errors);
  void StartAgainLater();
  absl::Status SaveRecord(const server::JobPlan& plan);
  void OnRecordSaved(const server::JobPlan& plan);
  // Snapshots (server_snapshots.cc).
  struct Part;
  void OnShelf(std::function<void()> task);
  void HoldState(const std::function<void(absl::StatusOr<uint64_t>)>& done);
  void BeginPart(const std::shared_ptr<Part>& part);
  absl::Status TakeInto(Part* part, uint32_t extent, const void* image);
  void EndPart(const std::shared_ptr<Part>& part,
               const absl::StatusOr<server::CapturedRound>& before);
  void CheckSnapshotError(const absl::Status& status, bool may_give_way) const;

  const Context context_;
  const uint32_t index_;
  const uint32_t id_;
  SimDisk disk_;
  SimDisk shelf_disk_;
  server::StorageOptions options_;
  server::LogOptions log_options_;
  FlushCheck flushed_;
  std::unique_ptr<server::JobStorage> fresh_;  // made by CreateJob, for the first process
  bool running_ = false;
  bool started_ = false;  // this process has come as far as serving
  bool damaged_ = false;
  absl::Status refusal_;
  std::shared_ptr<SimProcess> process_;  // the present one
  std::unique_ptr<SimHome> home_;        // at the home
  std::unique_ptr<SimSnapshots> snapshots_;
  uint64_t disk_errors_ = 0;  // when this process began
  std::unique_ptr<SimPort> port_;
  bool holds_ = false;                            // for a snapshot, or captures it
  std::vector<std::shared_ptr<void>> graveyard_;  // until the event is over in which they ended
};

}  // namespace ballast::sim
