// AttachBarrier: which slots of a new job have a process, until all of them have. Pure: calls in,
// answers out; no thread, clock or I/O.
// Comes from: HomeJob. Goes to: HomeJob. Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/jobs/trainer_calls.h"

namespace ballast::server {

// A slot's word on the weights that its tensors begin with.
struct InitDigests {
  uint32_t slot = 0;
  InitMode init = InitMode::kEqual;
  const std::vector<uint32_t>& crc32c;  // one per tensor; empty for a broadcast
};

// Whether the digests of `one` are complete and, if `other` is not null, equal those of `other`.
// Errors: INVALID_ARGUMENT BAD_SPEC; FAILED_PRECONDITION INIT_MISMATCH (first differing tensor).
absl::Status CheckInitDigests(const std::string& job, const std::vector<TensorSpec>& tensors,
                              const InitDigests& one, const InitDigests* other);

class AttachBarrier {
 public:
  // The job as its first attach describes it.
  explicit AttachBarrier(const AttachCall& first)
      : spec_(first.spec), min_world_(first.min_world) {}

  // Takes a candidate in. Errors: FAILED_PRECONDITION SPEC_MISMATCH (first differing field),
  // INIT_MISMATCH (first differing tensor), ALREADY_EXISTS SLOT_TAKEN; INVALID_ARGUMENT BAD_SPEC
  // for a slot outside the world. A refused call changes nothing.
  absl::Status Attach(const AttachCall& call);
  // Lets the slot's candidate go if it is `incarnation`.
  void Cancel(uint32_t slot, uint64_t incarnation);
  bool AllAttached() const { return candidates_.size() == spec_.world; }
  std::vector<uint32_t> MissingSlots() const;
  bool Empty() const { return candidates_.empty(); }
  // Members, ascending slot.
  std::vector<Member> Members() const;
  const JobSpec& spec() const { return spec_; }
  uint32_t min_world() const { return min_world_; }

 private:
  struct Candidate {
    uint64_t incarnation = 0;
    InitMode init = InitMode::kEqual;
    std::vector<uint32_t> tensor_crc32c;
    std::string identity;
  };
  absl::Status CheckSpec(const AttachCall& call) const;
  absl::Status Error(absl::StatusCode code, Reason reason, const std::string& message,
                     uint32_t slot) const;

  JobSpec spec_;
  uint32_t min_world_ = 1;
  std::map<uint32_t, Candidate> candidates_;
};

}  // namespace ballast::server
