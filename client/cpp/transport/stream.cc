#include "client/cpp/transport/stream.h"

#include <optional>
#include <utility>

#include "proto/convert/grpc_message.h"
#include "proto/convert/grpc_status.h"
#include "proto/convert/methods.h"

namespace ballast::client {

GrpcStream::GrpcStream(Options options, LinkHandler* handler)
    : options_(std::move(options)), handler_(handler), stub_(options_.channel) {
  context_.set_wait_for_ready(options_.wait_for_server);
}

void GrpcStream::Start() {
  rpc_ = stub_.PrepareCall(&context_, method::kExchange, options_.queue);
  rpc_->StartCall(&start_tag_);
}

void GrpcStream::OnStart(bool ok) {
  if (!ok) {
    Finish();
    return;
  }
  open_ = true;
  Read();
  Pump();
}

void GrpcStream::Read() { rpc_->Read(&incoming_, &read_tag_); }

void GrpcStream::OnRead(bool ok) {
  if (!ok) {
    Finish();
    return;
  }
  // A buffer that cannot be read is as an empty message, which no handler takes for a good one.
  absl::StatusOr<Payload> message = ToPayload(incoming_);
  incoming_.Clear();
  if (handler_ != nullptr) handler_->OnMessage(message.ok() ? *message : Payload());
  Read();
}

void GrpcStream::Pump() {
  if (!open_ || writing_ || cannot_write_ || finishing_ || handler_ == nullptr) return;
  const std::optional<Outgoing> message = handler_->NextMessage();
  if (message.has_value()) {
    writing_ = true;
    rpc_->Write(ToByteBuffer(*message, options_.copied_bytes), &write_tag_);
  } else if (half_close_wanted_) {
    writing_ = true;
    cannot_write_ = true;
    rpc_->WritesDone(&half_close_tag_);
  }
}

void GrpcStream::OnWrite(bool ok) {
  writing_ = false;
  // The reason may still be on its way to us, so a failed write alone does not end the stream.
  if (!ok) cannot_write_ = true;
  Pump();
  CloseIfDone();
}

void GrpcStream::HalfClose() {
  half_close_wanted_ = true;
  Pump();
}

void GrpcStream::OnHalfClose(bool) {
  writing_ = false;
  CloseIfDone();
}

void GrpcStream::Cancel() { context_.TryCancel(); }

void GrpcStream::Abandon() {
  handler_ = nullptr;
  if (!closed_) Cancel();
}

void GrpcStream::Finish() {
  finishing_ = true;
  rpc_->Finish(&status_, &finish_tag_);
}

void GrpcStream::OnFinish(bool) {
  finished_ = true;
  // A write that waits for flow control would otherwise stay under way.
  if (writing_) context_.TryCancel();
  CloseIfDone();
}

void GrpcStream::CloseIfDone() {
  if (!finished_ || writing_ || closed_) return;
  closed_ = true;
  if (handler_ != nullptr) handler_->OnClosed(FromGrpc(status_));
}

}  // namespace ballast::client
