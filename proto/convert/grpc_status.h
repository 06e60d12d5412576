// Errors of whole calls between absl::Status inside a process and grpc::Status with a serialized
// ErrorDetail as its details. Comes from: every room that refuses something. Goes to: the
// transports over gRPC. Thread safety: pure functions.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace ballast {

// As a unary call's result, with the detail in error_details(). OK stays OK.
grpc::Status ToGrpc(const absl::Status& status);

// Reads what ToGrpc wrote; a status made by gRPC itself keeps its code and text and has no reason.
// With two exceptions. For a port of another protocol the text is our own: an operator may have
// given the admin port. A call that the other end's gRPC broke off for want of memory is
// UNAVAILABLE, as it is when the whole connection goes: it may be made again (BrokenOffForMemory).
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace ballast
