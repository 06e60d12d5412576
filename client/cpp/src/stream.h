// One bidirectional stream to one server as a state machine over a completion queue: the only place
// of the client that knows gRPC's rules for operations and tags.
// Comes from: Session. Goes to: the Data service of one server; StreamHandler.
// Thread safety: every method, and OnEvent of every tag, is called under the session's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"

namespace ballast::client {

// What the session's completion queue hands back.
class CompletionTag {
 public:
  virtual ~CompletionTag() = default;
  virtual void OnEvent(bool ok) = 0;
};

// Which stream: the server's number, and which of the streams to it, one after the other.
struct StreamKey {
  size_t server = 0;
  uint64_t generation = 0;
};

// Who takes what comes from a stream, and gives what goes there.
class StreamHandler {
 public:
  virtual ~StreamHandler() = default;
  virtual void OnMessage(const StreamKey& key, const grpc::ByteBuffer& message) = 0;
  // The next message to send; asked for when the one before has been taken by gRPC, and on Kick.
  virtual std::optional<grpc::ByteBuffer> NextMessage(const StreamKey& key) = 0;
  // The stream is over and none of its operations is under way. Called once.
  virtual void OnClosed(const StreamKey& key, const absl::Status& status) = 0;
};

class Stream {
 public:
  // `handler` and `queue` outlive the stream. `wait_for_server`: a server that cannot be reached
  // yet is waited for; otherwise that ends the stream.
  Stream(StreamKey key, bool wait_for_server, std::shared_ptr<grpc::Channel> channel,
         grpc::CompletionQueue* queue, StreamHandler* handler);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Connects, and begins to read and write.
  void Start();
  // NextMessage may have something.
  void Kick();
  // Closes our side as soon as NextMessage has nothing more.
  void HalfClose();
  // Breaks the stream off; OnClosed follows.
  void Cancel();

  // OnClosed has been called: the stream may be destroyed.
  bool closed() const { return closed_; }

 private:
  class Tag : public CompletionTag {
   public:
    Tag(Stream* stream, void (Stream::*event)(bool)) : stream_(stream), event_(event) {}
    void OnEvent(bool ok) override { (stream_->*event_)(ok); }

   private:
    Stream* const stream_;
    void (Stream::*const event_)(bool);
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

  const StreamKey key_;
  StreamHandler* const handler_;
  grpc::CompletionQueue* const queue_;
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

  Tag start_tag_{this, &Stream::OnStart};
  Tag read_tag_{this, &Stream::OnRead};
  Tag write_tag_{this, &Stream::OnWrite};
  Tag half_close_tag_{this, &Stream::OnHalfClose};
  Tag finish_tag_{this, &Stream::OnFinish};
};

}  // namespace ballast::client
