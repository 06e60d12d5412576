#include "tests/sim/nodes/stream_watch.h"

#include <string>

#include "common/base/reason.h"
#include "proto/convert/channel.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/job_convert.h"

namespace ballast::sim {

void StreamWatch::OnUp(const Payload& message) {
  if (said_hello_) return;
  const auto input = DecodeClientMessage(message, kMaxMessageBytes, kMaxMessageBytes);
  const auto* const control = input.ok() ? absl::get_if<v1::ClientMessage>(&*input) : nullptr;
  if (control == nullptr || !control->has_hello()) return;
  said_hello_ = true;
  hello_ = control->hello();
}

void StreamWatch::OnDown(const Outgoing& message) {
  if (message.body.owner() != nullptr) process_->KeepWhileSent(message.body.owner());
  if (message.body.bytes() > 0) return;
  v1::ServerMessage control;
  if (!control.ParseFromString(message.head)) {
    return world_->Red("a server sends a message of no kind");
  }
  OnControl(control);
}

void StreamWatch::OnControl(const v1::ServerMessage& message) {
  switch (message.kind_case()) {
    case v1::ServerMessage::kWelcome:
      return OnWelcome(message.welcome());
    case v1::ServerMessage::kResult:
      return OnResult(RoundResultFromProto(message.result()));
    case v1::ServerMessage::kRefused:
      return OnRefused(static_cast<Reason>(message.refused().reason()));
    case v1::ServerMessage::kError:
      if (message.error().reason() != v1::REASON_BAD_FRAME) return;
      return world_->Red("a trainer breaks the protocol: " + message.error().message());
    default:
      return;
  }
}

void StreamWatch::OnWelcome(const v1::Welcome& welcome) {
  welcome_round_ = welcome.round();
  const server::EpochRecord& epoch = process_->fsm().plan().epoch;
  if (epoch.epoch == hello_.epoch() && !epoch.Holds(hello_.slot(), hello_.incarnation())) {
    world_->Red("a process that is no member gets a stream");
  }
}

void StreamWatch::OnResult(const RoundResult& result) const {
  const server::RoundFsm& fsm = process_->fsm();
  uint64_t all = 0;
  for (const uint32_t extent : fsm.owned()) all += fsm.layout().ExtentWireBytes(extent);
  if (result.applied && result.weight_bytes < all) world_->Met(Cover::kUntouchedExtent);
  if (result.round < welcome_round_) world_->Met(Cover::kLastRoundAgain);
}

void StreamWatch::OnRefused(Reason reason) const {
  if (reason == Reason::kDuplicate) world_->Met(Cover::kDuplicateFrame);
  if (reason == Reason::kOutOfWindow) world_->Met(Cover::kOutOfWindow);
  if (reason == Reason::kBadChecksum) world_->Met(Cover::kBadChecksum);
  if (reason == Reason::kBadFrame) world_->Red("a trainer sends frames that are not its own");
}

}  // namespace ballast::sim
