// The texts of a call that ended without all ranks.
// Comes from: the implementations of Collective. Goes to: their errors. Thread safety: pure
// functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/collective/collective.h"

namespace ballast::collective {

// "reduce-scatter of bucket 7 of round 812".
std::string InBucket(const char* call, BucketId id);

// UNAVAILABLE: "rank 3 of epoch 12 did not arrive within 60 s (in ...)"; "a rank" where `ranks` is
// empty.
absl::Status Late(const std::vector<uint32_t>& ranks, uint64_t epoch,
                  std::chrono::nanoseconds waited, const std::string& where);

// UNAVAILABLE: "rank 3 of epoch 12 is gone (in ...; `said`)", which the transport has noticed.
absl::Status Gone(const std::vector<uint32_t>& ranks, uint64_t epoch, const std::string& where,
                  const std::string& said);

}  // namespace ballast::collective
