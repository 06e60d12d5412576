// One bidirectional gRPC stream to one server as a state machine over a completion queue: with
// AsyncCall the only place of the client that knows gRPC's rules for operations and tags.
// Comes from: GrpcTransport. Goes to: the Data service of one server; a LinkHandler.
// Thread safety: every method, and OnEvent of every tag, is called under the transport's lock.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "client/cpp/transport/link.h"
#include "client/cpp/transport/orphaned_operations.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"

namespace ballast::client {

// A tag of a completion queue.
class CompletionTag {
 public:
  virtual ~CompletionTag() = default;
  virtual void OnEvent(bool ok) = 0;
};

class GrpcStream : public QueueOperation {
 public:
  struct Options {
    std::shared_ptr<grpc::Channel> channel;  // the stream's own; its end drops unsent bytes
    bool wait_for_server = false;            // as LinkTarget::wait_for_server
    grpc::CompletionQueue* queue = nullptr;  // outlives the stream
    uint64_t* copied_bytes = nullptr;        // counts as Transport::copied_bytes; likewise
  };

  // `handler` lives until Abandon or the end.
  GrpcStream(Options options, LinkHandler* handler);
  GrpcStream(const GrpcStream&) = delete;
  GrpcStream& operator=(const GrpcStream&) = delete;

  // Connects, and begins to read and write.
  void Start();
  void Kick() { Pump(); }
  void HalfClose();
  void Cancel();
  void Abandon() override;
  // OnClosed has been called, or would have been.
  bool ended() const override { return closed_; }

 private:
  class Tag : public CompletionTag {
   public:
    Tag(GrpcStream* stream, void (GrpcStream::*event)(bool)) : stream_(stream), event_(event) {}
    void OnEvent(bool ok) override { (stream_->*event_)(ok); }

   private:
    GrpcStream* const stream_;
    void (GrpcStream::*const event_)(bool);
  };

  void OnStart(bool ok);
  void OnRead(bool ok);
  void OnWrite(bool ok);
  void OnHalfClose(bool ok);
  void OnFinish(bool ok);
  void Read();
  void Pump();
  void Finish();
  void CloseIfDone();

  const Options options_;
  LinkHandler* handler_;  // null after Abandon
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> rpc_;
  grpc::ByteBuffer incoming_;
  grpc::Status status_;

  bool open_ = false;
  bool writing_ = false;       // a write or half-close is under way
  bool cannot_write_ = false;  // half-closed, or a write failed
  bool half_close_wanted_ = false;
  bool finishing_ = false;
  bool finished_ = false;
  bool closed_ = false;

  Tag start_tag_{this, &GrpcStream::OnStart};
  Tag read_tag_{this, &GrpcStream::OnRead};
  Tag write_tag_{this, &GrpcStream::OnWrite};
  Tag half_close_tag_{this, &GrpcStream::OnHalfClose};
  Tag finish_tag_{this, &GrpcStream::OnFinish};
};

}  // namespace ballast::client
