// RollCall: whether this server and its home have files of the same durable jobs. A server whose
// data directory came back empty cannot know its missing jobs: its home does, and tells it. A home
// that lost its own learns its jobs from the other servers. A missing job is a damaged job: made
// anew, it would train from the start without a word.
// Comes from: Home. Goes to: DamagedJobs, JobStore, the home through PeerLink.
// Thread safety: owned by the directory's strand.
#pragma once

#include <cstdint>
#include <set>

#include "absl/status/statusor.h"
#include "server/operator/desk_parts.h"

namespace ballast::server {

class RollCall {
 public:
  explicit RollCall(const DeskParts& parts) : parts_(parts) {}

  // Asks the home, until it answers; and from time to time as long as something is lacking. At the
  // home itself: nothing.
  void Begin();
  // At the home: the jobs that it and the server of `roll` should have and lack. Errors: the
  // metadata store's.
  absl::StatusOr<RollAnswer> Compare(const JobRoll& roll) const;
  // The job was removed here on purpose. Where a roll was under way, one of the two servers may
  // still have it.
  void OnForgotten(uint64_t job) { forgotten_.insert(job); }

 private:
  // Every durable job with a record here.
  absl::StatusOr<JobRoll> Own() const;
  void Ask(JobRoll roll);
  void OnAnswer(const absl::StatusOr<RollAnswer>& answer);
  // Damaged for lack of files, and not in `roll` any more, or found here after all.
  void ForgetThoseThatAre(const JobRoll& roll) const;

  const DeskParts parts_;
  std::set<uint64_t> forgotten_;
  bool asks_ = false;  // a call or the timer of the next is under way
};

}  // namespace ballast::server
