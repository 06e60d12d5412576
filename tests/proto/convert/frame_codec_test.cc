// Frames: golden bytes, equality with stock protobuf, and every way a message can be malformed.
#include "tests/proto/convert/grpc_frames.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/base/reason.h"

namespace ballast {
namespace {

constexpr size_t kMaxFrameBytes = 1 << 20;
constexpr size_t kMaxControlBytes = 4096;

grpc::ByteBuffer Buffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

// The same bytes in slices of `piece_bytes`, with empty slices in between.
grpc::ByteBuffer Fragments(const std::string& bytes, size_t piece_bytes) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += piece_bytes) {
    slices.emplace_back(bytes.substr(at, piece_bytes));
    slices.emplace_back(std::string());
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Bytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

FrameHeader SmallHeader(const std::string& payload) {
  FrameHeader header;
  header.job = 0x0123456789abcdef;
  header.epoch = 1;
  header.slot = 2;
  header.round = 41;
  header.extent = 7;
  header.incarnation = 0xfedcba9876543210;
  header.offset_bytes = 128;
  header.length_bytes = static_cast<uint32_t>(payload.size());
  header.dtype = DType::kBF16;
  header.kind = FrameKind::kGradient;
  header.array = 3;
  header.crc32c = Crc32c(payload.data(), payload.size(), IdentityCrc(header));
  return header;
}

std::string Encode(const FrameHeader& header, const std::string& payload) {
  const grpc::Slice slice(payload);
  return Bytes(MakeFrame(header, {slice}));
}

void ExpectSame(const FrameHeader& a, const FrameHeader& b) {
  EXPECT_EQ(a.job, b.job);
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.slot, b.slot);
  EXPECT_EQ(a.round, b.round);
  EXPECT_EQ(a.extent, b.extent);
  EXPECT_EQ(a.incarnation, b.incarnation);
  EXPECT_EQ(a.offset_bytes, b.offset_bytes);
  EXPECT_EQ(a.length_bytes, b.length_bytes);
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.array, b.array);
  EXPECT_EQ(a.crc32c, b.crc32c);
}

absl::StatusOr<DecodedFrame> DecodeFrame(const grpc::ByteBuffer& buffer) {
  auto input = DecodeClientMessage(buffer, kMaxFrameBytes, kMaxControlBytes);
  if (!input.ok()) return input.status();
  if (!absl::holds_alternative<DecodedFrame>(*input)) return absl::NotFoundError("control");
  return absl::get<DecodedFrame>(*std::move(input));
}

void ExpectBadFrame(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(ReasonOf(status), Reason::kBadFrame) << status;
}

v1::DataFrame StockFrame(const FrameHeader& header, const std::string& payload) {
  v1::DataFrame frame;
  frame.set_job(header.job);
  frame.set_epoch(header.epoch);
  frame.set_slot(header.slot);
  frame.set_round(header.round);
  frame.set_extent(header.extent);
  frame.set_incarnation(header.incarnation);
  frame.set_offset(header.offset_bytes);
  frame.set_length(header.length_bytes);
  frame.set_dtype(static_cast<v1::DType>(header.dtype));
  frame.set_kind(static_cast<v1::FrameKind>(header.kind));
  frame.set_array(header.array);
  frame.set_crc32c(header.crc32c);
  frame.set_payload(payload);
  return frame;
}

TEST(FrameCodec, BytesOfVersionOneStayAsTheyAre) {
  const std::string payload = "abcd";
  EXPECT_EQ(absl::BytesToHexString(Encode(SmallHeader(payload), payload)),
            "7a45"                // field 15 of the message, 69 bytes
            "09efcdab8967452301"  // job
            "1501000000"          // epoch
            "1d02000000"          // slot
            "212900000000000000"  // round
            "2d07000000"          // extent
            "311032547698badcfe"  // incarnation
            "3d80000000"          // offset
            "4504000000"          // length
            "4802"                // dtype
            "5001"                // kind
            "5803"                // array
            "65944281af"          // crc32c
            "7a0461626364");      // payload
}

TEST(FrameCodec, IdentityCrcCoversTheDocumentedBytes) {
  const FrameHeader header = SmallHeader("abcd");
  const std::string identity = absl::HexStringToBytes(
      "efcdab8967452301"  // job
      "01000000"          // epoch
      "2900000000000000"  // round
      "07000000"          // extent
      "02000000"          // slot
      "1032547698badcfe"  // incarnation
      "80000000"          // offset
      "04000000"          // length
      "02"                // dtype
      "01"                // kind
      "03");              // array
  EXPECT_EQ(IdentityCrc(header), Crc32c(identity.data(), identity.size()));
}

TEST(FrameCodec, StockProtobufWritesTheSameBytes) {
  for (const std::string& payload : {std::string("abcd"), std::string(300, 'x'), std::string()}) {
    FrameHeader header = SmallHeader(payload);
    for (const uint32_t slot : {0u, 5u}) {
      header.slot = slot;
      v1::ClientMessage message;
      *message.mutable_frame() = StockFrame(header, payload);
      EXPECT_EQ(Encode(header, payload), message.SerializeAsString());
      v1::ServerMessage reply;
      *reply.mutable_frame() = StockFrame(header, payload);
      EXPECT_EQ(Encode(header, payload), reply.SerializeAsString());
    }
  }
}

TEST(FrameCodec, StockProtobufReadsWhatWeWrite) {
  const std::string payload(1000, 'p');
  const FrameHeader header = SmallHeader(payload);
  v1::ClientMessage message;
  ASSERT_TRUE(message.ParseFromString(Encode(header, payload)));
  EXPECT_EQ(message.frame().SerializeAsString(), StockFrame(header, payload).SerializeAsString());
}

TEST(FrameCodec, ReadsBackFromAnyFragmentation) {
  std::string payload(700, '\0');
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<char>(i * 37);
  const FrameHeader header = SmallHeader(payload);
  const std::string bytes = Encode(header, payload);
  for (size_t piece = 1; piece <= bytes.size(); piece = piece < 80 ? piece + 1 : piece * 2) {
    auto frame = DecodeFrame(Fragments(bytes, piece));
    ASSERT_TRUE(frame.ok()) << frame.status();
    ExpectSame(frame->header, header);
    EXPECT_EQ(frame->payload.ToString(), payload);
    EXPECT_TRUE(CheckFrameCrc(frame->header, FrameCrc(frame->header, frame->payload)).ok());
  }
}

TEST(FrameCodec, PayloadOutlivesItsByteBuffer) {
  const std::string payload(100000, 'z');
  absl::StatusOr<DecodedFrame> frame;
  {
    const grpc::ByteBuffer buffer = Fragments(Encode(SmallHeader(payload), payload), 1000);
    frame = DecodeFrame(buffer);
  }
  ASSERT_TRUE(frame.ok());
  EXPECT_EQ(frame->payload.ToString(), payload);
}

TEST(FrameCodec, PayloadIsNotCopiedOnTheWayOut) {
  const std::string memory(100000, 'm');
  const grpc::Slice slice(memory.data(), memory.size(), grpc::Slice::STATIC_SLICE);
  const grpc::ByteBuffer buffer = MakeFrame(SmallHeader(memory), {slice});
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(buffer.Dump(&slices).ok());
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices[1].begin(), reinterpret_cast<const uint8_t*>(memory.data()));
}

TEST(FrameCodec, HeaderFieldsMayComeInAnyOrderAndUnknownOnesAreSkipped) {
  const std::string payload = "abcd";
  const FrameHeader header = SmallHeader(payload);
  // Fields of the golden frame, in stock order.
  const std::string bytes = Encode(header, payload);
  std::vector<std::string> fields;
  const size_t starts[] = {2, 11, 16, 21, 30, 35, 44, 49, 54, 56, 58, 60, 65};
  for (size_t i = 0; i + 1 < std::size(starts); ++i) {
    fields.push_back(bytes.substr(starts[i], starts[i + 1] - starts[i]));
  }
  fields.push_back(std::string("\x6a\x03new", 5));   // field 13, bytes
  fields.push_back(std::string("\x70\x96\x01", 3));  // field 14, varint
  fields.push_back(std::string("\x81\x01\x01\x02\x03\x04\x05\x06\x07\x08", 10));  // field 16
  fields.push_back(std::string("\x8d\x01\x01\x02\x03\x04", 6));  // field 17, fixed32
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) {
    std::shuffle(fields.begin(), fields.end(), random);
    std::string body;
    for (const std::string& field : fields) body += field;
    body += bytes.substr(starts[12]);
    auto frame =
        DecodeFrame(Buffer("\x7a" + std::string(1, static_cast<char>(body.size())) + body));
    ASSERT_TRUE(frame.ok()) << frame.status();
    ExpectSame(frame->header, header);
    EXPECT_TRUE(CheckFrameCrc(frame->header, FrameCrc(frame->header, frame->payload)).ok());
  }
}

TEST(FrameCodec, TruncationAtEveryByteIsRefused) {
  const std::string payload = "abcdefgh";
  const std::string bytes = Encode(SmallHeader(payload), payload);
  for (size_t length = 0; length < bytes.size(); ++length) {
    SCOPED_TRACE(length);
    ExpectBadFrame(DecodeFrame(Buffer(bytes.substr(0, length))).status());
  }
}

TEST(FrameCodec, EveryFlippedBitIsRefusedOrFoundByTheChecksum) {
  const std::string payload = "abcdefgh";
  const FrameHeader header = SmallHeader(payload);
  const std::string bytes = Encode(header, payload);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    SCOPED_TRACE(bit);
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
    auto client = DecodeClientMessage(Buffer(flipped), kMaxFrameBytes, kMaxControlBytes);
    auto server = DecodeServerMessage(Buffer(flipped), kMaxFrameBytes, kMaxControlBytes);
    ASSERT_EQ(client.ok(), server.ok());
    if (!client.ok()) {
      ExpectBadFrame(client.status());
      continue;
    }
    ASSERT_TRUE(absl::holds_alternative<DecodedFrame>(*client));
    ASSERT_TRUE(absl::holds_alternative<DecodedFrame>(*server));
    const auto& decoded = absl::get<DecodedFrame>(*client);
    const absl::Status status =
        CheckFrameCrc(decoded.header, FrameCrc(decoded.header, decoded.payload));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(ReasonOf(status), Reason::kBadChecksum);
  }
}

struct Malformed {
  const char* name;
  std::string frame;  // the DataFrame's bytes
};

TEST(FrameCodec, MalformedFramesAreRefused) {
  const std::string good = Encode(SmallHeader("abcd"), "abcd").substr(2);
  const std::string head = good.substr(0, good.size() - 6);
  const std::string tail = good.substr(good.size() - 6);
  const Malformed cases[] = {
      {"payload twice", good + tail},
      {"field behind the payload", good + "\x68\x01"},
      {"payload first", tail + head},
      {"field twice", "\x58\x03" + good},
      {"wrong wire type", head + "\x4d\x01\x02\x03\x04" + tail},
      {"known field as bytes", "\x5a\x01x" + head.substr(0, 56) + head.substr(58) + tail},
      {"group start", head + "\x6b" + tail},
      {"wire type 6", head + "\x6e" + tail},
      {"wire type 7", head + "\x6f" + tail},
      {"field number 0", head + std::string("\x00\x01", 2) + tail},
      {"tag of more than 32 bits", head + "\x80\x80\x80\x80\x80\x01\x01" + tail},
      {"varint without end", head + "\x70\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" + tail},
      {"unknown bytes beyond the end", head + "\x6a\x7f" + tail},
      {"payload longer than said", good + "e"},
      {"payload shorter than said", good.substr(0, good.size() - 1)},
      {"payload and header disagree", head + "\x7a\x03" + "abc"},
      {"no payload", head},
      {"only a payload", tail},
      {"empty", ""},
  };
  for (const Malformed& c : cases) {
    SCOPED_TRACE(c.name);
    const std::string length(1, static_cast<char>(c.frame.size()));
    ExpectBadFrame(DecodeFrame(Buffer("\x7a" + length + c.frame)).status());
  }
}

TEST(FrameCodec, UnknownDtypesAndKindsAreRefused) {
  FrameHeader header = SmallHeader("abcd");
  for (const int dtype : {0, 4, 127}) {
    header.dtype = static_cast<DType>(dtype);
    ExpectBadFrame(DecodeFrame(Buffer(Encode(header, "abcd"))).status());
  }
  header = SmallHeader("abcd");
  for (const int kind : {0, 5, 200}) {
    header.kind = static_cast<FrameKind>(kind);
    ExpectBadFrame(DecodeFrame(Buffer(Encode(header, "abcd"))).status());
  }
}

TEST(FrameCodec, MessageLengthMustBeThatOfTheFrame) {
  const std::string bytes = Encode(SmallHeader("abcd"), "abcd");
  for (const int delta : {-1, 1, 5}) {
    std::string lying = bytes;
    lying[1] = static_cast<char>(lying[1] + delta);
    ExpectBadFrame(DecodeFrame(Buffer(lying)).status());
  }
  ExpectBadFrame(DecodeFrame(Buffer(bytes + "\x1a\x00")).status());
}

TEST(FrameCodec, LimitsHoldForFramesAndControlMessages) {
  const std::string payload(2000, 'x');
  const grpc::ByteBuffer frame = Buffer(Encode(SmallHeader(payload), payload));
  EXPECT_TRUE(DecodeClientMessage(frame, 2000, 100).ok());
  ExpectBadFrame(DecodeClientMessage(frame, 1999, 100).status());
  ExpectBadFrame(DecodeClientMessage(frame, 10, 100).status());

  v1::ClientMessage begin;
  begin.mutable_begin()->set_presence(std::string(200, 'p'));
  EXPECT_TRUE(DecodeClientMessage(SerializeMessage(begin), 10, 300).ok());
  ExpectBadFrame(DecodeClientMessage(SerializeMessage(begin), 10, 200).status());
}

TEST(FrameCodec, ControlMessagesAreParsed) {
  v1::ClientMessage hello;
  hello.mutable_hello()->set_job(9);
  auto client = DecodeClientMessage(SerializeMessage(hello), kMaxFrameBytes, kMaxControlBytes);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ(absl::get<v1::ClientMessage>(*client).hello().job(), 9u);

  v1::ServerMessage ack;
  ack.mutable_ack()->set_received_bytes(12);
  auto server = DecodeServerMessage(SerializeMessage(ack), kMaxFrameBytes, kMaxControlBytes);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(absl::get<v1::ServerMessage>(*server).ack().received_bytes(), 12u);
}

TEST(FrameCodec, MessagesWithoutAKindAndHiddenFramesAreRefused) {
  ExpectBadFrame(DecodeClientMessage(Buffer(""), kMaxFrameBytes, kMaxControlBytes).status());
  ExpectBadFrame(
      DecodeClientMessage(grpc::ByteBuffer(), kMaxFrameBytes, kMaxControlBytes).status());
  // A heartbeat followed by a frame: protobuf lets the last member of a oneof win.
  v1::ClientMessage heartbeat;
  heartbeat.mutable_heartbeat()->set_sequence(1);
  const std::string hidden = heartbeat.SerializeAsString() + Encode(SmallHeader("abcd"), "abcd");
  ExpectBadFrame(DecodeClientMessage(Buffer(hidden), kMaxFrameBytes, kMaxControlBytes).status());
}

TEST(FrameCodec, RandomBytesNeverCrashAndNeverPassTheChecksum) {
  std::mt19937_64 random(20240229);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes(random() % 120, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (random() % 2 == 0 && bytes.size() > 2) {
      bytes[0] = 0x7a;
      bytes[1] = static_cast<char>(bytes.size() - 2);
    }
    auto frame = DecodeFrame(Buffer(bytes));
    if (frame.ok()) {
      EXPECT_FALSE(CheckFrameCrc(frame->header, FrameCrc(frame->header, frame->payload)).ok());
    }
    (void)DecodeServerMessage(Buffer(bytes), kMaxFrameBytes, kMaxControlBytes);
  }
}

TEST(FrameCodec, MutatedFramesNeverCrash) {
  std::mt19937_64 random(7);
  const std::string payload = "0123456789abcdef";
  const std::string bytes = Encode(SmallHeader(payload), payload);
  for (int i = 0; i < 20000; ++i) {
    std::string mutated = bytes;
    for (size_t n = 1 + random() % 4; n > 0; --n) {
      mutated[random() % mutated.size()] = static_cast<char>(random());
    }
    auto frame = DecodeFrame(Fragments(mutated, 1 + random() % 40));
    if (!frame.ok()) continue;
    EXPECT_EQ(frame->header.length_bytes, frame->payload.bytes());
    (void)CheckFrameCrc(frame->header, FrameCrc(frame->header, frame->payload));
  }
}

}  // namespace
}  // namespace ballast
