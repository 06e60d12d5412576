#include "proto/convert/grpc_status.h"

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "ballast/v1/types.pb.h"
#include "proto/convert/status_convert.h"

namespace ballast {
namespace {

// For a connection on which a port answered, but not in HTTP/2.
constexpr char kOtherProtocol[] = "it does not speak gRPC, as the admin port does not";

// What gRPC 1.51 says of a stream that the other end has reset to get its memory back (RFC 9113,
// ENHANCE_YOUR_CALM); no status of ours has the text.
constexpr char kMemoryReset[] = "RST_STREAM with error code 11";
constexpr char kNoMemory[] =
    "the server has broken the call off: gRPC's memory there is at limits.max_rpc_memory_bytes";

// A status without a detail.
absl::Status OfGrpcItself(absl::StatusCode code, absl::string_view text) {
  if (absl::StrContains(text, "Failed parsing HTTP/2") ||
      absl::StrContains(text, "http1.x server")) {
    return absl::Status(code, kOtherProtocol);
  }
  if (absl::StrContains(text, kMemoryReset)) return BrokenOffError(kNoMemory);
  return absl::Status(code, text);
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const v1::ErrorDetail detail = DetailOf(status);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), detail.message(),
                      detail.SerializeAsString());
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const absl::StatusCode code = KnownCode(status.error_code());
  v1::ErrorDetail detail;
  if (status.error_details().empty() || !detail.ParseFromString(status.error_details())) {
    return OfGrpcItself(code, status.error_message());
  }
  detail.set_code(static_cast<int>(code));
  return FromDetail(detail);
}

}  // namespace ballast
