// The policy state and the rates of a round as bytes of PREPARED and DECISION.
// Comes from: records. Goes to: docs/formats/log.md, which shows them.
// Thread safety: pure functions over plain values.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/job/policy_state.h"
#include "server/durability/records/bytes.h"

namespace ballast::server {

// Bytes of version 1 where the state has that.
void PutPolicy(const PolicyState& policy, ByteWriter* out);
// Fails `in` for anything that PutPolicy cannot have written. FAILED_PRECONDITION for a newer
// version.
absl::StatusOr<PolicyState> GetPolicy(ByteReader* in);

// Per group.
void PutRates(const std::vector<GroupRates>& rates, ByteWriter* out);
std::vector<GroupRates> GetRates(ByteReader* in);

// A policy state of version 1 from its fields, without version and length; `bytes` may end after
// any of them; the fields left out get their defaults.
PolicyState PolicyFromBytes(absl::string_view bytes);

}  // namespace ballast::server
