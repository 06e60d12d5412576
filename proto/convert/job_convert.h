// Job specifications and votes between protobuf and the plain structs of common/job, and the
// protocol versions that this build speaks. Nothing that comes from a peer is trusted: enum numbers
// are checked here, every other limit by ValidateJobSpec.
// Comes from: control and peer messages. Goes to: server/service, client/cpp, tools.
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ballast/v1/control.pb.h"
#include "ballast/v1/data.pb.h"
#include "ballast/v1/peer.pb.h"
#include "ballast/v1/types.pb.h"
#include "common/job/decide.h"
#include "common/job/job_spec.h"
#include "common/job/round_result.h"

namespace ballast {

// Oldest and newest version of the protocol that this build speaks.
inline constexpr uint32_t kProtocolMin = 1;
inline constexpr uint32_t kProtocolMax = 1;

// The range above as a message.
v1::ProtocolRange OwnProtocolRange();

// The newest version that both sides speak. Error: FAILED_PRECONDITION PROTOCOL_MISMATCH naming
// both ranges; `who` names the other side ("the trainer").
absl::StatusOr<uint32_t> ChooseProtocol(const v1::ProtocolRange& theirs, absl::string_view who);

// Overwrites `out`.
void ToProto(const TensorSpec& tensor, v1::TensorSpec* out);
void ToProto(const JobSpec& spec, v1::JobSpec* out);

// Errors: INVALID_ARGUMENT BAD_SPEC for an enum number that this build does not know, naming the
// tensor or field. The result still needs ValidateJobSpec.
absl::StatusOr<TensorSpec> TensorFromProto(const v1::TensorSpec& tensor);
absl::StatusOr<std::vector<TensorSpec>> TensorsFromProto(
    const google::protobuf::RepeatedPtrField<v1::TensorSpec>& tensors);
absl::StatusOr<JobSpec> JobSpecFromProto(const v1::JobSpec& spec);

// Fills all of `out`; and back.
void ToProto(const Nonfinite& nonfinite, v1::Nonfinite* out);
Nonfinite NonfiniteFromProto(const v1::Nonfinite& nonfinite);

// Overwrites `out`; and back.
void ToProto(const RoundResult& result, v1::RoundResult* out);
RoundResult RoundResultFromProto(const v1::RoundResult& result);

// Fills everything of `out` but job, epoch and round.
void ToProto(const Vote& vote, v1::Prepare* out);

// Errors: INVALID_ARGUMENT BAD_FRAME when norms are not in ascending extent order.
absl::StatusOr<Vote> VoteFromProto(const v1::Prepare& prepare);

}  // namespace ballast
