#include "server/home/attach_barrier.h"

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"

namespace ballast::server {
namespace {

absl::Status ErrorOf(const std::string& job, absl::StatusCode code, Reason reason,
                     const std::string& message, uint32_t slot) {
  return ReasonedError(code, reason, absl::StrCat("job \"", job, "\": ", message),
                       {.job = job, .slot = static_cast<int>(slot)});
}

}  // namespace

absl::Status CheckInitDigests(const std::string& job, const std::vector<TensorSpec>& tensors,
                              const InitDigests& one, const InitDigests* other) {
  const bool wrong_count =
      one.init == InitMode::kEqual ? one.crc32c.size() != tensors.size() : !one.crc32c.empty();
  if (wrong_count) {
    return ErrorOf(job, absl::StatusCode::kInvalidArgument, Reason::kBadSpec,
                   absl::StrCat("slot ", one.slot, " sends ", one.crc32c.size(), " digests of ",
                                tensors.size(), " tensors"),
                   one.slot);
  }
  if (other == nullptr || one.init == InitMode::kBroadcast) return absl::OkStatus();
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (one.crc32c[t] == other->crc32c[t]) continue;
    return ErrorOf(job, absl::StatusCode::kFailedPrecondition, Reason::kInitMismatch,
                   absl::StrCat("initial weights of tensor \"", tensors[t].name,
                                "\" differ between ", "slot ", one.slot, " and slot ", other->slot,
                                "; seed all trainers alike, or use init=\"broadcast\""),
                   one.slot);
  }
  return absl::OkStatus();
}

absl::Status AttachBarrier::Error(absl::StatusCode code, Reason reason, const std::string& message,
                                  uint32_t slot) const {
  return ErrorOf(spec_.name, code, reason, message, slot);
}

absl::Status AttachBarrier::CheckSpec(const AttachCall& call) const {
  const uint32_t slot = call.slot;
  const auto mismatch = [&](const std::string& message) {
    return Error(absl::StatusCode::kFailedPrecondition, Reason::kSpecMismatch,
                 absl::StrCat("slot ", slot, " does not match the job: ", message), slot);
  };
  if (const std::string difference = FirstDifference(spec_, call.spec); !difference.empty()) {
    return mismatch(difference);
  }
  if (call.spec.world != spec_.world) {
    return mismatch(
        absl::StrCat("world is ", call.spec.world, ", the job starts with ", spec_.world));
  }
  if (call.min_world != min_world_) {
    return mismatch(absl::StrCat("min_world is ", call.min_world, ", others give ", min_world_));
  }
  if (slot < spec_.world) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, Reason::kBadSpec,
               absl::StrCat("slot ", slot, " is outside the world of ", spec_.world), slot);
}

absl::Status AttachBarrier::Attach(const AttachCall& call) {
  BALLAST_RETURN_IF_ERROR(CheckSpec(call));
  const uint32_t slot = call.slot;
  const auto candidate = candidates_.find(slot);
  if (candidate != candidates_.end() && candidate->second.incarnation != call.incarnation) {
    return Error(absl::StatusCode::kAlreadyExists, Reason::kSlotTaken,
                 absl::StrCat("slot ", slot, " is taken by another process; check the ranks, or ",
                              "use a fresh job name"),
                 slot);
  }
  for (const auto& [other_slot, other] : candidates_) {
    if (other.init == call.init) continue;
    return Error(absl::StatusCode::kFailedPrecondition, Reason::kSpecMismatch,
                 absl::StrCat("slots ", slot, " and ", other_slot, " use different init modes"),
                 slot);
  }
  const InitDigests digests{slot, call.init, call.tensor_crc32c};
  if (candidates_.empty()) {
    BALLAST_RETURN_IF_ERROR(CheckInitDigests(spec_.name, spec_.tensors, digests, nullptr));
  } else {
    const auto& [other_slot, other] = *candidates_.begin();
    const InitDigests others{other_slot, other.init, other.tensor_crc32c};
    BALLAST_RETURN_IF_ERROR(CheckInitDigests(spec_.name, spec_.tensors, digests, &others));
  }
  candidates_[slot] = {call.incarnation, call.init, call.tensor_crc32c, call.caller.uri()};
  return absl::OkStatus();
}

void AttachBarrier::Cancel(uint32_t slot, uint64_t incarnation) {
  const auto candidate = candidates_.find(slot);
  if (candidate == candidates_.end() || candidate->second.incarnation != incarnation) return;
  candidates_.erase(candidate);
}

std::vector<uint32_t> AttachBarrier::MissingSlots() const {
  std::vector<uint32_t> missing;
  for (uint32_t s = 0; s < spec_.world; ++s) {
    if (candidates_.find(s) == candidates_.end()) missing.push_back(s);
  }
  return missing;
}

std::vector<Member> AttachBarrier::Members() const {
  std::vector<Member> members;
  for (const auto& [slot, candidate] : candidates_) {
    members.push_back({slot, candidate.incarnation, candidate.identity});
  }
  return members;
}

}  // namespace ballast::server
