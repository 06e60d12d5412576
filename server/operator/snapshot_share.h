// SnapshotShare: the part of this server in the snapshots that a home takes. A running job's state
// on disk is held, which takes no time, and then written to the part while rounds continue. A
// resting job's files are read (resting_holds.h).
// Comes from: SnapshotTaking at the home, PeerDoor elsewhere. Goes to: RoundEngine, RestingHolds,
// SnapshotStore. Thread safety: owned by the directory's strand.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "server/jobs/resting_holds.h"
#include "server/operator/desk_parts.h"

namespace ballast::server {

class SnapshotShare {
 public:
  struct Answer {
    uint64_t round = 0;    // the first whose beginning this server can tell, or that it captured
    CapturedRound before;  // of a capture: how the round before ended
  };
  using Done = std::function<void(absl::StatusOr<Answer>)>;

  // `holds` outlives the object.
  SnapshotShare(const DeskParts& parts, RestingHolds* holds) : parts_(parts), holds_(holds) {}

  // One step; see SnapshotCall. A release always succeeds. Errors: those of RoundEngine::HoldState
  // and CaptureState, of RestingHolds and of SnapshotStore; NOT_FOUND UNKNOWN_JOB.
  void Do(const SnapshotCall& call, const Done& done);

 private:
  void Hold(const SnapshotCall& call, const Done& done);
  void Capture(const SnapshotCall& call, const Done& done);
  void CaptureRunning(const SnapshotCall& call, const JobPlan& plan, const Done& done);
  void CaptureResting(const SnapshotCall& call, const Done& done);
  void Release(const SnapshotCall& call, const Done& done);
  bool RestsHere(uint64_t job) const;
  // Writes states of this server's extents to a part, and reports the progress.
  TakeExtent TakeInto(const std::shared_ptr<ImageFile>& part, const JobPlan& plan,
                      const Layout& layout, uint64_t round) const;

  const DeskParts parts_;
  RestingHolds* const holds_;
};

}  // namespace ballast::server
