// One data stream over a real connection to a recording engine: a trainer's allowed and refused
// messages, and the ends of the stream.
#include "server/service/trainer_stream.h"
#include "common/threads/thread_executor.h"

#include <random>
#include <thread>

#include "common/metrics/metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/methods.h"
#include "server/rpc/generic_server.h"
#include "tests/server/service/fakes.h"

namespace ballast::server {
namespace {

using testing::HasSubstr;

class TrainerStreamTest : public testing::Test {
 protected:
  TrainerStreamTest() {
    holder_.Set(directory_);
    deps_.directory = &holder_;
    deps_.executor = &executor_;
    deps_.clock = RealClock::Get();
    deps_.metrics = &metrics_;
    deps_.config.chunk_bytes = 1000;
    deps_.config.credit_bytes = 64 << 10;
    deps_.config.max_frame_bytes = 64 << 10;
    deps_.config.max_control_bytes = 64 << 10;
    deps_.config.report_after = kTestDeadline;
  }
  ~TrainerStreamTest() override {
    server_.Shutdown(std::chrono::milliseconds(0));
    executor_.Shutdown();
  }

  // Starts the server on first use, so that a test may change deps_ before.
  RawStream Open() {
    if (server_.port() == 0) {
      server_.AddMethod(method::kExchange, TrainerStream::Factory(&deps_));
      GenericServerOptions options;
      options.max_message_bytes = 256 << 10;
      EXPECT_TRUE(server_.Start(options).ok());
    }
    return RawStream(absl::StrCat("127.0.0.1:", server_.port()), method::kExchange);
  }

  static v1::ClientMessage Hello() {
    v1::ClientMessage message;
    *message.mutable_hello()->mutable_protocol() = OwnProtocolRange();
    message.mutable_hello()->set_job(77);
    message.mutable_hello()->set_epoch(1);
    message.mutable_hello()->set_slot(2);
    message.mutable_hello()->set_incarnation(9);
    return message;
  }
  static FrameHeader Header() {
    FrameHeader header;
    header.job = 77;
    header.epoch = 1;
    header.slot = 2;
    header.round = 5;
    header.extent = 11;
    header.incarnation = 9;
    header.offset_bytes = 64;
    header.dtype = DType::kBF16;
    header.kind = FrameKind::kGradient;
    return header;
  }
  static v1::ClientMessage Heartbeat(uint64_t sequence) {
    v1::ClientMessage message;
    message.mutable_heartbeat()->set_sequence(sequence);
    return message;
  }
  // Hello and Welcome.
  static void Greet(RawStream* stream) {
    ASSERT_TRUE(stream->Write(Hello()));
    const v1::ServerMessage welcome = stream->ReadMessage();
    ASSERT_TRUE(welcome.has_welcome()) << welcome.DebugString();
    EXPECT_EQ(welcome.welcome().protocol(), kProtocolMax);
    EXPECT_EQ(welcome.welcome().round(), 5u);
  }
  // The stream must end with an ErrorDetail and a status that agree.
  static void ExpectError(RawStream* stream, Reason reason, absl::StatusCode code) {
    const v1::ServerMessage message = stream->ReadMessage();
    ASSERT_TRUE(message.has_error()) << message.DebugString();
    EXPECT_EQ(static_cast<Reason>(message.error().reason()), reason) << message.DebugString();
    const absl::Status status = stream->Drain();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(ReasonOf(status), reason) << status;
  }
  void ExpectLost(const std::string& why) {
    ASSERT_TRUE(engine().WaitUntil([](FakeEngine& e) { return !e.lost_.empty(); }));
    EXPECT_EQ(engine().lost_[0].slot, 2u);
    EXPECT_TRUE(engine().lost_[0].own_sink);
    EXPECT_THAT(engine().lost_[0].why, HasSubstr(why));
    EXPECT_EQ(engine().lost_.size(), 1u);
  }
  FakeEngine& engine() { return *directory_->engine; }

  ThreadExecutor executor_{"test", 2};
  ServerMetrics metrics_{BuildInfo()};
  std::shared_ptr<FakeDirectory> directory_ = std::make_shared<FakeDirectory>();
  DirectoryHolder holder_{StillStarting({0, "127.0.0.1:1"}, "waits")};
  TrainerStreamDeps deps_;
  GenericServer server_;
};

TEST_F(TrainerStreamTest, AFirstMessageOtherThanHelloEndsTheStream) {
  RawStream stream = Open();
  ASSERT_TRUE(stream.Write(Heartbeat(1)));
  ExpectError(&stream, Reason::kBadFrame, absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(engine().calls_, "");
}

TEST_F(TrainerStreamTest, AFrameBeforeHelloEndsTheStream) {
  RawStream stream = Open();
  ASSERT_TRUE(stream.Write(GoodFrame(Header(), "abcd")));
  ExpectError(&stream, Reason::kBadFrame, absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(engine().frames_.empty());
}

TEST_F(TrainerStreamTest, ASecondHelloEndsTheStreamAndTheSlotIsLost) {
  RawStream stream = Open();
  Greet(&stream);
  ASSERT_TRUE(stream.Write(Hello()));
  ExpectError(&stream, Reason::kBadFrame, absl::StatusCode::kInvalidArgument);
  ExpectLost("second Hello");
}

TEST_F(TrainerStreamTest, AnUnknownJobIsNamed) {
  RawStream stream = Open();
  v1::ClientMessage hello = Hello();
  hello.mutable_hello()->set_job(78);
  ASSERT_TRUE(stream.Write(hello));
  ExpectError(&stream, Reason::kUnknownJob, absl::StatusCode::kNotFound);
}

TEST_F(TrainerStreamTest, AProtocolWithoutOverlapIsRefused) {
  RawStream stream = Open();
  v1::ClientMessage hello = Hello();
  hello.mutable_hello()->mutable_protocol()->set_min(7);
  hello.mutable_hello()->mutable_protocol()->set_max(8);
  ASSERT_TRUE(stream.Write(hello));
  ExpectError(&stream, Reason::kProtocolMismatch, absl::StatusCode::kFailedPrecondition);
}

TEST_F(TrainerStreamTest, EngineMessagesReachTheTrainer) {
  engine().attach_answer = ReasonedError(absl::StatusCode::kFailedPrecondition,
                                         Reason::kWrongIncarnation, "a newer process holds it");
  RawStream stream = Open();
  ASSERT_TRUE(stream.Write(Hello()));
  ExpectError(&stream, Reason::kWrongIncarnation, absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(engine().lost_.empty());
}

TEST_F(TrainerStreamTest, AGoodFrameReachesTheEngineUnchanged) {
  RawStream stream = Open();
  Greet(&stream);
  ASSERT_TRUE(stream.Write(GoodFrame(Header(), "abcdefgh")));
  ASSERT_TRUE(engine().WaitUntil([](FakeEngine& e) { return e.frames_.size() == 1; }));
  const FakeEngine::SeenFrame& frame = engine().frames_[0];
  EXPECT_EQ(frame.header.job, 77u);
  EXPECT_EQ(frame.header.epoch, 1u);
  EXPECT_EQ(frame.header.slot, 2u);
  EXPECT_EQ(frame.header.round, 5u);
  EXPECT_EQ(frame.header.extent, 11u);
  EXPECT_EQ(frame.header.incarnation, 9u);
  EXPECT_EQ(frame.header.offset_bytes, 64u);
  EXPECT_EQ(frame.header.length_bytes, 8u);
  EXPECT_EQ(frame.header.dtype, DType::kBF16);
  EXPECT_EQ(frame.header.kind, FrameKind::kGradient);
  EXPECT_EQ(frame.payload.ToString(), "abcdefgh");
  EXPECT_EQ(metrics_.Job({.name = "fake"})->push_bytes.value(), 8u);
}

TEST_F(TrainerStreamTest, FramesThatAreNotTheStreamsOwnAreRefused) {
  RawStream stream = Open();
  Greet(&stream);
  FrameHeader other_slot = Header();
  other_slot.slot = 3;
  FrameHeader other_job = Header();
  other_job.job = 78;
  FrameHeader other_incarnation = Header();
  other_incarnation.incarnation = 8;
  FrameHeader old_epoch = Header();
  old_epoch.epoch = 0;
  FrameHeader next_epoch = Header();
  next_epoch.epoch = 2;
  FrameHeader weight = Header();
  weight.kind = FrameKind::kWeight;
  const std::vector<std::pair<FrameHeader, v1::Reason>> cases = {
      {other_slot, v1::REASON_BAD_FRAME},
      {other_job, v1::REASON_BAD_FRAME},
      {other_incarnation, v1::REASON_WRONG_INCARNATION},
      {old_epoch, v1::REASON_STALE_EPOCH},
      {next_epoch, v1::REASON_FUTURE_EPOCH},
      {weight, v1::REASON_BAD_FRAME}};
  for (const auto& [header, reason] : cases) {
    ASSERT_TRUE(stream.Write(GoodFrame(header, "abcd")));
    EXPECT_EQ(stream.ReadMessage().refused().reason(), reason);
  }
  EXPECT_TRUE(engine().frames_.empty());
}

TEST_F(TrainerStreamTest, AFrameWithADamagedEpochIsDamaged) {
  RawStream stream = Open();
  Greet(&stream);
  FrameHeader header = Header();
  header.length_bytes = 4;
  header.crc32c = Crc32c("abcd", 4, IdentityCrc(header));
  header.epoch ^= 4;
  const grpc::Slice slice(std::string("abcd"));
  ASSERT_TRUE(stream.Write(MakeFrame(header, absl::MakeConstSpan(&slice, 1))));
  EXPECT_EQ(stream.ReadMessage().refused().reason(), v1::REASON_BAD_CHECKSUM);
  EXPECT_EQ(metrics_.checksum_errors("push")->value(), 1u);
  EXPECT_TRUE(engine().frames_.empty());
}

TEST_F(TrainerStreamTest, AnOversizedPayloadEndsTheStream) {
  RawStream stream = Open();
  Greet(&stream);
  ASSERT_TRUE(stream.Write(GoodFrame(Header(), std::string((64 << 10) + 1, 'x'))));
  ExpectError(&stream, Reason::kBadFrame, absl::StatusCode::kInvalidArgument);
  ExpectLost("broke the protocol");
  EXPECT_TRUE(engine().frames_.empty());
}

TEST_F(TrainerStreamTest, AMessageAboveTheTransportLimitEndsTheStream) {
  RawStream stream = Open();
  Greet(&stream);
  stream.Write(GoodFrame(Header(), std::string(1 << 20, 'x')));
  EXPECT_FALSE(stream.Drain().ok());
  ExpectLost("");
}

TEST_F(TrainerStreamTest, ATruncatedFrameEndsTheStream) {
  RawStream stream = Open();
  Greet(&stream);
  FrameHeader header = Header();
  header.length_bytes = 100;
  const grpc::Slice payload("only these");
  ASSERT_TRUE(stream.Write(MakeFrame(header, absl::MakeConstSpan(&payload, 1))));
  ExpectError(&stream, Reason::kBadFrame, absl::StatusCode::kInvalidArgument);
  ExpectLost("broke the protocol");
}

TEST_F(TrainerStreamTest, RandomBytesNeverReachTheEngineAndNeverEndTheServer) {
  std::mt19937 random(7);
  for (int round = 0; round < 100; ++round) {
    RawStream stream = Open();
    if (round % 2 == 0) Greet(&stream);
    std::string bytes(random() % 300, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (round % 3 == 0) bytes = "\x7A" + bytes;  // looks like a frame
    const grpc::Slice slice(bytes);
    stream.Write(grpc::ByteBuffer(&slice, 1));
    stream.WritesDone();
    EXPECT_FALSE(stream.Drain().ok());
  }
  EXPECT_TRUE(engine().frames_.empty());
  RawStream stream = Open();
  Greet(&stream);
}

TEST_F(TrainerStreamTest, AHeartbeatIsAnswered) {
  RawStream stream = Open();
  Greet(&stream);
  for (uint64_t i = 1; i <= 3; ++i) {
    ASSERT_TRUE(stream.Write(Heartbeat(i)));
    EXPECT_EQ(stream.ReadMessage().heartbeat().sequence(), i);
  }
}

TEST_F(TrainerStreamTest, HeartbeatReportsReachTheDirectory) {
  RawStream stream = Open();
  Greet(&stream);
  v1::ClientMessage message = Heartbeat(1);
  message.mutable_heartbeat()->mutable_doing()->set_phase(v1::COLLECTIVE_PHASE_REDUCE_SCATTER);
  message.mutable_heartbeat()->mutable_doing()->set_bucket(7);
  message.mutable_heartbeat()->mutable_doing()->set_round(812);
  ASSERT_TRUE(stream.Write(message));
  EXPECT_EQ(stream.ReadMessage().heartbeat().sequence(), 1u);
  EXPECT_THAT(directory_->heard(), HasSubstr("/2/"));
  EXPECT_THAT(directory_->heard(), HasSubstr("in reduce-scatter of bucket 7 of round 812"));

  message.mutable_heartbeat()->mutable_doing()->set_phase(static_cast<v1::CollectivePhase>(7));
  ASSERT_TRUE(stream.Write(message));
  ExpectError(&stream, Reason::kBadFrame, absl::StatusCode::kInvalidArgument);
}

TEST_F(TrainerStreamTest, BeginAndFetchReachTheEngine) {
  RawStream stream = Open();
  Greet(&stream);
  v1::ClientMessage begin;
  begin.mutable_begin()->set_round(5);
  begin.mutable_begin()->add_hyper()->add_value(0.25);
  ASSERT_TRUE(stream.Write(begin));
  v1::ClientMessage fetch;
  fetch.mutable_fetch_state()->set_round(6);
  fetch.mutable_fetch_state()->add_arrays(2);
  ASSERT_TRUE(stream.Write(fetch));
  ASSERT_TRUE(engine().WaitUntil([](FakeEngine& e) { return !e.fetches_.empty(); }));
  EXPECT_EQ(engine().begins_[0].round, 5u);
  EXPECT_EQ(engine().begins_[0].hyper, (std::vector<Hyper>{{0.25}}));
  EXPECT_EQ(engine().fetches_[0].first, 6u);
  EXPECT_EQ(engine().fetches_[0].second, std::vector<uint32_t>{2});
}

TEST_F(TrainerStreamTest, ALeaveFollowedByTheEndOfTheStreamIsNoLoss) {
  RawStream stream = Open();
  Greet(&stream);
  v1::ClientMessage leave;
  leave.mutable_leave()->set_round(6);
  ASSERT_TRUE(stream.Write(leave));
  stream.WritesDone();
  EXPECT_TRUE(stream.Drain().ok());
  ASSERT_EQ(engine().leaves_.size(), 1u);
  EXPECT_EQ(engine().leaves_[0], std::make_pair(2u, uint64_t{9}));
  server_.Shutdown(std::chrono::milliseconds(0));
  EXPECT_TRUE(engine().lost_.empty());
}

TEST_F(TrainerStreamTest, ATrainerThatVanishesIsLost) {
  {
    RawStream stream = Open();
    Greet(&stream);
    stream.Cancel();
  }
  ExpectLost("connection");
}

TEST_F(TrainerStreamTest, AStreamThatEndsWithoutLeaveIsLost) {
  RawStream stream = Open();
  Greet(&stream);
  stream.WritesDone();
  ExpectError(&stream, Reason::kTrainerLost, absl::StatusCode::kUnavailable);
  ExpectLost("without a Leave");
}

TEST_F(TrainerStreamTest, ASilentStreamIsReported) {
  deps_.config.report_after = std::chrono::milliseconds(100);
  RawStream stream = Open();
  Greet(&stream);
  ExpectError(&stream, Reason::kTrainerLost, absl::StatusCode::kUnavailable);
  ExpectLost("no heartbeat for 100ms");
}

TEST_F(TrainerStreamTest, ATrainerThatSendsHeartbeatsAndTakesNothingIsLost) {
  // Long, so that a slow machine does not make the heartbeats late.
  deps_.config.report_after = std::chrono::seconds(4);
  deps_.config.lease = std::chrono::milliseconds(300);
  deps_.config.chunk_bytes = 200 << 10;
  // Far more than the transport takes by itself.
  const auto bytes = std::make_shared<const std::string>(size_t{64} << 20, 'w');
  RawStream stream = Open();
  Greet(&stream);
  OutPiece piece;
  piece.round = 5;
  piece.extent = 1;
  piece.dtype = DType::kF32;
  piece.bytes = {bytes->data(), bytes->size(), bytes};
  engine().sink()->OnExtent(piece);
  uint64_t beats = 0;
  const auto lost = [](FakeEngine& e) { return !e.lost_.empty(); };
  while (!engine().Holds(lost) && stream.Write(Heartbeat(++beats))) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // The pace, not a condition.
  }
  EXPECT_GT(beats, 1u);
  ExpectLost("took nothing that was sent to it for 300ms");
}

TEST_F(TrainerStreamTest, AStreamThatNeverSaysHelloIsClosed) {
  deps_.config.report_after = std::chrono::milliseconds(100);
  RawStream stream = Open();
  ExpectError(&stream, Reason::kRecovering, absl::StatusCode::kUnavailable);
  EXPECT_TRUE(engine().lost_.empty());
}

TEST_F(TrainerStreamTest, AnErrorOfTheJobOvertakesEverythingAndEndsTheStream) {
  RawStream stream = Open();
  Greet(&stream);
  const auto text = std::make_shared<std::string>(8 << 20, 'x');
  OutPiece piece;
  piece.bytes = {text->data(), text->size(), text};
  engine().sink()->OnExtent(piece);
  engine().sink()->OnError(ReasonedError(absl::StatusCode::kUnavailable, Reason::kTrainerLost,
                                         "slot 1 is gone", {.round = 5, .slot = 1}));
  size_t frames = 0;
  v1::ServerMessage message;
  grpc::ByteBuffer bytes;
  while (stream.Read(&bytes)) {
    auto input = DecodeServerMessage(bytes, 1 << 20, 1 << 20);
    ASSERT_TRUE(input.ok());
    if (auto* control = absl::get_if<v1::ServerMessage>(&*input)) {
      message = *control;
    } else {
      ++frames;
    }
  }
  EXPECT_LT(frames, text->size() / deps_.config.chunk_bytes);
  EXPECT_EQ(message.error().reason(), v1::REASON_TRAINER_LOST);
  EXPECT_EQ(message.error().slot(), 1);
  EXPECT_EQ(ReasonOf(stream.Finish()), Reason::kTrainerLost);
  ExpectLost("its calls failed");
}

TEST_F(TrainerStreamTest, ExtentsArriveAsCheckedFramesInOrderAndAreLetGo) {
  RawStream stream = Open();
  Greet(&stream);
  auto text = std::make_shared<std::string>();
  for (int i = 0; i < 2500; ++i) text->push_back(static_cast<char>(i * 7));
  const std::weak_ptr<std::string> watch = text;
  OutPiece piece;
  piece.kind = FrameKind::kState;
  piece.array = 2;
  piece.round = 6;
  piece.extent = 3;
  piece.offset_bytes = 4000;
  piece.bytes = {text->data(), text->size(), text};
  const std::shared_ptr<SlotSink> sink = engine().sink();
  sink->OnResult({.round = 5, .applied = true});
  sink->OnExtent(piece);
  sink->OnDone({.round = 5});
  EXPECT_EQ(stream.ReadMessage().result().round(), 5u);
  std::string received;
  for (int i = 0; i < 3; ++i) {
    DecodedFrame frame;
    stream.ReadMessage(&frame);
    EXPECT_TRUE(CheckFrameCrc(frame.header, FrameCrc(frame.header, frame.payload)).ok());
    EXPECT_EQ(frame.header.offset_bytes, 4000 + received.size());
    EXPECT_EQ(frame.header.kind, FrameKind::kState);
    EXPECT_EQ(frame.header.array, 2u);
    EXPECT_EQ(frame.header.round, 6u);
    EXPECT_EQ(frame.header.extent, 3u);
    EXPECT_EQ(frame.header.slot, 2u);
    EXPECT_EQ(frame.header.incarnation, 9u);
    received += frame.payload.ToString();
  }
  EXPECT_EQ(received, *text);
  EXPECT_TRUE(stream.ReadMessage().has_done());
  EXPECT_EQ(metrics_.Job({.name = "fake"})->pull_bytes.value(), 2500u);
  piece = OutPiece();
  text.reset();
  server_.Shutdown(std::chrono::milliseconds(0));
  EXPECT_TRUE(watch.expired());
}

TEST_F(TrainerStreamTest, TheEndOfARoundEndsItsPhaseStream) {
  RawStream stream = Open();
  Greet(&stream);
  const Histogram& phase = *metrics_.round_duration(RoundPhase::kStream);
  engine().sink()->OnResult({.round = 5, .applied = true});
  EXPECT_TRUE(stream.ReadMessage().has_result());
  EXPECT_EQ(phase.Read().count, 0u);
  engine().sink()->OnDone({.round = 5});
  EXPECT_TRUE(stream.ReadMessage().has_done());
  EXPECT_EQ(phase.Read().count, 1u);
}

TEST_F(TrainerStreamTest, CreditComesBackWhenTheEngineLetsGoOfAPayload) {
  RawStream stream = Open();
  Greet(&stream);
  for (int i = 0; i < 4; ++i)
    ASSERT_TRUE(stream.Write(GoodFrame(Header(), std::string(4096, 'x'))));
  ASSERT_TRUE(engine().WaitUntil([](FakeEngine& e) { return e.frames_.size() == 4; }));
  EXPECT_EQ(engine().ReleaseFrames(), 4u);
  const v1::Ack ack = stream.ReadMessage().ack();
  EXPECT_EQ(ack.received_bytes(), 4 * 4096u);
}

TEST_F(TrainerStreamTest, ATrainerThatIgnoresItsCreditIsNotReadAnyMore) {
  RawStream stream = Open();
  Greet(&stream);
  // Many times the credit: where the engine lets go before the stream looks, nothing waits.
  constexpr size_t kFrames = 1024;
  constexpr size_t kHeldMax = 16;  // (64 KiB credit) / (4,096 bytes + the overhead of a frame)
  std::thread trainer([&stream] {
    for (size_t i = 0; i < kFrames; ++i) stream.Write(GoodFrame(Header(), std::string(4096, 'x')));
  });
  size_t seen = 0;
  while (seen < kFrames) {
    ASSERT_TRUE(engine().WaitUntil([](FakeEngine& e) { return e.frames_.size() == kHeldMax; }));
    seen += engine().ReleaseFrames();
  }
  trainer.join();
  EXPECT_EQ(engine().most_frames_, kHeldMax);
  EXPECT_GT(metrics_.Job({.name = "fake"})->credit_wait_ns.value(), 0u);
}

TEST_F(TrainerStreamTest, AServerThatStopsEndsOpenStreams) {
  RawStream stream = Open();
  Greet(&stream);
  server_.Shutdown(std::chrono::milliseconds(0));
  EXPECT_FALSE(stream.Drain().ok());
  ExpectLost("connection");
}

}  // namespace
}  // namespace ballast::server
