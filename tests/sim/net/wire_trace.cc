#include "tests/sim/net/wire_trace.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/reason.h"
#include "proto/convert/channel.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/status_convert.h"
#include "tests/sim/net/network.h"

namespace ballast::sim {
namespace {

std::string KindName(FrameKind kind) {
  switch (kind) {
    case FrameKind::kInit:
      return "Init";
    case FrameKind::kGradient:
      return "Gradient";
    default:
      return kind == FrameKind::kWeight ? "Weight" : "State";
  }
}

std::string NameOf(const DecodedFrame& decoded) {
  const FrameHeader& frame = decoded.header;
  return absl::StrCat(KindName(frame.kind), " of round ", frame.round, " extent ", frame.extent,
                      " at ", frame.offset_bytes);
}

std::string NameOf(const v1::ClientMessage& message) {
  if (message.has_hello()) return absl::StrCat("Hello version ", message.hello().round());
  if (message.has_begin()) return absl::StrCat("Begin ", message.begin().round());
  if (message.has_fetch_state()) return "Fetch";
  return message.has_leave() ? "Leave" : "";
}

std::string NameOf(const v1::ServerMessage& message) {
  if (message.has_welcome()) {
    return absl::StrCat("Welcome round ", message.welcome().round(), ", complete ",
                        absl::StrJoin(message.welcome().complete(), ","), ", lacks ",
                        absl::StrJoin(message.welcome().init_missing(), ","));
  }
  if (message.has_result()) {
    return absl::StrCat("Result ", message.result().round(),
                        message.result().applied() ? "" : " skipped");
  }
  if (message.has_done()) return absl::StrCat("Done ", message.done().round());
  if (message.has_refused()) {
    const v1::FrameRefused& refused = message.refused();
    return absl::StrCat("Refused ", ReasonName(static_cast<Reason>(refused.reason())), " round ",
                        refused.round(), " extent ", refused.extent(), " at ", refused.offset());
  }
  if (message.has_error()) return FromDetail(message.error()).ToString();
  return message.has_state() ? "State" : "";
}

template <typename Input>
void Trace(const World* world, NodeId node, const std::string& from,
           const absl::StatusOr<Input>& input) {
  if (!input.ok()) return;
  const std::string name = absl::visit([](const auto& message) { return NameOf(message); }, *input);
  if (!name.empty()) world->Trace(node, absl::StrCat("hears from ", from, ": ", name));
}

void TraceCall(const World* world, NodeId node, const std::string& from, const Stream& stream) {
  world->Trace(node, absl::StrCat("hears from ", from, ": ", stream.method));
}

}  // namespace

void TraceUp(const World* world, NodeId node, const Stream& stream, const Payload& message) {
  if (!world->tracing()) return;
  const std::string from = absl::StrCat("trainer ", stream.process);
  if (stream.timeout > 0) return TraceCall(world, node, from, stream);
  Trace(world, node, from, DecodeClientMessage(message, kMaxMessageBytes, kMaxMessageBytes));
}

void TraceDown(const World* world, NodeId node, const Stream& stream, const Payload& message) {
  if (!world->tracing()) return;
  const std::string from = absl::StrCat("server index ", stream.server);
  if (stream.timeout > 0) return TraceCall(world, node, from, stream);
  Trace(world, node, from, DecodeServerMessage(message, kMaxMessageBytes, kMaxMessageBytes));
}

}  // namespace ballast::sim
