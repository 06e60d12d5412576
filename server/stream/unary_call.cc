#include "server/stream/unary_call.h"

#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "proto/convert/wire_scan.h"

namespace ballast::server {
namespace {

// Of a request that carries no manifest, plan or record.
constexpr size_t kSmallRequestMax = 1 << 20;

// The transport has already refused messages above limits.max_control_message_bytes.
size_t RequestBytesMax(const std::string& method) {
  const bool large = absl::StartsWith(method, "/ballast.v1.Control/") ||
                     absl::StartsWith(method, "/ballast.v1.Peer/");
  return large ? std::numeric_limits<size_t>::max() : kSmallRequestMax;
}

}  // namespace

StreamFactory UnaryCall::Factory(Handler handler) {
  return [handler = std::move(handler)](std::shared_ptr<MessageStream> call) {
    auto unary = std::make_shared<UnaryCall>(call, handler);
    call->Read();
    return unary;
  };
}

UnaryCall::UnaryCall(std::shared_ptr<MessageStream> call, Handler handler)
    : call_(std::move(call)), handler_(std::move(handler)) {}

bool UnaryCall::TakeAnswer() {
  MutexLock lock(&mu_);
  on_cancel_ = nullptr;
  return !std::exchange(answered_, true);
}

void UnaryCall::Reply(const google::protobuf::MessageLite& message) {
  if (!TakeAnswer()) return;
  {
    MutexLock lock(&mu_);
    reply_ = Outgoing{message.SerializeAsString(), Payload()};
  }
  call_->Finish(absl::OkStatus());
}

void UnaryCall::Fail(const absl::Status& status) {
  if (TakeAnswer()) call_->Finish(status);
}

void UnaryCall::OnCancel(std::function<void()> callback) {
  {
    MutexLock lock(&mu_);
    if (answered_) return;
    if (!over_) {
      on_cancel_ = std::move(callback);
      return;
    }
  }
  callback();
}

absl::Status UnaryCall::TryParse(const Payload& bytes, google::protobuf::MessageLite* message) {
  const size_t limit = RequestBytesMax(call_->method());
  if (bytes.bytes() > limit) {
    return ReasonedError(
        absl::StatusCode::kInvalidArgument, Reason::kBadFrame,
        absl::StrCat("request of ", bytes.bytes(), " bytes, limit ", limit, " of this method"));
  }
  BALLAST_ASSIGN_OR_RETURN(const size_t memory, ScanWire(bytes, *message));
  if (call_->parsing() != nullptr) {
    BALLAST_ASSIGN_OR_RETURN(parsing_, call_->parsing()->Take(bytes.bytes() + memory));
  }
  return ParseScanned(bytes, message);
}

bool UnaryCall::Parse(const Payload& bytes, google::protobuf::MessageLite* message) {
  const absl::Status status = TryParse(bytes, message);
  if (!status.ok()) Fail(status);
  return status.ok();
}

bool UnaryCall::ParseField(const Payload& bytes, int number, google::protobuf::MessageLite* field) {
  const absl::Status status = ParseFieldAlone(bytes, number, field);
  if (!status.ok()) Fail(status);
  return status.ok();
}

void UnaryCall::OnMessage(Payload message) {
  std::exchange(handler_, nullptr)(shared_from_this(), message);
  parsing_ = {};
}

void UnaryCall::OnReadsDone() {
  Fail(ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadFrame,
                     "the call ended without a request"));
}

std::optional<Outgoing> UnaryCall::NextMessage() {
  MutexLock lock(&mu_);
  return std::exchange(reply_, std::nullopt);
}

void UnaryCall::OnDone(bool) {
  std::function<void()> callback;
  {
    MutexLock lock(&mu_);
    over_ = true;
    callback = std::exchange(on_cancel_, nullptr);
  }
  if (callback) callback();
}

}  // namespace ballast::server
