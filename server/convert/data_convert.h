// Messages of a trainer's data stream <-> the types of server/round.
// Comes from: trainer_stream, control_convert. Goes to: RoundEngine.
// Thread safety: pure functions.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "ballast/v1/data.pb.h"
#include "server/round/round_types.h"

namespace ballast::server {

// Client to server. `presence` of the result has 8 bits per byte received, the last ones padding:
// only the job knows how many tensors there are. Errors: INVALID_ARGUMENT BAD_FRAME for more than
// `presence_bytes_max` bytes of presence.
absl::StatusOr<RoundBegin> BeginFromProto(const v1::RoundBegin& begin, size_t presence_bytes_max);

// Server to client.
void ToProto(const RoundDone& done, v1::RoundDone* out);
void ToProto(const FrameRefused& refused, v1::FrameRefused* out);
void ToProto(const StateInfo& info, v1::StateInfo* out);
void ToProto(const TrainerNews& news, v1::TrainerNews* out);
// Overwrites `out`.
void ToProto(const PolicyReport& policy, v1::Policy* out);

}  // namespace ballast::server
