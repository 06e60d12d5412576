#include "client/cpp/src/stream.h"

#include <utility>

#include "proto/convert/methods.h"
#include "proto/convert/status_convert.h"

namespace ballast::client {

Stream::Stream(StreamKey key, bool wait_for_server, std::shared_ptr<grpc::Channel> channel,
               grpc::CompletionQueue* queue, StreamHandler* handler)
    : key_(key), handler_(handler), queue_(queue), stub_(std::move(channel)) {
  context_.set_wait_for_ready(wait_for_server);
}

void Stream::Start() {
  rpc_ = stub_.PrepareCall(&context_, method::kExchange, queue_);
  rpc_->StartCall(&start_tag_);
}

void Stream::OnStart(bool ok) {
  if (!ok) {
    Finish();
    return;
  }
  open_ = true;
  Read();
  Pump();
}

void Stream::Read() { rpc_->Read(&incoming_, &read_tag_); }

void Stream::OnRead(bool ok) {
  if (!ok) {
    Finish();
    return;
  }
  grpc::ByteBuffer message;
  message.Swap(&incoming_);
  handler_->OnMessage(key_, message);
  Read();
}

void Stream::Kick() { Pump(); }

void Stream::Pump() {
  if (!open_ || writing_ || cannot_write_ || finishing_) return;
  const std::optional<grpc::ByteBuffer> message = handler_->NextMessage(key_);
  if (message.has_value()) {
    writing_ = true;
    rpc_->Write(*message, &write_tag_);
  } else if (half_close_wanted_) {
    writing_ = true;
    cannot_write_ = true;
    rpc_->WritesDone(&half_close_tag_);
  }
}

void Stream::OnWrite(bool ok) {
  writing_ = false;
  // The reason may still be on its way to us, so a failed write alone does not end the stream.
  if (!ok) cannot_write_ = true;
  Pump();
  CloseIfDone();
}

void Stream::HalfClose() {
  half_close_wanted_ = true;
  Pump();
}

void Stream::OnHalfClose(bool) {
  writing_ = false;
  CloseIfDone();
}

void Stream::Cancel() { context_.TryCancel(); }

void Stream::Finish() {
  finishing_ = true;
  rpc_->Finish(&status_, &finish_tag_);
}

void Stream::OnFinish(bool) {
  finished_ = true;
  // A write that waits for flow control would otherwise stay under way.
  if (writing_) context_.TryCancel();
  CloseIfDone();
}

void Stream::CloseIfDone() {
  if (!finished_ || writing_ || closed_) return;
  closed_ = true;
  handler_->OnClosed(key_, FromGrpc(status_));
}

}  // namespace ballast::client
