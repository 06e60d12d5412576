// Target frame: messages of the Data stream, of clients and of servers, through the frame codec.
// The hand-written reader's frames are written the same, and stock protobuf reads the same from
// them.
#include <cstdint>
#include <cstring>
#include <utility>

#include "ballast/v1/data.pb.h"
#include "common/base/check.h"
#include "common/bytes/payload.h"
#include "proto/convert/frame_codec.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/kinds.h"

namespace ballast::fuzz {
namespace {

constexpr size_t kFrameMax = 512;
constexpr size_t kControlMax = 4096;

// The bytes in pieces of `piece_bytes`, as slices may come.
Payload InPieces(absl::string_view bytes, size_t piece_bytes) {
  auto owner = std::make_shared<const std::string>(bytes);
  Payload::Pieces pieces;
  for (size_t at = 0; at < owner->size(); at += piece_bytes) {
    pieces.push_back({owner->data() + at, std::min(piece_bytes, owner->size() - at)});
  }
  return Payload(std::move(pieces), std::move(owner));
}

bool SameHeader(const FrameHeader& a, const v1::DataFrame& b) {
  return a.job == b.job() && a.epoch == b.epoch() && a.slot == b.slot() && a.round == b.round() &&
         a.extent == b.extent() && a.incarnation == b.incarnation() &&
         a.offset_bytes == b.offset() && a.length_bytes == b.length() &&
         static_cast<int>(a.dtype) == b.dtype() && static_cast<int>(a.kind) == b.kind() &&
         a.array == b.array() && a.crc32c == b.crc32c();
}

void CheckFrame(const DecodedFrame& frame, absl::string_view message) {
  const FrameHeader& header = frame.header;
  BALLAST_CHECK(header.length_bytes == frame.payload.bytes());
  BALLAST_CHECK(frame.payload.bytes() <= kFrameMax);
  BALLAST_CHECK(header.dtype != kNoDType && header.kind != FrameKind::kUnspecified);
  v1::ClientMessage stock;  // Field 15 is the same in both.
  if (stock.ParseFromArray(message.data(), static_cast<int>(message.size()))) {
    BALLAST_CHECK(stock.has_frame() && SameHeader(header, stock.frame()));
    BALLAST_CHECK(stock.frame().payload() == frame.payload.ToString());
  }
  const Payload again = Payload::FromString(EncodeFramePrefix(header) + frame.payload.ToString());
  const auto decoded = DecodeClientMessage(again, kFrameMax, kControlMax);
  BALLAST_CHECK(decoded.ok() && absl::holds_alternative<DecodedFrame>(*decoded));
  const auto& second = absl::get<DecodedFrame>(*decoded);
  BALLAST_CHECK(EncodeFramePrefix(second.header) == EncodeFramePrefix(header));
  BALLAST_CHECK(FrameCrc(second.header, second.payload) == FrameCrc(header, frame.payload));
  BALLAST_CHECK(second.header.crc32c == header.crc32c);
}

template <typename Message, typename Input>
void CheckDecoded(const absl::StatusOr<Input>& input, absl::string_view message) {
  if (!input.ok()) {
    BALLAST_CHECK(input.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  if (absl::holds_alternative<DecodedFrame>(*input)) {
    return CheckFrame(absl::get<DecodedFrame>(*input), message);
  }
  const auto& control = absl::get<Message>(*input);
  BALLAST_CHECK(control.kind_case() != Message::KIND_NOT_SET && !control.has_frame());
  BALLAST_CHECK(message.size() <= kControlMax);
}

class Frame : public FuzzTarget {
 public:
  std::vector<std::string> Seeds() const override {
    v1::ClientMessage begin;
    begin.mutable_begin()->set_round(7);
    begin.mutable_begin()->add_hyper()->add_value(0.1);
    begin.mutable_begin()->set_presence("\x05");
    v1::ServerMessage result;
    result.mutable_result()->set_round(7);
    result.mutable_result()->mutable_first_nonfinite()->set_extent(3);
    v1::ServerMessage refused;
    refused.mutable_refused()->set_reason(v1::REASON_DUPLICATE);
    refused.mutable_refused()->set_message("it is in");
    return {JoinKind(0, begin),
            JoinKind(1, result),
            JoinKind(1, refused),
            JoinKind(0, Full("")),
            JoinKind(0, Full("12345678")),
            JoinKind(1, Full(std::string(kFrameMax, 'x')))};
  }

  void Run(absl::string_view input) const override {
    const KindInput parts = SplitKind(input, 2);
    const Payload message = InPieces(parts.rest, 1 + parts.rest.size() / 3);
    if (parts.kind == 0) {
      CheckDecoded<v1::ClientMessage>(DecodeClientMessage(message, kFrameMax, kControlMax),
                                      parts.rest);
    } else {
      CheckDecoded<v1::ServerMessage>(DecodeServerMessage(message, kFrameMax, kControlMax),
                                      parts.rest);
    }
  }

  std::string Mutate(const std::string& input, FuzzRandom* random) const override {
    return MutateKind({&client_, &server_}, input, random);
  }

 private:
  // A frame with every field.
  static std::string Full(const std::string& payload) {
    const FrameHeader header{.job = 1,
                             .epoch = 2,
                             .slot = 3,
                             .round = 4,
                             .extent = 5,
                             .incarnation = 6,
                             .offset_bytes = 64,
                             .length_bytes = static_cast<uint32_t>(payload.size()),
                             .dtype = DType::kBF16,
                             .kind = FrameKind::kState,
                             .array = 1,
                             .crc32c = 7};
    return EncodeFramePrefix(header) + payload;
  }

  const v1::ClientMessage client_;
  const v1::ServerMessage server_;
};

}  // namespace

std::unique_ptr<FuzzTarget> FrameTarget() { return std::make_unique<Frame>(); }

}  // namespace ballast::fuzz
