// Errors between absl::Status inside a process and their form on the wire: ErrorDetail messages on
// streams. Those of whole calls are in grpc_status.h.
// Comes from: every room that refuses something. Goes to: server/service, client/cpp.
// Thread safety: pure functions.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ballast/v1/types.pb.h"
#include "common/base/reason.h"

namespace ballast {

// ReasonedError for code that already speaks protobuf.
absl::Status MakeError(absl::StatusCode code, v1::Reason reason, absl::string_view message,
                       const ErrorFields& fields = {});

// The wire form of `status` (not OK). Without a detail: reason UNSPECIFIED, slot and server -1.
// Texts longer than 1,500 bytes are cut, so that the detail fits into gRPC's trailers.
v1::ErrorDetail DetailOf(const absl::Status& status);

// kUnknown for a number that is no code of absl.
absl::StatusCode KnownCode(int code);

// The Status that `detail` describes, with KnownCode.
absl::Status FromDetail(const v1::ErrorDetail& detail);

// UNAVAILABLE, from a transport: the other end broke the call off for want of memory, and lives.
absl::Status BrokenOffError(absl::string_view text);
// Whether `status` is one. False for a status that went through a detail on its way.
bool BrokenOffForMemory(const absl::Status& status);

}  // namespace ballast
