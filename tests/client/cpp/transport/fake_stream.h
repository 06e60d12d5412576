// A call at a gRPC server of the client's tests.
// Comes from: fake_server.h, grpc_transport_test. Thread safety: thread-safe, unless a method says
// else.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "ballast/v1/data.pb.h"
#include "tests/proto/convert/grpc_frames.h"

namespace ballast::client {

// One call as a queue of outgoing messages. gRPC owns it from its creation to OnDone.
class FakeStream : public grpc::ServerGenericBidiReactor {
 public:
  using Receive = std::function<void(FakeStream*, const grpc::ByteBuffer&)>;
  using Gone = std::function<void(FakeStream*)>;
  using HalfClosed = std::function<void()>;

  FakeStream(Receive receive, Gone gone, HalfClosed half_closed = nullptr)
      : receive_(std::move(receive)), gone_(std::move(gone)), half_closed_(std::move(half_closed)) {
    StartRead(&incoming_);
  }

  // Nothing goes out after End.
  void Send(const grpc::ByteBuffer& message) {
    std::lock_guard<std::mutex> lock(mu_);
    if (ending_) return;
    outgoing_.push_back(message);
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }
  void Send(const v1::ServerMessage& message) { Send(SerializeMessage(message)); }

  // Ends the call after everything sent so far. What still comes in is dropped.
  void End(const grpc::Status& status) {
    std::lock_guard<std::mutex> lock(mu_);
    if (ending_) return;
    ending_ = true;
    status_ = status;
    EndIfFlushed();
  }

  // Both for the handler of a message. Reads no further.
  void StopReading() { reading_ = false; }
  // The other side's half-close does not end the call.
  void Hold() { held_ = true; }

 private:
  void OnReadDone(bool ok) override {
    if (ok) {
      if (!Ending()) receive_(this, incoming_);
      incoming_.Clear();
      if (reading_) StartRead(&incoming_);
      return;
    }
    if (half_closed_) half_closed_();
    if (!held_) End(grpc::Status::OK);
  }
  bool Ending() {
    std::lock_guard<std::mutex> lock(mu_);
    return ending_;
  }
  void OnWriteDone(bool) override {
    std::lock_guard<std::mutex> lock(mu_);
    outgoing_.pop_front();
    if (!outgoing_.empty()) StartWrite(&outgoing_.front());
    EndIfFlushed();
  }
  void OnCancel() override { End(grpc::Status::CANCELLED); }
  void OnDone() override {
    gone_(this);
    delete this;
  }
  void EndIfFlushed() {
    if (!ending_ || ended_ || !outgoing_.empty()) return;
    ended_ = true;
    Finish(status_);
  }

  const Receive receive_;
  const Gone gone_;
  const HalfClosed half_closed_;
  grpc::ByteBuffer incoming_;
  std::mutex mu_;
  std::deque<grpc::ByteBuffer> outgoing_;
  bool reading_ = true;  // touched by the handler's thread only, as the next
  bool held_ = false;
  bool ending_ = false;
  bool ended_ = false;
  grpc::Status status_;
};

}  // namespace ballast::client
