// The attach and extend barriers. See job_home.h.
#include "server/cluster/job_home.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast::server {

JobHome::JobHome(const AttachCall& first) : spec_(first.spec), min_world_(first.min_world) {}

absl::Status JobHome::Error(absl::StatusCode code, Reason reason, const std::string& message,
                            uint32_t slot) const {
  return ReasonedError(code, reason, absl::StrCat("job \"", spec_.name, "\": ", message),
                       {.job = spec_.name, .slot = static_cast<int>(slot)});
}

absl::Status JobHome::CheckInit(uint32_t slot, InitMode init, const std::vector<uint32_t>& crcs,
                                const std::vector<TensorSpec>& tensors,
                                const std::vector<uint32_t>* others, uint32_t other_slot) const {
  const bool wrong_count = init == InitMode::kEqual ? crcs.size() != tensors.size() : !crcs.empty();
  if (wrong_count) {
    return Error(absl::StatusCode::kInvalidArgument, Reason::kBadSpec,
                 absl::StrCat("slot ", slot, " sends ", crcs.size(), " digests of ", tensors.size(),
                              " tensors"),
                 slot);
  }
  if (others == nullptr || init == InitMode::kBroadcast) return absl::OkStatus();
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (crcs[t] == (*others)[t]) continue;
    return Error(absl::StatusCode::kFailedPrecondition, Reason::kInitMismatch,
                 absl::StrCat("initial weights of tensor \"", tensors[t].name, "\" differ between ",
                              "slot ", slot, " and slot ", other_slot,
                              "; seed all trainers alike, or use init=\"broadcast\""),
                 slot);
  }
  return absl::OkStatus();
}

absl::Status JobHome::Attach(const AttachCall& call) {
  const uint32_t slot = call.slot;
  if (const std::string difference = FirstDifference(spec_, call.spec); !difference.empty()) {
    return Error(absl::StatusCode::kFailedPrecondition, Reason::kSpecMismatch,
                 absl::StrCat("slot ", slot, " does not match the job: ", difference), slot);
  }
  if (call.spec.world != spec_.world) {
    return Error(absl::StatusCode::kFailedPrecondition, Reason::kSpecMismatch,
                 absl::StrCat("slot ", slot, " does not match the job: world is ", call.spec.world,
                              ", the job starts with ", spec_.world),
                 slot);
  }
  if (call.min_world != min_world_) {
    return Error(absl::StatusCode::kFailedPrecondition, Reason::kSpecMismatch,
                 absl::StrCat("slot ", slot, " does not match the job: min_world is ",
                              call.min_world, ", others give ", min_world_),
                 slot);
  }
  if (slot >= spec_.world) {
    return Error(absl::StatusCode::kInvalidArgument, Reason::kBadSpec,
                 absl::StrCat("slot ", slot, " is outside the world of ", spec_.world), slot);
  }
  const auto seat = seats_.find(slot);
  if (seat != seats_.end() && seat->second.incarnation != call.incarnation) {
    return Error(absl::StatusCode::kAlreadyExists, Reason::kSlotTaken,
                 absl::StrCat("slot ", slot, " is taken by another process; check the ranks, or ",
                              "use a fresh job name"),
                 slot);
  }
  for (const auto& [other_slot, other] : seats_) {
    if (other.init != call.init) {
      return Error(absl::StatusCode::kFailedPrecondition, Reason::kSpecMismatch,
                   absl::StrCat("slots ", slot, " and ", other_slot, " use different init modes"),
                   slot);
    }
  }
  const bool first = seats_.empty();
  if (absl::Status st = CheckInit(slot, call.init, call.tensor_crc32c, spec_.tensors,
                                  first ? nullptr : &seats_.begin()->second.tensor_crc32c,
                                  first ? 0 : seats_.begin()->first);
      !st.ok()) {
    return st;
  }
  seats_[slot] = {call.incarnation, call.init, call.tensor_crc32c};
  return absl::OkStatus();
}

void JobHome::Cancel(uint32_t slot, uint64_t incarnation) {
  const auto seat = seats_.find(slot);
  if (seat != seats_.end() && seat->second.incarnation == incarnation) seats_.erase(seat);
}

std::vector<uint32_t> JobHome::MissingSlots() const {
  std::vector<uint32_t> missing;
  for (uint32_t s = 0; s < spec_.world; ++s) {
    if (seats_.find(s) == seats_.end()) missing.push_back(s);
  }
  return missing;
}

std::vector<Member> JobHome::Members() const {
  std::vector<Member> members;
  for (const auto& [slot, seat] : seats_) members.push_back({slot, seat.incarnation});
  return members;
}

absl::Status JobHome::Extend(const ExtendCall& call, uint32_t layout_version) {
  const auto seat = seats_.find(call.slot);
  if (seat == seats_.end() || seat->second.incarnation != call.incarnation) {
    return Error(absl::StatusCode::kFailedPrecondition, Reason::kWrongIncarnation,
                 absl::StrCat("slot ", call.slot, " is held by another process"), call.slot);
  }
  const auto mismatch = [&](const std::string& message) {
    return Error(absl::StatusCode::kFailedPrecondition, Reason::kLayoutMismatch, message,
                 call.slot);
  };
  if (call.base_layout_version != layout_version) {
    return mismatch(absl::StrCat("slot ", call.slot, " grows layout version ",
                                 call.base_layout_version, ", the job is at ", layout_version));
  }
  if (!extending_.empty()) {
    const auto& [other_slot, other] = *extending_.begin();
    if (other.group_count != call.group_count || !(other.tensors == call.tensors) ||
        other.init != call.init || other.round != call.round) {
      return mismatch(absl::StrCat("slots ", call.slot, " and ", other_slot,
                                   " add different groups in the same round"));
    }
    if (absl::Status st = CheckInit(call.slot, call.init, call.tensor_crc32c, call.tensors,
                                    &other.tensor_crc32c, other_slot);
        !st.ok()) {
      return st;
    }
  } else if (absl::Status st =
                 CheckInit(call.slot, call.init, call.tensor_crc32c, call.tensors, nullptr, 0);
             !st.ok()) {
    return st;
  }
  extending_[call.slot] = call;
  return absl::OkStatus();
}

void JobHome::Reseat(const std::vector<Member>& members) {
  seats_.clear();
  for (const Member& member : members) seats_[member.slot].incarnation = member.incarnation;
  std::erase_if(extending_, [this](const auto& wish) {
    const auto seat = seats_.find(wish.first);
    return seat == seats_.end() || seat->second.incarnation != wish.second.incarnation;
  });
}

}  // namespace ballast::server
