// What a session's completion-queue thread receives and sends, message by message.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/src/session.h"
#include "common/base/crc32c.h"
#include "common/base/names.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "proto/convert/channel.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/status_convert.h"

namespace ballast::client {
namespace {

constexpr uint32_t kFirstEpoch = 1;

}  // namespace

void Session::OnClosed(const StreamKey& key, const absl::Status& status) {
  changed_.NotifyAll();
  Server& server = servers_[key.server];
  if (key.generation != server.generation || !error_.ok()) return;
  const Reason reason = ReasonOf(status);
  const bool stale = durable_ && reason == Reason::kStaleEpoch;
  if (leaving_ && !stale && (server.leave_sent || !durable_)) return;
  const bool typed = reason != Reason::kUnspecified;
  if (typed || (durable_ && status.GetPayload(kErrorDetailTypeUrl).has_value())) {
    Lose(key.server, status);
    return;
  }
  const std::string how =
      status.ok() ? "closed the stream" : absl::StrCat("is gone: ", status.message());
  Lose(key.server, ServerLost(server, how));
}

void Session::OnMessage(const StreamKey& key, const grpc::ByteBuffer& message) {
  const size_t index = key.server;
  Server& server = servers_[index];
  if (key.generation != server.generation || !error_.ok() || server.gave_up) return;
  server.last_heard = std::chrono::steady_clock::now();
  const absl::StatusOr<ServerInput> input =
      DecodeServerMessage(message, limits_.chunk_bytes, kMaxMessageBytes);
  absl::Status status;
  if (!input.ok()) {
    status = ServerBroke(server, absl::StrCat("sent a ", input.status().message()));
  } else if (absl::holds_alternative<DecodedFrame>(*input)) {
    status = OnFrame(index, absl::get<DecodedFrame>(*input));
  } else {
    status = OnControl(index, absl::get<v1::ServerMessage>(*input));
  }
  if (!status.ok()) Lose(index, status);
  if (ActivityDone()) changed_.NotifyAll();
}

absl::Status Session::OnControl(size_t index, const v1::ServerMessage& message) {
  Server* const server = &servers_[index];
  const bool stepping = activity_ == Activity::kStep;
  switch (message.kind_case()) {
    case v1::ServerMessage::kWelcome:
      return OnWelcome(index, message.welcome());
    case v1::ServerMessage::kAck:
      return OnAck(server, message.ack());
    case v1::ServerMessage::kResult:
      if (!stepping) return ServerBroke(*server, "sent a result of no round");
      return progress_->OnResult(index, RoundResultFromProto(message.result()),
                                 std::chrono::steady_clock::now());
    case v1::ServerMessage::kError:
      server->gave_up = true;
      return FromDetail(message.error());
    case v1::ServerMessage::kHeartbeat:
      return absl::OkStatus();
    case v1::ServerMessage::kState:
      return OnStateInfo(server, message.state());
    case v1::ServerMessage::kRefused:
      return OnRefused(server, message.refused());
    case v1::ServerMessage::kTrainer:
      OnTrainerNews(message.trainer());
      return absl::OkStatus();
    case v1::ServerMessage::kDone:
      if (!stepping) return ServerBroke(*server, "ended a round that is not running");
      return progress_->OnDone(index, message.done());
    default:
      return ServerBroke(*server, "sent a message of an unknown kind");
  }
}

absl::Status Session::OnAck(Server* server, const v1::Ack& ack) {
  server->plan->OnAck(ack.received_bytes(), ack.round(), ack.window_base());
  if (server->restoring && server->plan->all_received()) BeginRound(server);
  server->stream->Kick();
  if (activity_ == Activity::kStep && AllPushed()) {
    progress_->OnPushed(std::chrono::steady_clock::now());
  }
  return absl::OkStatus();
}

bool Session::AllPushed() const {
  for (size_t i = 0; i < servers_.size(); ++i) {
    const Server& server = servers_[i];
    const bool pushed = server.welcomed && !server.restoring && server.plan->all_received();
    if (!pushed && !progress_->done(i)) return false;
  }
  return true;
}

absl::Status Session::OnRefused(Server* server, const v1::FrameRefused& refused) {
  ++counters_.frames_refused;
  const Reason reason = static_cast<Reason>(refused.reason());
  if (durable_ && reason == Reason::kStaleEpoch) {
    return ReasonedError(absl::StatusCode::kFailedPrecondition, reason, refused.message());
  }
  // The same bytes have another checksum in another epoch, and what the server keeps of the slot's
  // last process is fetched when the upload is over.
  if (reason == Reason::kConflict && server->send_kind == FrameKind::kInit &&
      epoch_ != kFirstEpoch) {
    return absl::OkStatus();
  }
  const bool sending = activity_ == Activity::kStep || activity_ == Activity::kUpload;
  if (!sending && reason != Reason::kDuplicate && refused.round() >= round_) {
    // The memory has been given back, so the frame cannot be sent again.
    return ServerBroke(*server, absl::StrCat("refused bytes that it had acknowledged: ",
                                             ReasonName(reason), ": ", refused.message()));
  }
  const absl::Status status = server->plan->OnRefused(reason, refused.round(), refused.extent(),
                                                      refused.offset(), refused.message());
  server->stream->Kick();
  return status;
}

absl::Status Session::OnStateInfo(Server* server, const v1::StateInfo& info) {
  if (activity_ != Activity::kFetch || server->has_info) {
    return ServerBroke(*server, "sent state that was not asked for");
  }
  if (info.round() != round_ || info.bytes() != server->expected_bytes) {
    return ServerBroke(
        *server, absl::StrCat("offers ", info.bytes(), " bytes of version ", info.round(),
                              ", asked for ", server->expected_bytes, " of version ", round_));
  }
  server->has_info = true;
  opt_step_ = info.opt_step();
  // Every server counts the steps of every tensor that it owns a part of.
  const size_t tensors = layout_.tensors().size();
  tensor_step_.resize(tensors);
  for (size_t i = 0; i < std::min<size_t>(tensors, info.tensor_step_size()); ++i) {
    tensor_step_[i] = std::max<uint64_t>(tensor_step_[i], info.tensor_step(static_cast<int>(i)));
  }
  return absl::OkStatus();
}

absl::Status Session::OnFrame(size_t index, const DecodedFrame& frame) {
  Server& server = servers_[index];
  const FrameHeader& header = frame.header;
  if (header.job != job_ || header.slot != options_.slot) {
    return ServerBroke(server, absl::StrCat("sent a frame for slot ", header.slot, " of job ",
                                            JobIdText(header.job)));
  }
  if (header.extent >= owner_.size() || owner_[header.extent] != server.id) {
    return ServerBroke(server, absl::StrCat("sent extent ", header.extent, ", not its own"));
  }
  counters_.payload_down_bytes += frame.payload.bytes();
  switch (header.kind) {
    case FrameKind::kWeight:
      return OnWeightFrame(index, frame);
    case FrameKind::kState:
      return OnStateFrame(&server, frame);
    default:
      return ServerBroke(server, "sent a frame of a kind that only trainers send");
  }
}

absl::Status Session::OnWeightFrame(size_t index, const DecodedFrame& frame) {
  Server& server = servers_[index];
  if (frame.header.dtype != layout_.extents()[frame.header.extent].dtype) {
    return ServerBroke(server, absl::StrCat("sent weights as ", DTypeName(frame.header.dtype)));
  }
  if (activity_ == Activity::kStep) {
    BALLAST_RETURN_IF_ERROR(progress_->OnWeight(index, frame.header.round, frame.payload.bytes(),
                                                std::chrono::steady_clock::now()));
  } else {
    BALLAST_RETURN_IF_ERROR(CountFetched(&server, frame));
  }
  return Store(server, frame, weights_);
}

absl::Status Session::OnStateFrame(Server* server, const DecodedFrame& frame) {
  if (frame.header.dtype != ::ballast::DType::kF32 || frame.header.array >= states_.size()) {
    return ServerBroke(*server, absl::StrCat("sent state array ", frame.header.array, " as ",
                                             DTypeName(frame.header.dtype)));
  }
  BALLAST_RETURN_IF_ERROR(CountFetched(server, frame));
  return Store(*server, frame, states_[frame.header.array]);
}

absl::Status Session::CountFetched(Server* server, const DecodedFrame& frame) {
  server->received_bytes += frame.payload.bytes();
  if (activity_ != Activity::kFetch || !server->has_info || frame.header.round != round_ ||
      server->received_bytes > server->expected_bytes) {
    return ServerBroke(*server, "sent bytes that were not asked for");
  }
  return absl::OkStatus();
}

absl::Status Session::Store(const Server& server, const DecodedFrame& frame,
                            const std::vector<void*>& destinations) {
  const FrameHeader& header = frame.header;
  const std::vector<TensorPiece> pieces = PiecesOf(layout_, header.extent, DTypeBytes(header.dtype),
                                                   header.offset_bytes, header.length_bytes);
  if (pieces.empty() || destinations.size() != layout_.tensors().size()) {
    return ServerBroke(server,
                       absl::StrCat("sent ", header.length_bytes, " bytes at ", header.offset_bytes,
                                    " of extent ", header.extent, ", which has no such"));
  }
  uint32_t crc = IdentityCrc(header);
  counters_.copied_down_bytes += Scatter(frame.payload, pieces, destinations, &crc);
  const absl::Status intact = VerifyChecksum(frame, crc);
  if (intact.ok()) return absl::OkStatus();
  ErrorFields fields = FieldsOf(intact);
  fields.job = options_.job;
  fields.server = static_cast<int>(server.id);
  return ReasonedError(intact.code(), Reason::kBadChecksum,
                       absl::StrCat("server ", server.id, ": ", intact.message()), fields);
}

void Session::SendControl(Server* server, const v1::ClientMessage& message) {
  server->control.push_back(SerializeMessage(message));
}

void Session::SendLeave(Server* server) {
  v1::ClientMessage message;
  message.mutable_leave()->set_round(round_);
  SendControl(server, message);
  server->leave_sent = true;
  server->stream->HalfClose();
}

std::optional<grpc::ByteBuffer> Session::NextMessage(const StreamKey& key) {
  Server& server = servers_[key.server];
  if (key.generation != server.generation) return std::nullopt;
  if (!server.control.empty()) {
    grpc::ByteBuffer message = std::move(server.control.front());
    server.control.pop_front();
    return message;
  }
  const bool sending = activity_ == Activity::kStep || activity_ == Activity::kUpload;
  if (!sending || !server.welcomed || !error_.ok()) return std::nullopt;
  const std::optional<FrameRange> range = server.plan->Next();
  if (!range.has_value()) return std::nullopt;
  return FormFrame(server.send_kind, *range);
}

grpc::ByteBuffer Session::FormFrame(FrameKind kind, const FrameRange& range) {
  FrameHeader header;
  header.job = job_;
  header.epoch = epoch_;
  header.slot = options_.slot;
  header.round = round_;
  header.extent = range.extent;
  header.incarnation = incarnation_;
  header.offset_bytes = range.offset;
  header.length_bytes = range.length;
  header.dtype = layout_.extents()[range.extent].dtype;
  header.kind = kind;
  // Right before the write, so that the kernel's copy finds the bytes in the cache.
  header.crc32c = IdentityCrc(header);
  std::vector<grpc::Slice> slices;
  for (const TensorPiece& piece :
       PiecesOf(layout_, range.extent, DTypeBytes(header.dtype), range.offset, range.length)) {
    const char* const tensor = kind == FrameKind::kInit
                                   ? static_cast<const char*>(weights_[piece.tensor])
                                   : grads_[piece.tensor];
    const char* const data = tensor + piece.tensor_offset;
    header.crc32c = Crc32c(data, piece.bytes, header.crc32c);
    slices.push_back(lease_.Wrap(data, piece.bytes));
  }
  counters_.payload_up_bytes += range.length;
  step_up_bytes_ += range.length;
  grpc::ByteBuffer message = MakeFrame(header, slices);
  counters_.copied_up_bytes += range.length - SharedBytes(message, slices);
  return message;
}

}  // namespace ballast::client
