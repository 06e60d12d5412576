#include "common/base/reason.h"

#include <cstddef>

#include "absl/strings/cord.h"
#include "absl/types/optional.h"
#include "common/base/utf8.h"
#include "common/base/varint.h"

namespace ballast {
namespace {

// Field numbers of ballast.v1.ErrorDetail.
constexpr uint32_t kReasonField = 1;
constexpr uint32_t kMessageField = 2;
constexpr uint32_t kJobField = 3;
constexpr uint32_t kRoundField = 4;
constexpr uint32_t kSlotField = 5;
constexpr uint32_t kServerField = 6;
constexpr uint32_t kCodeField = 7;
constexpr uint32_t kAddressField = 8;

struct NamedReason {
  Reason reason;
  const char* name;
};

constexpr NamedReason kReasonNames[] = {
    {Reason::kUnspecified, "UNSPECIFIED"},
    {Reason::kDuplicate, "DUPLICATE"},
    {Reason::kConflict, "CONFLICT"},
    {Reason::kStaleEpoch, "STALE_EPOCH"},
    {Reason::kFutureEpoch, "FUTURE_EPOCH"},
    {Reason::kRoundClosed, "ROUND_CLOSED"},
    {Reason::kFutureRound, "FUTURE_ROUND"},
    {Reason::kOutOfWindow, "OUT_OF_WINDOW"},
    {Reason::kWrongOwner, "WRONG_OWNER"},
    {Reason::kWrongDtype, "WRONG_DTYPE"},
    {Reason::kBadFrame, "BAD_FRAME"},
    {Reason::kBadChecksum, "BAD_CHECKSUM"},
    {Reason::kWrongIncarnation, "WRONG_INCARNATION"},
    {Reason::kNotContributor, "NOT_CONTRIBUTOR"},
    {Reason::kNotBegun, "NOT_BEGUN"},
    {Reason::kBadSpec, "BAD_SPEC"},
    {Reason::kSpecMismatch, "SPEC_MISMATCH"},
    {Reason::kInitMismatch, "INIT_MISMATCH"},
    {Reason::kNameInUse, "NAME_IN_USE"},
    {Reason::kSlotTaken, "SLOT_TAKEN"},
    {Reason::kAttachTimeout, "ATTACH_TIMEOUT"},
    {Reason::kNotHome, "NOT_HOME"},
    {Reason::kUnknownJob, "UNKNOWN_JOB"},
    {Reason::kProtocolMismatch, "PROTOCOL_MISMATCH"},
    {Reason::kOverBudget, "OVER_BUDGET"},
    {Reason::kLayoutMismatch, "LAYOUT_MISMATCH"},
    {Reason::kOverQuota, "OVER_QUOTA"},
    {Reason::kServerRemoved, "SERVER_REMOVED"},
    {Reason::kHyperparamMismatch, "HYPERPARAM_MISMATCH"},
    {Reason::kBadHyperparam, "BAD_HYPERPARAM"},
    {Reason::kWrongVersion, "WRONG_VERSION"},
    {Reason::kTrainerLost, "TRAINER_LOST"},
    {Reason::kTrainerLeft, "TRAINER_LEFT"},
    {Reason::kServerLost, "SERVER_LOST"},
    {Reason::kVoteMismatch, "VOTE_MISMATCH"},
    {Reason::kJobFailed, "JOB_FAILED"},
    {Reason::kJobFinished, "JOB_FINISHED"},
    {Reason::kShuttingDown, "SHUTTING_DOWN"},
    {Reason::kStateLost, "STATE_LOST"},
    {Reason::kStorageFailed, "STORAGE_FAILED"},
    {Reason::kRecovering, "RECOVERING"},
    {Reason::kNonfinite, "NONFINITE"},
    {Reason::kJobBusy, "JOB_BUSY"},
    {Reason::kLossScaleMismatch, "LOSS_SCALE_MISMATCH"},
    {Reason::kGradientMismatch, "GRADIENT_MISMATCH"},
    {Reason::kRendezvousEnded, "RENDEZVOUS_ENDED"},
    {Reason::kUnreachable, "UNREACHABLE"},
    {Reason::kUnsupported, "UNSUPPORTED"},
    {Reason::kWeightsEdited, "WEIGHTS_EDITED"},
    {Reason::kClosed, "CLOSED"},
    {Reason::kBadArgument, "BAD_ARGUMENT"},
    {Reason::kNoIdentity, "NO_IDENTITY"},
    {Reason::kNotPermitted, "NOT_PERMITTED"},
};

// A protobuf parser refuses a whole message for one ill-formed string, and messages may quote a
// peer's bytes: ill-formed ones become '?'.
std::string WellFormed(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    length == 0 ? out.push_back('?') : absl::StrAppend(&out, text.substr(0, length));
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

// proto3 leaves out zero or empty fields.
void AppendNumber(std::string* out, uint32_t field, uint64_t value) {
  if (value == 0) return;
  AppendVarint(out, field << 3);
  AppendVarint(out, value);
}

void AppendText(std::string* out, uint32_t field, absl::string_view text) {
  if (text.empty()) return;
  const std::string clean = WellFormed(text);
  AppendVarint(out, field << 3 | 2);
  AppendVarint(out, clean.size());
  out->append(clean);
}

// Negative int32 values are sign-extended to 64 bits on the wire.
uint64_t SignExtended(int value) { return static_cast<uint64_t>(static_cast<int64_t>(value)); }

bool ReadVarint(absl::string_view* in, uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (in->empty()) return false;
    const uint64_t byte = static_cast<unsigned char>(in->front());
    in->remove_prefix(1);
    *value |= shift < 64 ? (byte & 0x7F) << shift : 0;
    if ((byte & 0x80) == 0) return true;
  }
  return false;
}

struct Detail {
  Reason reason = Reason::kUnspecified;
  ErrorFields fields;
};

void SetNumber(uint32_t field, uint64_t value, Detail* detail) {
  if (field == kReasonField) detail->reason = static_cast<Reason>(static_cast<int>(value));
  if (field == kRoundField) detail->fields.round = value;
  if (field == kSlotField) detail->fields.slot = static_cast<int>(value);
  if (field == kServerField) detail->fields.server = static_cast<int>(value);
}

void SetText(uint32_t field, absl::string_view text, Detail* detail) {
  if (field == kJobField) detail->fields.job.assign(text.data(), text.size());
  if (field == kAddressField) detail->fields.address.assign(text.data(), text.size());
}

// Reads our own encoding and that of a stock protobuf peer; stops at the first field other than a
// number or a string, since ErrorDetail has no others.
Detail Decode(absl::string_view in) {
  Detail detail;
  detail.fields.slot = 0;  // On the wire an absent number is 0.
  detail.fields.server = 0;
  uint64_t tag = 0;
  while (!in.empty() && ReadVarint(&in, &tag)) {
    const uint32_t field = static_cast<uint32_t>(tag >> 3);
    uint64_t value = 0;
    if (((tag & 7) != 0 && (tag & 7) != 2) || !ReadVarint(&in, &value)) break;
    if ((tag & 7) == 0) {
      SetNumber(field, value, &detail);
      continue;
    }
    if (value > in.size()) break;
    SetText(field, in.substr(0, value), &detail);
    in.remove_prefix(value);
  }
  return detail;
}

Detail DetailOfStatus(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kErrorDetailTypeUrl);
  if (!payload.has_value()) return Detail{};
  const std::string bytes(*payload);
  return Decode(bytes);
}

}  // namespace

const char* ReasonName(Reason reason) {
  for (const NamedReason& entry : kReasonNames) {
    if (entry.reason == reason) return entry.name;
  }
  return "UNKNOWN";
}

absl::Status ReasonedError(absl::StatusCode code, Reason reason, absl::string_view message,
                           const ErrorFields& fields) {
  absl::Status status(code, message);
  std::string detail;
  AppendNumber(&detail, kReasonField, SignExtended(static_cast<int>(reason)));
  AppendText(&detail, kMessageField, message);
  AppendText(&detail, kJobField, fields.job);
  AppendNumber(&detail, kRoundField, fields.round);
  AppendNumber(&detail, kSlotField, SignExtended(fields.slot));
  AppendNumber(&detail, kServerField, SignExtended(fields.server));
  AppendNumber(&detail, kCodeField, SignExtended(static_cast<int>(code)));
  AppendText(&detail, kAddressField, fields.address);
  status.SetPayload(kErrorDetailTypeUrl, absl::Cord(detail));
  return status;
}

Reason ReasonOf(const absl::Status& status) { return DetailOfStatus(status).reason; }

ErrorFields FieldsOf(const absl::Status& status) { return DetailOfStatus(status).fields; }

}  // namespace ballast
