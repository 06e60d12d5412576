#include "server/rpc/unary_call.h"

#include <limits>
#include <utility>

#include "common/base/reason.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/status_convert.h"

namespace ballast::server {

GenericServer::HandlerFactory UnaryCall::Factory(Handler handler) {
  return [handler = std::move(handler)](std::shared_ptr<GenericCall> call) {
    auto unary = std::make_shared<UnaryCall>(call, handler);
    call->Read();
    return unary;
  };
}

UnaryCall::UnaryCall(std::shared_ptr<GenericCall> call, Handler handler)
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
    reply_ = SerializeMessage(message);
  }
  call_->Finish(grpc::Status::OK);
}

void UnaryCall::Fail(const absl::Status& status) {
  if (TakeAnswer()) call_->Finish(ToGrpc(status));
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

bool UnaryCall::Parse(const grpc::ByteBuffer& request, google::protobuf::MessageLite* message) {
  // The transport has already refused what is too large.
  const absl::Status status = ParseMessage(request, std::numeric_limits<int>::max(), message);
  if (!status.ok()) Fail(status);
  return status.ok();
}

void UnaryCall::OnMessage(grpc::ByteBuffer message) {
  std::exchange(handler_, nullptr)(shared_from_this(), std::move(message));
}

void UnaryCall::OnReadsDone() {
  Fail(ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadFrame,
                     "the call ended without a request"));
}

absl::optional<grpc::ByteBuffer> UnaryCall::NextMessage() {
  MutexLock lock(&mu_);
  return std::exchange(reply_, absl::nullopt);
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
