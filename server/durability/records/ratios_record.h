// The record that a LAMB round adds to the gradient log between vote and decision, as bytes.
// Comes from: GradientLog. Goes to: docs/formats/log.md, which shows it byte by byte.
// Thread safety: pure functions over plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/job/decide.h"

namespace ballast::server {

// All that the second pass and its replay need, and this server's measurements of the first, for a
// peer absent between the passes.
struct RatiosRecord {
  uint32_t epoch = 0;
  uint64_t round = 0;
  std::vector<float> ratios;        // per tensor
  std::vector<RunSquares> squares;  // of this server's second vote
};

// Little-endian, versioned; equal records give equal bytes.
std::string EncodeRatios(const RatiosRecord& record);

// The inverse. DATA_LOSS for anything EncodeRatios cannot have produced, FAILED_PRECONDITION for a
// newer version; nothing is allocated beyond `bytes`' own size times a small factor.
absl::StatusOr<RatiosRecord> DecodeRatios(absl::string_view bytes);

}  // namespace ballast::server
