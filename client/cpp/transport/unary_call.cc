#include "client/cpp/transport/unary_call.h"

#include <utility>

#include "common/base/status_macros.h"
#include "proto/convert/channel.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/grpc_message.h"
#include "proto/convert/grpc_status.h"

namespace ballast::client {
namespace {

constexpr std::chrono::milliseconds kQueuePollInterval{100};

// Waits for the only event of `queue`. Returns the error that ended the waiting early, if any.
absl::Status AwaitCall(grpc::CompletionQueue* queue, AsyncCall* call,
                       const std::function<absl::Status()>& poll) {
  absl::Status ended;
  void* tag = nullptr;
  bool ok = false;
  while (true) {
    const auto next =
        queue->AsyncNext(&tag, &ok, std::chrono::system_clock::now() + kQueuePollInterval);
    if (next != grpc::CompletionQueue::TIMEOUT) return ended;
    if (!ended.ok() || !poll) continue;
    ended = poll();
    if (!ended.ok()) call->Cancel();
  }
}

}  // namespace

AsyncCall::AsyncCall(const std::shared_ptr<grpc::Channel>& channel, const char* method,
                     const google::protobuf::MessageLite& request,
                     std::chrono::milliseconds timeout, grpc::CompletionQueue* queue,
                     std::function<void()> done)
    : done_(std::move(done)), stub_(channel) {
  context_.set_deadline(std::chrono::system_clock::now() + timeout);
  call_ = stub_.PrepareUnaryCall(&context_, method, SerializeMessage(request), queue);
  call_->StartCall();
  CompletionTag* const tag = this;
  call_->Finish(&answer_, &status_, tag);
}

void AsyncCall::Abandon() {
  done_ = nullptr;
  if (!ended_) Cancel();
}

void AsyncCall::OnEvent(bool) {
  ended_ = true;
  // Moved out: it may destroy this call's handle, and with it its own captures.
  if (const std::function<void()> done = std::move(done_)) done();
}

absl::StatusOr<Payload> AsyncCall::Take() const {
  if (!status_.ok()) return FromGrpc(status_);
  return ToPayload(answer_);
}

absl::Status CallUnary(const std::shared_ptr<grpc::Channel>& channel, const char* method,
                       const google::protobuf::MessageLite& request,
                       std::chrono::milliseconds timeout, const std::function<absl::Status()>& poll,
                       google::protobuf::MessageLite* reply) {
  grpc::CompletionQueue queue;
  AsyncCall call(channel, method, request, timeout, &queue, [] {});
  const absl::Status ended = AwaitCall(&queue, &call, poll);
  queue.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue.Next(&tag, &ok)) {
  }
  if (!ended.ok()) return ended;
  BALLAST_ASSIGN_OR_RETURN(const Payload answer, call.Take());
  return ParseMessage(answer, kMaxMessageBytes, reply);
}

}  // namespace ballast::client
