// The records of the gradient log other than gradients: a server's PREPARE and the decision, as
// bytes. Comes from: GradientLog. Goes to: docs/formats/log.md, which shows them byte by byte.
// Thread safety: pure functions over plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/job/decide.h"

namespace ballast::server {

// A server's vote and all data that a restarted server needs to repeat it and to apply the round.
struct PreparedRecord {
  uint32_t epoch = 0;
  uint64_t round = 0;
  Vote vote;
  std::vector<bool> present;          // per tensor: some contributor has a gradient
  PolicyState policy;                 // before the round
  std::vector<uint64_t> tensor_step;  // per tensor, before the round
  // At the home, by slot: the state that a trainer's script needs to continue after the round. None
  // is empty.
  std::map<uint32_t, std::string> user_state;
  UploadPlane upload = UploadPlane::kNone;
  std::optional<StepCounts> steps;  // after the round, where an upload of state sets them
};

struct DecisionRecord {
  uint32_t epoch = 0;
  uint64_t round = 0;
  Decision decision;
};

// Step counts of the tensors after a round that ended so.
std::vector<uint64_t> StepsAfter(const PreparedRecord& prepared, const Decision& decision);

// Little-endian, versioned; equal records give equal bytes.
std::string EncodePrepared(const PreparedRecord& record);
std::string EncodeDecision(const DecisionRecord& record);

// The inverse. DATA_LOSS for anything EncodePrepared or EncodeDecision of this or an older version
// cannot have produced, FAILED_PRECONDITION for a newer version; nothing is allocated beyond
// `bytes`' own size times a small factor.
absl::StatusOr<PreparedRecord> DecodePrepared(absl::string_view bytes);
absl::StatusOr<DecisionRecord> DecodeDecision(absl::string_view bytes);

}  // namespace ballast::server
