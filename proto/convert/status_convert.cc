#include "proto/convert/status_convert.h"

#include <cstddef>
#include <string>

#include "absl/strings/cord.h"
#include "absl/types/optional.h"

namespace ballast {
namespace {

// HTTP/2 trailers of a gRPC call hold 8 KiB by default. The text travels in them twice, once
// percent-encoded (up to 3x) and once in base64 (4/3x).
constexpr size_t kMaxTextBytes = 1500;
// Of a status that BrokenOffForMemory knows. It does not travel.
constexpr char kBrokenOffTypeUrl[] = "ballast/broken-off-for-memory";

#define BALLAST_SAME_REASON(ours, theirs) \
  static_assert(static_cast<int>(Reason::ours) == static_cast<int>(v1::REASON_##theirs))
BALLAST_SAME_REASON(kUnspecified, UNSPECIFIED);
BALLAST_SAME_REASON(kDuplicate, DUPLICATE);
BALLAST_SAME_REASON(kConflict, CONFLICT);
BALLAST_SAME_REASON(kStaleEpoch, STALE_EPOCH);
BALLAST_SAME_REASON(kFutureEpoch, FUTURE_EPOCH);
BALLAST_SAME_REASON(kRoundClosed, ROUND_CLOSED);
BALLAST_SAME_REASON(kFutureRound, FUTURE_ROUND);
BALLAST_SAME_REASON(kOutOfWindow, OUT_OF_WINDOW);
BALLAST_SAME_REASON(kWrongOwner, WRONG_OWNER);
BALLAST_SAME_REASON(kWrongDtype, WRONG_DTYPE);
BALLAST_SAME_REASON(kBadFrame, BAD_FRAME);
BALLAST_SAME_REASON(kBadChecksum, BAD_CHECKSUM);
BALLAST_SAME_REASON(kWrongIncarnation, WRONG_INCARNATION);
BALLAST_SAME_REASON(kNotContributor, NOT_CONTRIBUTOR);
BALLAST_SAME_REASON(kNotBegun, NOT_BEGUN);
BALLAST_SAME_REASON(kBadSpec, BAD_SPEC);
BALLAST_SAME_REASON(kSpecMismatch, SPEC_MISMATCH);
BALLAST_SAME_REASON(kInitMismatch, INIT_MISMATCH);
BALLAST_SAME_REASON(kNameInUse, NAME_IN_USE);
BALLAST_SAME_REASON(kSlotTaken, SLOT_TAKEN);
BALLAST_SAME_REASON(kAttachTimeout, ATTACH_TIMEOUT);
BALLAST_SAME_REASON(kNotHome, NOT_HOME);
BALLAST_SAME_REASON(kUnknownJob, UNKNOWN_JOB);
BALLAST_SAME_REASON(kProtocolMismatch, PROTOCOL_MISMATCH);
BALLAST_SAME_REASON(kOverBudget, OVER_BUDGET);
BALLAST_SAME_REASON(kLayoutMismatch, LAYOUT_MISMATCH);
BALLAST_SAME_REASON(kOverQuota, OVER_QUOTA);
BALLAST_SAME_REASON(kServerRemoved, SERVER_REMOVED);
BALLAST_SAME_REASON(kHyperparamMismatch, HYPERPARAM_MISMATCH);
BALLAST_SAME_REASON(kBadHyperparam, BAD_HYPERPARAM);
BALLAST_SAME_REASON(kWrongVersion, WRONG_VERSION);
BALLAST_SAME_REASON(kTrainerLost, TRAINER_LOST);
BALLAST_SAME_REASON(kTrainerLeft, TRAINER_LEFT);
BALLAST_SAME_REASON(kServerLost, SERVER_LOST);
BALLAST_SAME_REASON(kVoteMismatch, VOTE_MISMATCH);
BALLAST_SAME_REASON(kJobFailed, JOB_FAILED);
BALLAST_SAME_REASON(kJobFinished, JOB_FINISHED);
BALLAST_SAME_REASON(kShuttingDown, SHUTTING_DOWN);
BALLAST_SAME_REASON(kStateLost, STATE_LOST);
BALLAST_SAME_REASON(kStorageFailed, STORAGE_FAILED);
BALLAST_SAME_REASON(kRecovering, RECOVERING);
BALLAST_SAME_REASON(kNonfinite, NONFINITE);
BALLAST_SAME_REASON(kJobBusy, JOB_BUSY);
BALLAST_SAME_REASON(kLossScaleMismatch, LOSS_SCALE_MISMATCH);
BALLAST_SAME_REASON(kGradientMismatch, GRADIENT_MISMATCH);
BALLAST_SAME_REASON(kRendezvousEnded, RENDEZVOUS_ENDED);
BALLAST_SAME_REASON(kUnreachable, UNREACHABLE);
BALLAST_SAME_REASON(kUnsupported, UNSUPPORTED);
BALLAST_SAME_REASON(kWeightsEdited, WEIGHTS_EDITED);
BALLAST_SAME_REASON(kClosed, CLOSED);
BALLAST_SAME_REASON(kBadArgument, BAD_ARGUMENT);
BALLAST_SAME_REASON(kNoIdentity, NO_IDENTITY);
BALLAST_SAME_REASON(kNotPermitted, NOT_PERMITTED);
#undef BALLAST_SAME_REASON

// At most kMaxTextBytes of `text`, never cutting through a UTF-8 character.
absl::string_view Shortened(absl::string_view text) {
  if (text.size() <= kMaxTextBytes) return text;
  size_t end = kMaxTextBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

std::string ToStdString(absl::string_view text) { return std::string(text.data(), text.size()); }

}  // namespace

absl::Status MakeError(absl::StatusCode code, v1::Reason reason, absl::string_view message,
                       const ErrorFields& fields) {
  return ReasonedError(code, static_cast<Reason>(reason), message, fields);
}

absl::StatusCode KnownCode(int code) {
  if (code <= 0 || code > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return absl::StatusCode::kUnknown;
  }
  return static_cast<absl::StatusCode>(code);
}

v1::ErrorDetail DetailOf(const absl::Status& status) {
  v1::ErrorDetail detail;
  const absl::optional<absl::Cord> payload = status.GetPayload(kErrorDetailTypeUrl);
  if (payload.has_value() && detail.ParseFromString(std::string(*payload))) {
    detail.set_message(ToStdString(Shortened(detail.message())));
    return detail;
  }
  // ReasonedError also makes the text well-formed.
  const absl::Status reasoned =
      ReasonedError(status.code(), Reason::kUnspecified, Shortened(status.message()));
  detail.ParseFromString(std::string(*reasoned.GetPayload(kErrorDetailTypeUrl)));
  return detail;
}

absl::Status FromDetail(const v1::ErrorDetail& detail) {
  ErrorFields fields;
  fields.job = detail.job();
  fields.round = detail.round();
  fields.slot = detail.slot();
  fields.server = detail.server();
  fields.address = detail.address();
  return MakeError(KnownCode(detail.code()), detail.reason(), detail.message(), fields);
}

absl::Status BrokenOffError(absl::string_view text) {
  absl::Status status = absl::UnavailableError(text);
  status.SetPayload(kBrokenOffTypeUrl, absl::Cord());
  return status;
}

bool BrokenOffForMemory(const absl::Status& status) {
  return status.GetPayload(kBrokenOffTypeUrl).has_value();
}

}  // namespace ballast
