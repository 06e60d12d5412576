// RoundLog: durability of rounds, as one interface for each of its users. RoundRecords: the driver
// of the rounds writes every reduced extent, the PREPARE record and the decision before it sends
// them. ImageStore: the checkpointer and the tier keep the rolling checkpoint that lets the log
// forget. StateHolds: a snapshot reads what both hold for it. What "survives" means is the job's
// level. Comes from: server/engine. Goes to: nothing at level `none`; JobStorage at the other
// levels. Thread safety: thread-compatible; used on the job's strand, except for the calls that
// read or release held state. Completions may run on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/durability/images/image_io.h"
#include "server/durability/log/gradient_log.h"
#include "server/durability/records/records.h"

namespace ballast::server {

// The state that StateHolds::Hold keeps: of each extent one version, in an image. With the rounds
// since the oldest of them, which are kept too, every extent can be brought to any later version.
struct HeldState {
  std::map<uint32_t, uint64_t> versions;  // by extent
};

// The log of rounds.
class RoundRecords {
 public:
  using Done = std::function<void(absl::Status)>;

  virtual ~RoundRecords() = default;
  // Starts writing `extent`; later extents may still be on the wire.
  virtual void AppendExtent(ReducedExtent extent) = 0;
  // The decision of a round; durable with the next Prepare at the latest.
  virtual void AppendDecision(DecisionRecord record) = 0;
  // Writes the PREPARE record and flushes everything appended so far; `done` runs once it survives.
  // A failed status is fatal for the log: the round must not be voted for.
  virtual void Prepare(PreparedRecord record, Done done) = 0;
  // Writes LAMB's ratios of a prepared round and flushes as Prepare does. A failed status is fatal
  // for the log: the step must not begin.
  virtual void AppendRatios(RatiosRecord record, Done done) = 0;
  // A change of epoch, in two calls. First: the rounds below `start_round` are over; `done` runs
  // once everything appended so far survives, and the log ends with the records of them that a
  // restart needs.
  virtual void EndEpoch(uint64_t start_round, Done done) = 0;
  // Then, once the new epoch survives: records of older epochs for rounds from start_round on will
  // never be asked for.
  virtual void BeginEpoch(uint32_t epoch, uint64_t start_round) = 0;
  // Newest round whose contributions survive.
  virtual uint64_t durable_round() const = 0;
  // Whether rounds wait for room that only newer images of the oldest extents can make.
  virtual bool short_of_room() const = 0;
  // `callback` runs, on any thread, whenever that begins. Set once, before the first append.
  virtual void OnShortOfRoom(std::function<void()> callback) = 0;
};

// The rolling checkpoint.
class ImageStore {
 public:
  virtual ~ImageStore() = default;
  // Whether WriteImage does anything, so whether to make images.
  virtual bool keeps_images() const { return true; }
  // Writes a checkpoint of one extent; `done` runs once it survives. A failed status is fatal.
  virtual void WriteImage(ExtentImage image, std::function<void(absl::Status)> done) = 0;
  // The images themselves, for a tier that lives in them; null where there is none. The store owns
  // it.
  virtual ImageIo* image_io() { return nullptr; }
};

// The images and the rounds since, kept unchanged for a snapshot. Rounds never wait for it: when
// the log needs the room, all of it is let go, and the calls below return ABORTED. These defaults
// hold nothing (level `none`): UNIMPLEMENTED.
class StateHolds {
 public:
  using HeldRounds = std::map<uint64_t, LoggedRound>;

  virtual ~StateHolds() = default;
  // Begins to hold; `done` runs on the log's executor. One at a time; it ends with LetAllGo.
  // Errors: ALREADY_EXISTS: something is held; NOT_FOUND: an extent has no version yet.
  virtual void Hold(std::function<void(absl::StatusOr<HeldState>)> done) { done(NothingHeld()); }
  // Lets one extent go, or all the rest. Any thread.
  virtual void LetGo(uint32_t) {}
  virtual void LetAllGo() {}
  // The log's records of the rounds from the oldest held version, or from `until` - 1, to those
  // below `until`, which have decisions. `done` runs on the log's executor. Errors: ABORTED, also
  // when some of them wait for room in the log.
  virtual void ReadRounds(uint64_t, std::function<void(absl::StatusOr<HeldRounds>)> done) {
    done(NothingHeld());
  }
  // Reads the held version of an extent, `to` as in ImageFile::Read; and a gradient of one of
  // ReadRounds', `to` as in GradientLog::ReadExtent. Block on the disk; any thread. Errors:
  // ABORTED; DATA_LOSS as there.
  virtual absl::Status ReadHeld(uint32_t, uint64_t, void*) { return NothingHeld(); }
  virtual absl::Status ReadHeld(const LoggedExtent&, void*) { return NothingHeld(); }

 private:
  static absl::Status NothingHeld() {
    return absl::UnimplementedError("a job of durability none has nothing that could be held");
  }
};

// All of a job's.
class RoundLog : public RoundRecords, public ImageStore, public StateHolds {
 public:
  using Done = RoundRecords::Done;
};

// Level `none`: nothing survives the process, and every Prepare completes at once.
class NullRoundLog : public RoundLog {
 public:
  void AppendExtent(ReducedExtent) override {}
  void AppendDecision(DecisionRecord) override {}
  void Prepare(PreparedRecord record, Done done) override {
    durable_round_ = record.round;
    done(absl::OkStatus());
  }
  void AppendRatios(RatiosRecord, Done done) override { done(absl::OkStatus()); }
  void EndEpoch(uint64_t, Done done) override { done(absl::OkStatus()); }
  void BeginEpoch(uint32_t, uint64_t) override {}
  uint64_t durable_round() const override { return durable_round_; }
  bool keeps_images() const override { return false; }
  bool short_of_room() const override { return false; }
  void OnShortOfRoom(std::function<void()>) override {}
  void WriteImage(ExtentImage, Done done) override { done(absl::OkStatus()); }

 private:
  uint64_t durable_round_ = 0;
};

}  // namespace ballast::server
