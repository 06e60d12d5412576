// SimRoundLog: the RoundLog of JobStorage::MakeRoundLog with its two threads replaced by events, so
// that a process can end between any two of their operations. Appends, waits for room, flushes,
// slots and trims in the order in which the threads do them.
// Comes from: the simulated engine. Goes to: JobStorage. Thread safety: one thread.
#pragma once

#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <variant>
#include <vector>

#include "server/durability/job_storage.h"
#include "server/durability/round_log.h"
#include "tests/sim/disk.h"
#include "tests/sim/image_io.h"
#include "tests/sim/mutants.h"
#include "tests/sim/swarm.h"
#include "tests/sim/world.h"

namespace ballast::sim {

// The log's geometry as JobStorage::LogGeometry has it, for jobs of a few kilobytes: its least
// segment would take most of a run's time to write.
server::LogOptions SmallLogGeometry(const server::StorageOptions& options,
                                    uint64_t segment_bytes_min);

class SimRoundLog final : public server::RoundLog {
 public:
  struct Deps {
    World* world = nullptr;
    const Pace* pace = nullptr;
    SimDisk* disk = nullptr;
    NodeId node = kNobody;
    Mutant mutant = Mutant::kNone;
    bool tier = false;         // on NVMe: it reads and writes the slots
    bool power = true;         // the job's level: flushes reach the medium
    bool overlapping = false;  // flushes of the slots, with a tier
  };
  SimRoundLog(const Deps& deps, std::unique_ptr<server::JobStorage> storage,
              std::vector<server::ImageShape> shapes, uint64_t durable_round, uint64_t start_round)
      : deps_(deps),
        life_(deps.world->Life(deps.node)),
        storage_(std::move(storage)),
        shapes_(std::move(shapes)),
        durable_round_(durable_round),
        prepared_round_(durable_round),
        start_round_(start_round) {
    if (deps.tier) {
      image_io_ =
          std::make_unique<SimImageIo>(SimImageIo::Deps{deps.world, deps.pace, deps.disk, deps.node,
                                                        deps.mutant, deps.power, deps.overlapping},
                                       storage_->images(), [this] { Trim(CoveredRound()); });
    }
    Trim(CoveredRound());  // The log does not remember what it was told before.
  }

  void AppendExtent(server::ReducedExtent extent) override;
  void AppendDecision(server::DecisionRecord record) override;
  void Prepare(server::PreparedRecord record, Done done) override;
  void EndEpoch(uint64_t start_round, Done done) override;
  void BeginEpoch(uint32_t epoch, uint64_t start_round) override;
  uint64_t durable_round() const override { return durable_round_; }
  bool keeps_images() const override { return true; }
  bool short_of_room() const override { return short_of_room_; }
  void OnShortOfRoom(std::function<void()> callback) override { on_short_of_room_ = callback; }
  void WriteImage(server::ExtentImage image, Done done) override;
  server::ImageIo* image_io() override { return image_io_.get(); }

  // What snapshots hold (round_log_held.cc). Completions run on the log's thread.
  void Hold(std::function<void(absl::StatusOr<server::HeldState>)> done) override;
  void LetGo(uint32_t extent) override;
  void LetAllGo() override;
  // ReadRounds, which nobody can wait for here.
  void ReadRoundsThen(uint64_t until, std::function<void(absl::StatusOr<HeldRounds>)> then);
  absl::Status ReadHeld(uint32_t extent, uint64_t version, void* to) override;
  absl::Status ReadHeld(const server::LoggedExtent& extent, void* to) override;
  // Whether the log was too full for what was held last.
  bool wanted_room() const { return gave_way_ || read_when_full_; }

  // Whether everything that the newest PREPARE stands on has reached the medium.
  bool PrepareIsDurable() const;
  // Nothing is queued or under way.
  bool idle() const {
    return tasks_.empty() && images_.empty() && (image_io_ == nullptr || image_io_->idle());
  }

 private:
  struct PrepareTask {
    server::PreparedRecord record;
    Done done;
  };
  struct EndEpochTask {
    uint64_t start_round = 0;
    Done done;
  };
  struct BeginEpochTask {
    uint32_t epoch = 0;
    uint64_t start_round = 0;
  };
  // What the log's thread does behind the tasks before it, unless these wait for room.
  using Aside = std::function<void()>;
  using Task = std::variant<server::ReducedExtent, server::DecisionRecord, PrepareTask,
                            EndEpochTask, BeginEpochTask, Aside>;
  struct Image {
    server::ExtentImage image;
    Done done;
  };

  void Trace(const std::string& text) const;
  bool Alive() const { return deps_.world->Life(deps_.node) == life_; }
  void Later(Tick full, EventKind kind, void (SimRoundLog::*step)());
  void Enqueue(Task task);
  void Pump();
  void RunFront();
  absl::Status Append(const Task& task);
  absl::Status AppendPrepared(const PrepareTask& task);
  void SyncLog();
  void PopFront();
  void WriteFront();
  void SyncFront();
  uint64_t CoveredRound() const;
  void Trim(uint64_t covered);
  void TrimLog();
  void SpoilNewestImage(uint32_t extent);
  void DoAside(Aside aside);
  void DoWaitingAsides();
  void OnFull(const absl::Status& status);
  absl::StatusOr<server::HeldState> HoldNow();
  void DropHeld();
  absl::StatusOr<HeldRounds> RoundsNow(uint64_t until);
  absl::Status UnlessGone(const absl::Status& status) const;
  bool Reclaim();

  const Deps deps_;
  const uint64_t life_;
  const std::unique_ptr<server::JobStorage> storage_;
  const std::vector<server::ImageShape> shapes_;
  uint64_t durable_round_;
  uint64_t prepared_round_;
  uint64_t start_round_;
  uint64_t covered_round_ = 0;
  uint64_t prepare_operation_ = 0;  // of the disk, when the newest PREPARE had been written
  bool pumping_ = false;
  bool short_of_room_ = false;
  bool trying_again_ = false;  // after a trim
  bool syncing_ = false;       // the front task has been written and waits for its flush
  std::function<void()> on_short_of_room_;
  static constexpr uint64_t kNoRound = std::numeric_limits<uint64_t>::max();
  uint64_t held_round_ = kNoRound;        // rounds from here on are kept for who holds
  std::set<uint32_t> held_;               // extents
  bool holding_ = false;                  // from Hold to LetAllGo
  bool gave_way_ = false;                 // the last hold, to the log
  bool read_when_full_ = false;           // its rounds, while others waited for room
  std::deque<Task> tasks_;                // the log's thread
  std::deque<Image> images_;              // the slots' thread
  std::unique_ptr<SimImageIo> image_io_;  // for a tier on NVMe only
};

}  // namespace ballast::sim
