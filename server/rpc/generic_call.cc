#include "server/rpc/generic_call.h"

#include <utility>

#include "grpc/grpc_security_constants.h"
#include "grpc/support/time.h"
#include "proto/convert/grpc_message.h"
#include "proto/convert/grpc_status.h"

namespace ballast::server {

void GenericCall::OpTag::OnEvent(bool ok) {
  // The reference moves to the stack: the call may end with this event.
  const std::shared_ptr<GenericCall> self = std::move(call);
  self->Complete(op_, ok);
}

GenericCall::GenericCall(const CallEnvironment* environment)
    : environment_(environment),
      context_(std::make_unique<grpc::GenericServerContext>()),
      stream_(std::make_unique<grpc::GenericServerAsyncReaderWriter>(context_.get())),
      alarm_(std::make_unique<grpc::Alarm>()) {
  facts_.parsing = environment->parsing;
  facts_.directory_names = environment->directory_names;
}

void GenericCall::Accept(const CallEnvironment* environment) {
  const std::shared_ptr<GenericCall> call(new GenericCall(environment));
  // The lock is held to the end: a poller may get the accepted call before RequestCall returns.
  MutexLock lock(&call->mu_);
  // gRPC takes the done tag only before the call begins. It holds no reference yet, see OnAccepted.
  call->context_->AsyncNotifyWhenDone(&call->done_tag_);
  environment->service->RequestCall(call->context_.get(), call->stream_.get(), environment->queue,
                                    environment->queue, call->Begin(&call->accept_tag_));
}

void* GenericCall::Begin(OpTag* tag) {
  // Before gRPC has the tag: its event may be handled on another thread at once.
  tag->call = shared_from_this();
  ++under_way_;
  return tag;
}

void GenericCall::Read() {
  MutexLock lock(&mu_);
  if (over_ || reading_) return;
  // gRPC allows one read at a time, and owns incoming_ until its tag is back.
  reading_ = true;
  stream_->Read(&incoming_, Begin(&read_tag_));
}

void GenericCall::Kick() {
  MutexLock lock(&mu_);
  if (over_ || broken_) return;
  if (sending_) {
    // There is one alarm and one write at a time: Pump asks the handler once more instead.
    kicked_ = true;
  } else {
    Wake();
  }
}

void GenericCall::Wake() {
  sending_ = true;
  // An alarm in the past comes back through the queue: the caller, often the strand of a job, does
  // not form and write the message itself.
  alarm_->Set(environment_->queue, gpr_inf_past(GPR_CLOCK_MONOTONIC), Begin(&wake_tag_));
}

void GenericCall::Finish(const absl::Status& status) {
  EndWith(ToGrpc(status.ok() ? status : directory_names().Outward(status)));
}

void GenericCall::EndWith(const grpc::Status& status) {
  MutexLock lock(&mu_);
  if (over_ || finish_wanted_) return;
  finish_wanted_ = true;
  final_status_ = status;
  // A bare status goes through Pump, too: gRPC forbids Finish while a write is under way.
  if (!sending_) Wake();
}

void GenericCall::Cancel() {
  MutexLock lock(&mu_);
  // A released call has no context any more.
  if (!over_) context_->TryCancel();
}

void GenericCall::Complete(Op op, bool ok) {
  switch (op) {
    case Op::kAccept:
      OnAccepted(ok);
      break;
    case Op::kDone:
      OnOver();
      break;
    case Op::kRead:
      OnRead(ok);
      break;
    case Op::kWake:
      // `ok` does not matter: the alarm is never cancelled.
      Pump();
      break;
    case Op::kWrite: {
      if (!ok) {
        MutexLock lock(&mu_);
        // A write fails only on a dead call, where Finish would fail, too. Its done tag follows.
        broken_ = true;
      }
      Pump();
      break;
    }
    case Op::kFinish:
      // The done tag ends the call, and may come before or after this one.
      break;
  }
  ReleaseIfOver();
}

void GenericCall::OnAccepted(bool ok) {
  {
    MutexLock lock(&mu_);
    if (!ok) {  // The server stops; the done tag of a call that never began does not come.
      over_ = true;
      return;
    }
    // The call has begun, so its done tag will come back.
    Begin(&done_tag_);
    // Copied, because handlers may hold the call longer than it holds its context.
    facts_.method = context_->method();
    facts_.peer = context_->peer();
  }
  // Without the lock: a handler reads, or fails the call, while it is being made.
  handler_ = environment_->accept(shared_from_this());
  if (handler_ == nullptr) {
    EndWith(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "unknown method " + facts_.method));
  }
}

CallerFacts GenericCall::caller_facts() {
  MutexLock lock(&mu_);
  CallerFacts facts;
  const std::shared_ptr<const grpc::AuthContext> auth = context_->auth_context();
  const auto text = [](const grpc::string_ref& value) {
    return std::string(value.data(), value.size());
  };
  // gRPC's two kinds of TLS credentials name the transport differently.
  for (const auto& value : auth->FindPropertyValues(GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME)) {
    facts.encrypted |=
        value == GRPC_SSL_TRANSPORT_SECURITY_TYPE || value == GRPC_TLS_TRANSPORT_SECURITY_TYPE;
  }
  facts.certified = !auth->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME).empty();
  for (const auto& uri : auth->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    facts.uris.push_back(text(uri));
  }
  const auto& metadata = context_->client_metadata();
  // All values of a header: the gate decides about repeated ones.
  const auto values = [&metadata, &text](const char* header) {
    std::vector<std::string> found;
    const auto [begin, end] = metadata.equal_range(header);
    for (auto value = begin; value != end; ++value) found.push_back(text(value->second));
    return found;
  };
  facts.authorization = values("authorization");
  facts.peer_numbers = values(kPeerNumberHeader);
  return facts;
}

grpc::StatusCode GenericCall::EndedWith(bool cancelled) const {
  if (!cancelled) return final_status_.error_code();
  // gRPC reports a passed deadline as a cancellation; the client has seen DEADLINE_EXCEEDED.
  const bool late = context_->deadline() <= std::chrono::system_clock::now();
  return late ? grpc::StatusCode::DEADLINE_EXCEEDED : grpc::StatusCode::CANCELLED;
}

void GenericCall::OnOver() {
  bool cancelled = false;
  grpc::StatusCode code = grpc::StatusCode::OK;
  grpc::StatusCode meant = grpc::StatusCode::OK;
  {
    MutexLock lock(&mu_);
    over_ = true;
    // gRPC allows this question only after the done tag.
    cancelled = context_->IsCancelled();
    code = EndedWith(cancelled);
    meant = final_status_.error_code();
  }
  timer_.End(code, environment_->clock->Now());
  // A refused client that hangs up before the status is audited as refused all the same.
  if (environment_->ended) environment_->ended(*this, IsRefusal(meant) ? meant : code);
  if (handler_ != nullptr) handler_->OnDone(cancelled);
}

void GenericCall::OnRead(bool ok) {
  grpc::ByteBuffer message;
  {
    MutexLock lock(&mu_);
    reading_ = false;
    // OnDone is the handler's last event, also when the read's tag comes back after it.
    if (over_ || handler_ == nullptr) return;
    // Emptied first: OnMessage may ask for the next read, which writes to incoming_.
    message.Swap(&incoming_);
  }
  absl::StatusOr<Payload> bytes = Payload();
  if (ok) bytes = ToPayload(message);
  if (ok && bytes.ok()) return handler_->OnMessage(*std::move(bytes));
  // A buffer that gRPC cannot read is no message; the handler's own status comes second.
  if (!bytes.ok()) Finish(bytes.status());
  handler_->OnReadsDone();
}

void GenericCall::Pump() {
  for (;;) {
    {
      MutexLock lock(&mu_);
      if (over_ || broken_) {
        sending_ = false;
        return;
      }
      // Before the question: after a kick during it, its answer "nothing" is out of date.
      kicked_ = false;
    }
    std::optional<Outgoing> message;
    // Without the lock: the handler takes its own, and may call Finish or Read.
    if (handler_ != nullptr) message = handler_->NextMessage();
    if (SendOrStop(message)) return;
  }
}

// False when there may be a further message by now.
bool GenericCall::SendOrStop(const std::optional<Outgoing>& message) {
  MutexLock lock(&mu_);
  if (over_) {
    sending_ = false;
    return true;
  }
  if (message.has_value()) {
    // gRPC holds the buffer's slices itself; they may go before the tag is back.
    stream_->Write(ToByteBuffer(*message), Begin(&write_tag_));
    return true;
  }
  if (kicked_) return false;
  sending_ = false;
  if (finish_wanted_ && !finishing_) {
    // Here no write is under way and none follows. Once: a second Finish is an error to gRPC.
    finishing_ = true;
    stream_->Finish(final_status_, Begin(&finish_tag_));
  }
  return true;
}

void GenericCall::ReleaseIfOver() {
  std::unique_ptr<grpc::GenericServerContext> context;
  std::unique_ptr<grpc::GenericServerAsyncReaderWriter> stream;
  std::unique_ptr<grpc::Alarm> alarm;
  std::shared_ptr<StreamHandler> handler;
  {
    MutexLock lock(&mu_);
    --under_way_;
    if (!over_ || under_way_ > 0) return;
    // Moved out, so that destructors run without the lock: the handler's may call back.
    stream = std::move(stream_);
    context = std::move(context_);
    alarm = std::move(alarm_);
    handler = std::move(handler_);
  }
  handler.reset();
  alarm.reset();
  // The stream refers to the context, which goes last.
  stream.reset();
  context.reset();
  // Nothing of gRPC is left: the server may now shut down the queue.
  environment_->released();
}

}  // namespace ballast::server
