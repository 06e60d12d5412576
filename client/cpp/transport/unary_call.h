// One unary gRPC call with raw bytes: as an event of a completion queue, or waited for on the
// calling thread in small steps so that the caller can give up at any time.
// Comes from: attaching, and GrpcTransport. Goes to: the Control and Admin services.
// Thread safety: CallUnary may be called from any thread; an AsyncCall is thread-compatible.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/transport/orphaned_operations.h"
#include "client/cpp/transport/stream.h"
#include "common/bytes/payload.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"

namespace ballast::client {

// A call whose end is an event of `queue`.
class AsyncCall : public QueueOperation, public CompletionTag {
 public:
  // Calls `method` (proto/convert/methods.h). `done` runs once, in OnEvent, unless the call was
  // abandoned before.
  AsyncCall(const std::shared_ptr<grpc::Channel>& channel, const char* method,
            const google::protobuf::MessageLite& request, std::chrono::milliseconds timeout,
            grpc::CompletionQueue* queue, std::function<void()> done);

  // Lets the call end soon.
  void Cancel() { context_.TryCancel(); }
  void Abandon() override;
  bool ended() const override { return ended_; }
  void OnEvent(bool ok) override;
  // After the event: the answer's bytes. Errors as CallUnary.
  absl::StatusOr<Payload> Take() const;

 private:
  std::function<void()> done_;  // empty after Abandon
  grpc::ClientContext context_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> call_;
  grpc::ByteBuffer answer_;
  grpc::Status status_;
  bool ended_ = false;
};

// Calls `method` (proto/convert/methods.h) and parses the answer into `reply`. `poll` is called
// about ten times a second while the call waits; an error of it cancels the call and is returned.
// Errors: those of the server, with their reason; DEADLINE_EXCEEDED after `timeout`; UNAVAILABLE
// without a reason when the server cannot be reached.
absl::Status CallUnary(const std::shared_ptr<grpc::Channel>& channel, const char* method,
                       const google::protobuf::MessageLite& request,
                       std::chrono::milliseconds timeout, const std::function<absl::Status()>& poll,
                       google::protobuf::MessageLite* reply);

}  // namespace ballast::client
