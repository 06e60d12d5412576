// Errors between absl::Status inside a process and their form on the wire: ErrorDetail messages on
// streams, grpc::Status with a serialized ErrorDetail as its details for unary calls.
// Comes from: every room that refuses something. Goes to: server/service, client/cpp.
// Thread safety: pure functions.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ballast/v1/types.pb.h"
#include "common/base/reason.h"
#include "grpcpp/support/status.h"

namespace ballast {

// ReasonedError for code that already speaks protobuf.
absl::Status MakeError(absl::StatusCode code, v1::Reason reason, absl::string_view message,
                       const ErrorFields& fields = {});

// The wire form of `status` (not OK). Without a detail: reason UNSPECIFIED, slot and server -1.
// Texts longer than 1,500 bytes are cut, so that the detail fits into gRPC's trailers.
v1::ErrorDetail DetailOf(const absl::Status& status);

// The Status that `detail` describes. A code that absl does not know becomes kUnknown.
absl::Status FromDetail(const v1::ErrorDetail& detail);

// As a unary call's result, with the detail in error_details(). OK stays OK.
grpc::Status ToGrpc(const absl::Status& status);

// Reads what ToGrpc wrote; a status made by gRPC itself keeps its code and text and has no reason.
// With two exceptions. For a port of another protocol the text is our own: an operator may have
// given the admin port. A call that the other end's gRPC broke off for want of memory is
// UNAVAILABLE, as it is when the whole connection goes: it may be made again.
absl::Status FromGrpc(const grpc::Status& status);

// Whether `status` comes from FromGrpc and says that the other end's gRPC broke the call off for
// want of memory: that end lives. False for a status that went through a detail on its way.
bool BrokenOffForMemory(const absl::Status& status);

}  // namespace ballast
