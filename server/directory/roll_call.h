// RollCall: whether this server and its home have files of the same durable jobs. A server whose
// data directory came back empty cannot know its missing jobs: its home does, and tells it. A home
// that lost its own learns its jobs from the other servers. A missing job is a damaged job: made
// anew, it would train from the start without a word.
// Comes from: Directory, the Peer service at the home. Goes to: DamagedJobs, JobStore, the home
// through PeerLink.
// Thread safety: HomeRecordsApi from any thread; owned by the directory's strand.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "server/operator/directory_parts.h"

namespace ballast::server {

class RollCall final : public HomeRecordsApi {
 public:
  explicit RollCall(const DirectoryParts& parts) : parts_(parts) {}

  // Asks the home, until it answers; and from time to time as long as something is lacking. At the
  // home itself: nothing.
  void Begin();
  void WhichRest(std::vector<uint64_t> jobs,
                 std::function<void(absl::StatusOr<std::vector<uint64_t>>)> done) override;
  // Errors: the metadata store's.
  void CompareJobs(JobRoll roll, std::function<void(absl::StatusOr<RollAnswer>)> done) override;
  // The job was removed here on purpose. Where a roll was under way, one of the two servers may
  // still have it.
  void OnForgotten(uint64_t job) { forgotten_.insert(job); }

 private:
  absl::StatusOr<RollAnswer> Compare(const JobRoll& roll) const;
  // Every durable job with a record here.
  absl::StatusOr<JobRoll> Own() const;
  void Ask(JobRoll roll);
  void OnAnswer(const absl::StatusOr<RollAnswer>& answer);
  // Damaged for lack of files, and not in `roll` any more, or found here after all.
  void ForgetThoseThatAre(const JobRoll& roll) const;

  const DirectoryParts parts_;
  std::set<uint64_t> forgotten_;
  bool asks_ = false;  // a call or the timer of the next is under way
};

}  // namespace ballast::server
