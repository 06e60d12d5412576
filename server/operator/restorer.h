// Restorer: a job that begins in a snapshot. Every server makes its share of the new job's files
// out of the snapshot's parts, whichever servers wrote them, or lets its images begin in the parts
// (a fork).
// Comes from: the Admin service at the home, the Peer service elsewhere. Goes to: JobMaker,
// ShareMaker. Thread safety: RestoreApi from any thread; owned by the directory's strand.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/operator/directory_parts.h"
#include "server/operator/job_maker.h"
#include "server/operator/share_maker.h"

namespace ballast::server {

class Restorer final : public RestoreApi {
 public:
  using Done = std::function<void(absl::StatusOr<RestoredJob>)>;
  using ShareDone = std::function<void(absl::StatusOr<std::string>)>;

  // Both outlive the object.
  Restorer(const DirectoryParts& parts, JobMaker* maker, ShareMaker* shares)
      : parts_(parts), maker_(maker), shares_(shares) {}

  void RestoreSnapshot(RestoreCall call, Done done) override;
  // On the strand, begins at once.
  void RestoreJob(RestoreOrder order, ShareDone done) override;

 private:
  absl::StatusOr<RestoreOrder> OrderOf(const RestoreCall& call) const;
  void MakeAtAll(const RestoreOrder& order, const Done& done);
  absl::StatusOr<std::string> MakeFiles(const RestoreOrder& order, const CancelToken& cancel);
  // Copies the states from the parts of `from` to `images`.
  absl::Status CopyStates(const SnapshotManifest& manifest, const JobPlan& from,
                          const JobPlan& plan, ShareMaker::Filling filling);

  const DirectoryParts parts_;
  JobMaker* const maker_;
  ShareMaker* const shares_;
};

}  // namespace ballast::server
