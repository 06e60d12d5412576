// JobHome: the attach and extend barriers of one job at its home server. Pure: calls in, answers
// out; no thread, clock or I/O.
// Comes from: JobDirectory on the home. Goes to: JobDirectory. Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/cluster/attach_types.h"

namespace ballast::server {

class JobHome {
 public:
  // The job as its first attach describes it.
  explicit JobHome(const AttachCall& first);
  // A job that was made before; nobody holds a seat.
  explicit JobHome(JobSpec spec) : spec_(std::move(spec)) {}

  // Takes a seat. Errors: FAILED_PRECONDITION SPEC_MISMATCH (first differing field), INIT_MISMATCH
  // (first differing tensor), ALREADY_EXISTS SLOT_TAKEN; INVALID_ARGUMENT BAD_SPEC for a slot
  // outside the world. A refused call changes nothing.
  absl::Status Attach(const AttachCall& call);
  // Frees the seat if `incarnation` holds it.
  void Cancel(uint32_t slot, uint64_t incarnation);
  bool AllAttached() const { return seats_.size() == spec_.world; }
  std::vector<uint32_t> MissingSlots() const;
  bool Empty() const { return seats_.empty(); }
  // Members, ascending slot.
  std::vector<Member> Members() const;
  const JobSpec& spec() const { return spec_; }
  uint32_t min_world() const { return min_world_; }

  // One slot's wish to grow the job; same errors, LAYOUT_MISMATCH when slots disagree.
  absl::Status Extend(const ExtendCall& call, uint32_t layout_version);
  bool AllExtended() const { return extending_.size() == seats_.size(); }
  // The extension is over; the job is that of `spec` now, grown or not.
  void EndExtension(const JobSpec& spec) {
    spec_ = spec;
    extending_.clear();
  }
  // Drops a pending extension (it failed).
  void DropExtension() { extending_.clear(); }
  // Seats as an epoch record has them: those who may grow the job. Wishes of others are dropped.
  void Reseat(const std::vector<Member>& members);

 private:
  struct Seat {
    uint64_t incarnation = 0;
    InitMode init = InitMode::kEqual;
    std::vector<uint32_t> tensor_crc32c;
  };
  absl::Status CheckInit(uint32_t slot, InitMode init, const std::vector<uint32_t>& crcs,
                         const std::vector<TensorSpec>& tensors,
                         const std::vector<uint32_t>* others, uint32_t other_slot) const;
  absl::Status Error(absl::StatusCode code, Reason reason, const std::string& message,
                     uint32_t slot) const;

  JobSpec spec_;
  uint32_t min_world_ = 1;
  std::map<uint32_t, Seat> seats_;
  std::map<uint32_t, ExtendCall> extending_;
};

}  // namespace ballast::server
