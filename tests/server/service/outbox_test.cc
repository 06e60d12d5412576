// The queue of a trainer's messages: order, merging, and frames that are formed late.
#include "server/service/outbox.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast::server {
namespace {

Outbox MakeOutbox() {
  Outbox::Limits limits;
  limits.chunk_bytes = 100;
  limits.credit_bytes = 4000;
  limits.window_extents = 16;
  return Outbox(limits, {.job = 1, .epoch = 2, .slot = 3, .incarnation = 4});
}

v1::ServerMessage Done(uint64_t round) {
  v1::ServerMessage message;
  message.mutable_done()->set_round(round);
  return message;
}

OutPiece Piece(const std::shared_ptr<std::string>& text, uint32_t extent, uint32_t offset = 0) {
  OutPiece piece;
  piece.kind = FrameKind::kWeight;
  piece.round = 9;
  piece.extent = extent;
  piece.dtype = DType::kBF16;
  piece.offset_bytes = offset;
  piece.bytes = {text->data(), text->size(), text};
  return piece;
}

v1::ServerMessage TakeMessage(Outbox* outbox) {
  return absl::get<v1::ServerMessage>(outbox->Take().value());
}

OutFrame TakeFrame(Outbox* outbox) { return absl::get<OutFrame>(outbox->Take().value()); }

TEST(OutboxTest, CutsAPieceIntoChunksWithTheIdentityOfItsStream) {
  Outbox outbox = MakeOutbox();
  const auto text = std::make_shared<std::string>(250, 'x');
  outbox.AddPiece(Piece(text, 7, 1000));
  std::vector<uint32_t> offsets;
  std::vector<uint32_t> lengths;
  while (!outbox.empty()) {
    const OutFrame frame = TakeFrame(&outbox);
    EXPECT_EQ(frame.header.job, 1u);
    EXPECT_EQ(frame.header.epoch, 2u);
    EXPECT_EQ(frame.header.slot, 3u);
    EXPECT_EQ(frame.header.incarnation, 4u);
    EXPECT_EQ(frame.header.round, 9u);
    EXPECT_EQ(frame.header.extent, 7u);
    EXPECT_EQ(frame.header.dtype, DType::kBF16);
    EXPECT_EQ(frame.bytes.data, text->data() + frame.header.offset_bytes - 1000);
    EXPECT_EQ(frame.bytes.bytes, frame.header.length_bytes);
    offsets.push_back(frame.header.offset_bytes);
    lengths.push_back(frame.header.length_bytes);
  }
  EXPECT_THAT(offsets, testing::ElementsAre(1000, 1100, 1200));
  EXPECT_THAT(lengths, testing::ElementsAre(100, 100, 50));
}

TEST(OutboxTest, HoldsOneReferencePerPieceAndNoneAfterItsLastFrame) {
  Outbox outbox = MakeOutbox();
  const auto text = std::make_shared<std::string>(200, 'x');
  outbox.AddPiece(Piece(text, 7));
  EXPECT_EQ(text.use_count(), 2);
  TakeFrame(&outbox);
  EXPECT_EQ(text.use_count(), 2);
  TakeFrame(&outbox);
  EXPECT_EQ(text.use_count(), 1);
}

TEST(OutboxTest, KeepsTheOrderOfMessagesAndPieces) {
  Outbox outbox = MakeOutbox();
  const auto text = std::make_shared<std::string>(150, 'x');
  outbox.AddMessage(Done(1));
  outbox.AddPiece(Piece(text, 7));
  outbox.AddMessage(Done(2));
  EXPECT_EQ(TakeMessage(&outbox).done().round(), 1u);
  EXPECT_EQ(TakeFrame(&outbox).header.offset_bytes, 0u);
  EXPECT_EQ(TakeFrame(&outbox).header.offset_bytes, 100u);
  EXPECT_EQ(TakeMessage(&outbox).done().round(), 2u);
  EXPECT_FALSE(outbox.Take().has_value());
}

TEST(OutboxTest, AnAckAndAHeartbeatOvertakeBulk) {
  Outbox outbox = MakeOutbox();
  outbox.AddPiece(Piece(std::make_shared<std::string>(150, 'x'), 7));
  outbox.AddHeartbeat(1);
  outbox.AddHeartbeat(2);
  outbox.AddAck({.round = 4, .flush = true});
  EXPECT_TRUE(TakeMessage(&outbox).has_ack());
  EXPECT_EQ(TakeMessage(&outbox).heartbeat().sequence(), 2u);
  TakeFrame(&outbox);
}

TEST(OutboxTest, MergesAcksUntilAQuarterOfTheCreditIsOwed) {
  Outbox outbox = MakeOutbox();
  for (int i = 0; i < 9; ++i) {
    outbox.AddReceived(100);
    outbox.AddAck({.round = 1, .durable_round = 3});
    EXPECT_TRUE(outbox.empty());
  }
  outbox.AddReceived(100);
  const v1::Ack ack = TakeMessage(&outbox).ack();
  EXPECT_EQ(ack.received_bytes(), 1000u);
  EXPECT_EQ(ack.durable_round(), 3u);
  EXPECT_TRUE(outbox.empty());
  outbox.AddReceived(999);
  EXPECT_TRUE(outbox.empty());
  outbox.AddReceived(1);
  EXPECT_EQ(TakeMessage(&outbox).ack().received_bytes(), 2000u);
}

TEST(OutboxTest, SendsAnAckWhenTheWindowMovedByAQuarter) {
  Outbox outbox = MakeOutbox();
  outbox.AddAck({.round = 1, .window_base = 3});
  EXPECT_TRUE(outbox.empty());
  outbox.AddAck({.round = 1, .window_base = 4});
  EXPECT_EQ(TakeMessage(&outbox).ack().window_base(), 4u);
  outbox.AddAck({.round = 1, .window_base = 7});
  EXPECT_TRUE(outbox.empty());
  // A new round starts at position 0 again.
  outbox.AddAck({.round = 2, .window_base = 3});
  EXPECT_TRUE(outbox.empty());
  outbox.AddAck({.round = 2, .window_base = 4});
  EXPECT_EQ(TakeMessage(&outbox).ack().round(), 2u);
}

TEST(OutboxTest, AHeartbeatTakesAMoveOfTheWindowAlong) {
  Outbox outbox = MakeOutbox();
  outbox.AddAck({.round = 1, .window_base = 3});
  EXPECT_TRUE(outbox.empty());
  outbox.AddHeartbeat(1);
  EXPECT_EQ(TakeMessage(&outbox).ack().window_base(), 3u);
  EXPECT_TRUE(TakeMessage(&outbox).has_heartbeat());
  // The trainer knows the base by now.
  outbox.AddHeartbeat(2);
  EXPECT_TRUE(TakeMessage(&outbox).has_heartbeat());
  outbox.AddAck({.round = 2, .window_base = 1});
  outbox.AddHeartbeat(3);
  EXPECT_EQ(TakeMessage(&outbox).ack().window_base(), 1u);
}

TEST(OutboxTest, AtMostOneAckWaits) {
  Outbox outbox = MakeOutbox();
  for (uint32_t i = 0; i < 100; ++i) outbox.AddAck({.round = 1, .window_base = i, .flush = true});
  EXPECT_EQ(TakeMessage(&outbox).ack().window_base(), 99u);
  EXPECT_TRUE(outbox.empty());
}

TEST(OutboxTest, ClosingLeavesTheLastMessageOnlyAndLetsGoOfExtents) {
  Outbox outbox = MakeOutbox();
  const auto text = std::make_shared<std::string>(150, 'x');
  outbox.AddPiece(Piece(text, 7));
  outbox.AddAck({.round = 1, .flush = true});
  outbox.AddHeartbeat(1);
  v1::ServerMessage last;
  last.mutable_error()->set_reason(v1::REASON_JOB_FAILED);
  outbox.Close(last);
  EXPECT_EQ(text.use_count(), 1);
  outbox.AddMessage(Done(1));
  outbox.AddPiece(Piece(text, 7));
  EXPECT_EQ(TakeMessage(&outbox).error().reason(), v1::REASON_JOB_FAILED);
  EXPECT_TRUE(outbox.empty());
  EXPECT_FALSE(outbox.Take().has_value());
}

}  // namespace
}  // namespace ballast::server
