// SimServer: one machine with a disk and, while it runs, one server process: sessions of trainers,
// votes to peers, the job's engine. Processes end and begin again; the disk stays.
// Comes from: the simulation (faults), the network. Goes to: SimEngine.
// Thread safety: one thread.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/engine.h"
#include "tests/sim/network.h"
#include "tests/sim/snapshot_shelf.h"

namespace ballast::sim {

// What all parts of one run share.
struct Context {
  World* world = nullptr;
  const Swarm* swarm = nullptr;
  Network* network = nullptr;
  Oracle* oracle = nullptr;
  SnapshotShelf* shelf = nullptr;
  const server::JobPlan* plan = nullptr;
  const Layout* layout = nullptr;
  Mutant mutant = Mutant::kNone;
};

class SimHome;
class SimSnapshots;

class SimServer : public StreamServer {
 public:
  SimServer(const Context& context, uint32_t index);
  ~SimServer() override;

  // Makes the job's files; with a disk that is too small at first, when the swarm says so.
  absl::Status CreateJob();
  // Starts the process; it serves a little later, if its disk lets it.
  void Start();
  // Ends the process. With `power` the machine loses what was not synced.
  void End(bool power);
  // The machine, whose process has ended already, loses what was not synced.
  void LosePower();
  bool running() const { return running_; }
  // Damage while the process is down; the next start knows nothing of it: so many bits turn around,
  // or a file is gone from its directory.
  void Rot(uint32_t bits);
  SimDisk* disk() { return &disk_; }
  // The directory of snapshots, as this machine sees it.
  SimDisk* shelf_disk() { return &shelf_disk_; }
  SimEngine* engine() { return engine_.get(); }
  // At the home, while it serves; else null.
  SimSnapshots* snapshots() { return started_ ? snapshots_.get() : nullptr; }
  // A typed error that damage explains: the job cannot go on here.
  const absl::Status& refusal() const { return refusal_; }
  bool damaged() const { return damaged_; }
  void set_damaged() { damaged_ = true; }
  // Its files were damaged, or its disk has told this process of an error.
  bool disk_failed() const { return damaged_ || disk_.errors() != disk_errors_; }
  // After every event: frees what ended processes have left.
  void Sweep() { graveyard_.clear(); }

  // A frame of a process that is not, or not any more, a member.
  void StrayFrame(const FrameHeader& frame, Payload payload);
  void StrayHello(const server::SlotHello& hello);

  bool Serves() const override { return running_ && engine_ != nullptr && started_; }
  void OnUp(const StreamPtr& stream, UpMessage message) override;
  void OnUpClosed(const StreamPtr& stream) override;
  absl::StatusOr<std::optional<Vote>> OnVoteCall(uint32_t epoch, uint64_t round,
                                                 const Vote& vote) override;
  void OnSeal(uint32_t epoch,
              std::function<void(absl::StatusOr<server::SealAnswer>)> done) override;
  void OnAdopt(const server::JobPlan& plan, std::function<void(absl::Status)> done) override;
  void OnAttach(const server::Member& who, bool resume,
                std::function<void(absl::StatusOr<server::EpochRecord>)> done) override;
  void OnSnapshot(const server::SnapshotCall& call,
                  const std::shared_ptr<server::CapturedRound>& before,
                  const std::function<void(absl::StatusOr<uint64_t>)>& done) override;

 private:
  class Session;
  struct VoteUnderWay {
    uint32_t epoch = 0;
    uint64_t round = 0;
    Vote vote;
  };

  NodeId node() const { return context_.network->ServerNode(index_); }
  void Boot();
  // What the process that starts works on.
  void NewProcess();
  // After every task of its executors.
  void CheckFlushed();
  void CheckFlushed(const server::ImageShape& shape, uint64_t version,
                    const std::array<uint64_t, 2>& places);
  absl::StatusOr<std::unique_ptr<server::JobStorage>> OpenStorage();
  absl::StatusOr<std::unique_ptr<server::JobStorage>> CreateStorage();
  // That of the process that starts.
  absl::StatusOr<std::unique_ptr<server::JobStorage>> TakeStorage();
  SimEngineDeps EngineDeps();
  void StartAgainLater();
  void OfferVote(uint32_t to_server, std::shared_ptr<const VoteUnderWay> vote);
  void CallVote(uint32_t to_server, std::shared_ptr<const VoteUnderWay> vote);
  // Snapshots (server_snapshots.cc).
  struct Part;
  void OnShelf(std::function<void()> task);
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
  std::unique_ptr<server::JobStorage> fresh_;  // made by CreateJob, for the first process
  bool running_ = false;
  bool started_ = false;  // this process has come as far as serving
  bool damaged_ = false;
  bool power_off_ = false;
  absl::Status refusal_;
  std::shared_ptr<SimThreads> threads_;   // of the present process
  server::ImageFile* images_ = nullptr;   // likewise, while it serves
  std::map<uint32_t, uint64_t> checked_;  // flushed version by extent
  std::unique_ptr<SimEngine> engine_;
  std::unique_ptr<SimHome> home_;  // at the home
  std::unique_ptr<SimSnapshots> snapshots_;
  uint64_t disk_errors_ = 0;  // when this process began
  std::map<const Stream*, std::shared_ptr<Session>> sessions_;
  std::map<uint32_t, std::shared_ptr<const VoteUnderWay>> newest_votes_;  // by server
  std::vector<std::shared_ptr<void>> graveyard_;
};

}  // namespace ballast::sim
