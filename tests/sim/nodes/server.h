// SimServer: one machine with a disk and, while it runs, one server process. Processes end and
// begin again; the disk stays. Comes from: the simulation (faults), the network. Goes to:
// SimProcess, SimPort. Thread safety: one thread.
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

class SimPort;
class SimSnapshots;

class SimServer : public StreamServer {
 public:
  SimServer(const Context& context, uint32_t index);
  ~SimServer() override;

  // The disk is too small for the job at first, when the swarm says so.
  void FillDisk();
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
  // Null while no process has come as far as an engine of the job.
  SimProcess* process() {
    return started_ && process_->engine() != nullptr ? process_.get() : nullptr;
  }
  // The job has ended here, in this process or in one before.
  bool job_ended() {
    if (!started_) return false;
    return process_->engine() != nullptr ? process_->ended() : process_->WhyNot().ok();
  }
  SimSnapshots* snapshots() { return started_ ? snapshots_.get() : nullptr; }
  // A typed error that damage explains: the job cannot go on here.
  const absl::Status& refusal() const { return refusal_; }
  bool damaged() const { return damaged_; }
  void set_damaged() {
    damaged_ = true;
    context_.oracle->OnDamage();
  }
  // Its files were damaged, or a disk has told this process of an error.
  bool disk_failed() const { return damaged_ || errors() != errors_before_; }
  // After every event: frees what ended processes have left.
  void Sweep() { graveyard_.clear(); }

  // A process that is not, or not any more, a member asks for a stream.
  void StrayHello(const server::SlotHello& hello);

  bool Serves() const override { return running_ && started_; }
  void OnOpen(const StreamPtr& stream) override;
  void OnCall(const char* method, const Payload& request, UnaryDone answer) override;

 private:
  NodeId node() const { return context_.network->ServerNode(index_); }
  // Of both disks, told to any process so far.
  uint64_t errors() const { return disk_.errors() + shelf_disk_.errors(); }
  void Boot();
  void Serve();
  // `why` keeps the process from serving. `before`: errors() when it began.
  void CannotServe(const absl::Status& why, uint64_t before);
  // The state of the starting process.
  void NewProcess();
  void OnStorageFailed(const absl::Status& status, uint64_t errors);
  void StartAgainLater();
  void OnSaved(const server::JobPlan& plan);
  void OnAdopted(const server::JobPlan& plan, const server::EpochRecord& before);
  // After every task of a disk's thread.
  void CheckFlushed();

  const Context context_;
  const uint32_t index_;
  const uint32_t id_;
  SimDisk disk_;
  SimDisk shelf_disk_;
  const server::StorageOptions options_;
  FlushCheck flushed_;
  bool running_ = false;
  bool started_ = false;  // this process has come as far as serving
  bool damaged_ = false;
  absl::Status refusal_;
  std::shared_ptr<SimProcess> process_;      // the present one
  std::unique_ptr<SimSnapshots> snapshots_;  // at the home
  uint64_t errors_before_ = 0;               // when this process began
  std::unique_ptr<SimPort> port_;
  std::vector<std::shared_ptr<void>> graveyard_;  // until the event is over in which they ended
};

}  // namespace ballast::sim
