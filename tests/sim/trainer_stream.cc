// SimTrainer: what comes from a server and what goes to it; the mirror of client/cpp's
// session_events.cc. See trainer.h. Thread safety: one thread.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/crc32c.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "tests/sim/trainer.h"

namespace ballast::sim {
namespace {

absl::Status Broke(absl::string_view what) {
  return ReasonedError(absl::StatusCode::kInternal, Reason::kBadFrame, what);
}

}  // namespace

// --- Messages -----------------------------------------------------------------------------------

void SimTrainer::OnDownClosed(const StreamPtr& stream, const absl::Status& status) {
  if (!alive_) return;
  for (size_t i = 0; i < servers_.size(); ++i) {
    if (servers_[i].stream != stream || !error_.ok()) continue;
    const bool typed = ReasonOf(status) != Reason::kUnspecified ||
                       status.GetPayload(kErrorDetailTypeUrl).has_value();
    Lose(i, typed ? status
                  : ReasonedError(absl::StatusCode::kUnavailable, Reason::kServerLost,
                                  absl::StrCat("is gone: ", status.message())));
  }
}

void SimTrainer::OnDown(const StreamPtr& stream, DownMessage message) {
  if (!alive_) return;
  for (size_t i = 0; i < servers_.size(); ++i) {
    Server& server = servers_[i];
    if (server.stream != stream || !error_.ok() || server.gave_up) continue;
    server.last_heard = Now();
    if (const absl::Status status = OnMessage(i, message); !status.ok()) Lose(i, status);
    GoOn();
    return;
  }
}

absl::Status SimTrainer::OnMessage(size_t index, const DownMessage& message) {
  Server* const server = &servers_[index];
  const bool stepping = activity_ == Activity::kStep;
  if (const auto* welcome = std::get_if<server::SlotWelcome>(&message)) {
    return OnWelcome(index, *welcome);
  }
  if (const auto* ack = std::get_if<AckMessage>(&message)) return OnAck(server, *ack);
  if (const auto* result = std::get_if<RoundResult>(&message)) {
    if (!stepping) return Broke("sent a result of no round");
    context_.oracle->OnResult(slot_, *result);
    return progress_->OnResult(index, *result, Now());
  }
  if (const auto* error = std::get_if<ErrorMessage>(&message)) {
    server->gave_up = true;
    return error->status;
  }
  if (const auto* state = std::get_if<server::StateInfo>(&message)) return OnState(server, *state);
  if (const auto* refused = std::get_if<server::FrameRefused>(&message)) {
    return OnRefused(server, *refused);
  }
  if (const auto* done = std::get_if<server::RoundDone>(&message)) {
    if (!stepping) return Broke("ended a round that is not running");
    v1::RoundDone wire;
    wire.set_round(done->round);
    return progress_->OnDone(index, wire);
  }
  if (const auto* piece = std::get_if<PieceMessage>(&message)) return OnPiece(index, *piece);
  return absl::OkStatus();  // A heartbeat.
}

absl::Status SimTrainer::OnAck(Server* server, const AckMessage& ack) {
  server->plan.OnAck(ack.received_bytes, ack.round, ack.window_base);
  if (server->restoring && server->plan.all_received()) BeginRound(server);
  Kick(server);
  return absl::OkStatus();
}

absl::Status SimTrainer::OnRefused(Server* server, const server::FrameRefused& refused) {
  if (refused.reason == Reason::kStaleEpoch) {
    return ReasonedError(absl::StatusCode::kFailedPrecondition, refused.reason, refused.message);
  }
  const bool init = server->send_kind == FrameKind::kInit;
  if (refused.reason == Reason::kConflict && init && record_.epoch != 1) return absl::OkStatus();
  const bool sending = activity_ == Activity::kStep || activity_ == Activity::kUpload;
  if (!sending && refused.reason != Reason::kDuplicate && refused.round >= round_) {
    return Broke(absl::StrCat("refused bytes that it had acknowledged: ",
                              ReasonName(refused.reason), ": ", refused.message));
  }
  const absl::Status status = server->plan.OnRefused(refused.reason, refused.round, refused.extent,
                                                     refused.offset_bytes, refused.message);
  Kick(server);
  return status;
}

absl::Status SimTrainer::OnState(Server* server, const server::StateInfo& info) {
  if (activity_ != Activity::kFetch || server->has_info) {
    return Broke("sent state that was not asked for");
  }
  if (info.round != round_ || info.bytes != server->expected_bytes) {
    return Broke("offers another state than was asked for");
  }
  server->has_info = true;
  if (initialized_) context_.oracle->OnState(slot_, info);
  return absl::OkStatus();
}

absl::Status SimTrainer::OnPiece(size_t index, const PieceMessage& piece) {
  Server& server = servers_[index];
  if (activity_ == Activity::kStep) {
    BALLAST_RETURN_IF_ERROR(progress_->OnWeight(index, piece.round, piece.bytes->size(), Now()));
  } else {
    server.received_bytes += piece.bytes->size();
    if (activity_ != Activity::kFetch || !server.has_info || piece.round != round_ ||
        server.received_bytes > server.expected_bytes) {
      return Broke("sent bytes that were not asked for");
    }
  }
  if (piece.kind == FrameKind::kWeight) {
    context_.oracle->OnWeights(slot_, piece.round, piece.extent, *piece.bytes);
    weights_[piece.extent] = *piece.bytes;
    return absl::OkStatus();
  }
  const size_t elements = context_.layout->extents()[piece.extent].elements;
  std::memcpy(fetched_[piece.extent].data() + piece.array * elements + piece.offset_bytes / 4,
              piece.bytes->data(), piece.bytes->size());
  return absl::OkStatus();
}

void SimTrainer::Kick(Server* server) {
  const bool sending = activity_ == Activity::kStep || activity_ == Activity::kUpload;
  if (!sending || !server->welcomed || !error_.ok()) return;
  while (const std::optional<client::FrameRange> range = server->plan.Next()) {
    SendFrame(server, *range);
  }
}

void SimTrainer::SendFrame(Server* server, const client::FrameRange& range) {
  const bool init = server->send_kind == FrameKind::kInit;
  const std::vector<char>& from = init ? weights_[range.extent] : grads_[range.extent];
  std::string bytes(from.data() + range.offset, range.length);
  FrameMessage frame;
  frame.header = {.job = context_.plan->job,
                  .epoch = record_.epoch,
                  .slot = slot_,
                  .round = round_,
                  .extent = range.extent,
                  .incarnation = who_.incarnation,
                  .offset_bytes = range.offset,
                  .length_bytes = range.length,
                  .dtype = context_.layout->extents()[range.extent].dtype,
                  .kind = server->send_kind};
  frame.header.crc32c = Crc32c(bytes.data(), bytes.size(), IdentityCrc(frame.header));
  Random& random = context_.world->random();
  const bool corrupt =
      !init && !server->stream->corrupted && random.OneIn(context_.swarm->faults.corrupt_one_in);
  if (corrupt) {
    server->stream->corrupted = true;
    context_.world->Met(Cover::kFrameDamaged);
    bytes[random.Below(bytes.size())] ^= static_cast<char>(1 << random.Below(8));
  }
  frame.payload = Payload::FromString(std::move(bytes));
  context_.network->SendUp(server->stream, std::move(frame));
  if (context_.mutant == Mutant::kFreeGradients && !init) {
    std::fill_n(grads_[range.extent].begin() + range.offset, range.length, 0);
  }
}

}  // namespace ballast::sim
