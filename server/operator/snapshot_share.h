// SnapshotShare: the part of this server in the snapshots that a home takes. A running job's state
// on disk is held, which takes no time, and then written to the part while rounds continue. A
// resting job's files are read (resting_job_files.h).
// Comes from: SnapshotTaking at the home, the Peer service elsewhere. Goes to: RoundEngine,
// RestingJobFiles, SnapshotStore. Thread safety: SnapshotShareApi from any thread; owned by the
// directory's strand.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "server/jobs/resting_job_files.h"
#include "server/operator/directory_parts.h"

namespace ballast::server {

class SnapshotShare final : public SnapshotShareApi {
 public:
  using Done = std::function<void(absl::StatusOr<SnapshotAnswer>)>;

  // `holds` outlives the object.
  SnapshotShare(const DirectoryParts& parts, RestingJobFiles* holds)
      : parts_(parts), holds_(holds) {}

  // On the strand, begins at once.
  void Snapshot(SnapshotCall call, Done done) override;

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

  const DirectoryParts parts_;
  RestingJobFiles* const holds_;
};

}  // namespace ballast::server
