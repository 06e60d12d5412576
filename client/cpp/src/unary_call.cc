#include "client/cpp/src/unary_call.h"

#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "proto/convert/channel.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/status_convert.h"

namespace ballast::client {
namespace {

constexpr std::chrono::milliseconds kPollInterval{100};

// Waits for the only event of `queue`. Returns the error that ended the waiting early, if any.
absl::Status AwaitCall(grpc::CompletionQueue* queue, grpc::ClientContext* context,
                       const std::function<absl::Status()>& poll) {
  absl::Status ended;
  void* tag = nullptr;
  bool ok = false;
  while (true) {
    const auto next = queue->AsyncNext(&tag, &ok, std::chrono::system_clock::now() + kPollInterval);
    if (next != grpc::CompletionQueue::TIMEOUT) return ended;
    if (!ended.ok() || !poll) continue;
    ended = poll();
    if (!ended.ok()) context->TryCancel();
  }
}

}  // namespace

absl::Status CallUnary(const std::shared_ptr<grpc::Channel>& channel, const char* method,
                       const google::protobuf::MessageLite& request,
                       std::chrono::milliseconds timeout, const std::function<absl::Status()>& poll,
                       google::protobuf::MessageLite* reply) {
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  grpc::GenericStub stub(channel);
  grpc::ByteBuffer answer;
  grpc::Status status;
  auto call = stub.PrepareUnaryCall(&context, method, SerializeMessage(request), &queue);
  call->StartCall();
  call->Finish(&answer, &status, &status);
  const absl::Status ended = AwaitCall(&queue, &context, poll);
  queue.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue.Next(&tag, &ok)) {
  }
  if (!ended.ok()) return ended;
  if (!status.ok()) return FromGrpc(status);
  return ParseMessage(answer, kMaxMessageBytes, reply);
}

}  // namespace ballast::client
