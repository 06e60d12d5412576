// Typed reasons of errors without protobuf: carried by a Status in addition to its code and text.
// The detail is attached as a Status payload whose bytes are the wire encoding of
// ballast.v1.ErrorDetail (types.proto), so proto/convert reads and writes the same payload.
// Comes from: every room that refuses something. Goes to: proto/convert, the client's callers.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ballast {

// Type URL of the payload.
inline constexpr char kErrorDetailTypeUrl[] = "ballast.v1.ErrorDetail";

// Why something was refused or failed. Numbers are those of ballast.v1.Reason (proto/convert checks
// that they are equal); the meaning of each is written there. Never renumbered.
enum class Reason : int {
  kUnspecified = 0,

  kDuplicate = 1,
  kConflict = 2,
  kStaleEpoch = 3,
  kFutureEpoch = 4,
  kRoundClosed = 5,
  kFutureRound = 6,
  kOutOfWindow = 7,
  kWrongOwner = 8,
  kWrongDtype = 9,
  kBadFrame = 10,
  kBadChecksum = 11,
  kWrongIncarnation = 12,
  kNotContributor = 13,
  kNotBegun = 14,

  kBadSpec = 30,
  kSpecMismatch = 31,
  kInitMismatch = 32,
  kNameInUse = 33,
  kSlotTaken = 34,
  kAttachTimeout = 35,
  kNotHome = 36,
  kUnknownJob = 37,
  kProtocolMismatch = 38,
  kOverBudget = 39,
  kLayoutMismatch = 40,
  kOverQuota = 41,
  kServerRemoved = 42,

  kHyperparamMismatch = 50,
  kBadHyperparam = 51,
  kWrongVersion = 52,
  kTrainerLost = 53,
  kTrainerLeft = 54,
  kServerLost = 55,
  kVoteMismatch = 56,
  kJobFailed = 57,
  kJobFinished = 58,
  kShuttingDown = 59,
  kStateLost = 60,
  kStorageFailed = 61,
  kRecovering = 62,
  kNonfinite = 63,
  kJobBusy = 64,
  kLossScaleMismatch = 65,
  kGradientMismatch = 66,
  kRendezvousEnded = 67,

  kUnreachable = 70,
  kUnsupported = 71,
  kWeightsEdited = 72,
  kClosed = 73,
  kBadArgument = 74,

  kNoIdentity = 80,
  kNotPermitted = 81,
};

// Name as in types.proto without the REASON_ prefix, for example "TRAINER_LOST"; "UNKNOWN" for a
// number this build does not know (a newer peer's).
const char* ReasonName(Reason reason);

// The process or thing that an error is about. Defaults mean "none in particular".
struct ErrorFields {
  std::string job;  // job name
  uint64_t round = 0;
  int slot = -1;
  int server = -1;
  std::string address;  // Reason::kNotHome: where the home listens
};

// A Status of `code` (not kOk) and `message` that carries `reason` and `fields`.
absl::Status ReasonedError(absl::StatusCode code, Reason reason, absl::string_view message,
                           const ErrorFields& fields = {});

// Reason of `status`; kUnspecified when it carries none, or is OK.
Reason ReasonOf(const absl::Status& status);

// Fields of `status`; defaults when it carries none.
ErrorFields FieldsOf(const absl::Status& status);

}  // namespace ballast
