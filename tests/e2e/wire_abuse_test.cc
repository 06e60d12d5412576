// Malformed and misplaced messages against whole servers: each gets its typed answer, nothing of it
// reaches the state (the round ends with the right bits afterwards), and the servers continue.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "tests/e2e/raw_trainer.h"
#include "tests/server/engine/engine_cluster.h"
#include "tests/server/round/plans.h"

namespace ballast::server {
namespace {

using ::testing::HasSubstr;
using testing::MakeBegin;
using testing::Random;
using testing::Reference;

const std::vector<int64_t> kSizes = {9000, 77, 3000};

bool SameBits(const Tensors& a, const Tensors& b) {
  for (size_t t = 0; t < a.size(); ++t) {
    if (std::memcmp(a[t].data(), b[t].data(), a[t].size() * sizeof(float)) != 0) return false;
  }
  return a.size() == b.size();
}

// A job of two trainers whose rounds are compared with the plain loop.
class Job {
 public:
  Job(const LocalServers& servers, const std::string& name)
      : init_(Random(kSizes, 1)), reference_(init_) {
    trainers_ = RawTrainer::AttachAll(servers, SmallSpec(name, 2, kSizes));
    for (RawTrainer& trainer : trainers_) trainer.SayHello();
    trainers_[0].SendAll(FrameKind::kInit, 1, init_);
  }

  RawTrainer& slot(uint32_t slot) { return trainers_[slot]; }
  Tensors Gradient(uint32_t slot) const {
    return Random(kSizes, static_cast<uint32_t>(100 * round_ + slot));
  }
  void Begin() {
    for (RawTrainer& trainer : trainers_) trainer.Begin(round_);
  }
  // Pushes all of both slots and compares the returned weights.
  void FinishRound() {
    for (uint32_t s = 0; s < 2; ++s) {
      trainers_[s].SendAll(FrameKind::kGradient, round_, Gradient(s));
    }
    reference_.Step({Gradient(0), Gradient(1)}, 0.5f, MakeBegin(round_).hyper[0],
                    std::vector<bool>(kSizes.size(), true));
    for (RawTrainer& trainer : trainers_) {
      EXPECT_TRUE(SameBits(trainer.FinishRound(round_), reference_.p)) << "round " << round_;
    }
    ++round_;
  }

 private:
  const Tensors init_;
  Reference reference_;
  std::vector<RawTrainer> trainers_;
  uint64_t round_ = 1;
};

// --- Refused frames: the stream and the round continue
// ---------------------------------------------

struct BadFrameRow {
  const char* name;
  v1::Reason reason;
  std::function<void(FrameHeader*)> spoil;
};

// Server 1 owns extent `foreign`.
std::vector<BadFrameRow> MisplacedRows(uint32_t foreign) {
  return {
      {"an older epoch", v1::REASON_STALE_EPOCH, [](auto* h) { h->epoch = 0; }},
      {"a later epoch", v1::REASON_FUTURE_EPOCH, [](auto* h) { h->epoch = 2; }},
      {"an older round", v1::REASON_ROUND_CLOSED, [](auto* h) { h->round = 0; }},
      {"a later round", v1::REASON_FUTURE_ROUND, [](auto* h) { h->round = 2; }},
      {"another dtype", v1::REASON_WRONG_DTYPE, [](auto* h) { h->dtype = DType::kBF16; }},
      {"another server's extent", v1::REASON_WRONG_OWNER,
       [foreign](auto* h) { h->extent = foreign; }},
      {"no such extent", v1::REASON_BAD_FRAME, [](auto* h) { h->extent = 4'000'000'000; }},
      {"another job", v1::REASON_BAD_FRAME, [](auto* h) { ++h->job; }},
      {"another slot", v1::REASON_BAD_FRAME, [](auto* h) { h->slot = 1; }},
      {"another process", v1::REASON_WRONG_INCARNATION, [](auto* h) { ++h->incarnation; }},
      {"between two chunks", v1::REASON_BAD_FRAME, [](auto* h) { h->offset_bytes += 4; }},
      {"beyond the extent", v1::REASON_BAD_FRAME, [](auto* h) { h->offset_bytes = 1u << 31; }},
      {"a kind only servers send", v1::REASON_BAD_FRAME,
       [](auto* h) { h->kind = FrameKind::kWeight; }},
      {"other initial weights", v1::REASON_CONFLICT, [](auto* h) { h->kind = FrameKind::kInit; }},
  };
}

TEST(WireAbuse, MisplacedFramesAreRefusedByReasonAndTheRoundEndsWithTheRightBits) {
  LocalServers servers(2, {{"rounds.chunk_bytes", "4KiB"}});
  Job job(servers, "abused");
  RawTrainer& trainer = job.slot(0);
  const uint32_t extent = trainer.OwnedBy(0).front();
  const uint32_t foreign = trainer.OwnedBy(1).front();
  const ChunkRange range = trainer.Ranges(extent).front();
  const auto refusal_of = [&](const std::function<void(FrameHeader*)>& spoil) {
    FrameHeader header = trainer.Header(FrameKind::kGradient, 1, extent, range);
    spoil(&header);
    const std::string bytes = trainer.Bytes(job.Gradient(0), extent, range);
    EXPECT_TRUE(trainer.stream(0)->Write(GoodFrame(header, bytes)));
    return trainer.NextRefusal(0);
  };
  EXPECT_EQ(refusal_of([](FrameHeader*) {}).reason(), v1::REASON_NOT_BEGUN);
  job.Begin();
  for (const BadFrameRow& row : MisplacedRows(foreign)) {
    const v1::FrameRefused refused = refusal_of(row.spoil);
    EXPECT_EQ(refused.reason(), row.reason) << row.name << ": " << refused.message();
    EXPECT_FALSE(refused.message().empty()) << row.name;
  }
  job.FinishRound();
  job.Begin();
  job.FinishRound();
}

TEST(WireAbuse, CorruptedShortAndRepeatedFramesLeaveTheFirstGoodOne) {
  LocalServers servers(2, {{"rounds.chunk_bytes", "4KiB"}});
  Job job(servers, "corrupted");
  job.Begin();
  RawTrainer& trainer = job.slot(0);
  const uint32_t extent = trainer.OwnedBy(1).front();
  const ChunkRange range = trainer.Ranges(extent).front();
  const FrameHeader header = trainer.Header(FrameKind::kGradient, 1, extent, range);
  const std::string bytes = trainer.Bytes(job.Gradient(0), extent, range);
  const auto send = [&](const FrameHeader& h, const std::string& payload) {
    EXPECT_TRUE(trainer.stream(1)->Write(GoodFrame(h, payload)));
  };

  FrameHeader corrupted = header;
  corrupted.crc32c = Crc32c(bytes.data(), bytes.size(), IdentityCrc(header)) ^ 1;
  const grpc::Slice slice(bytes);
  EXPECT_TRUE(trainer.stream(1)->Write(MakeFrame(corrupted, absl::MakeConstSpan(&slice, 1))));
  EXPECT_EQ(trainer.NextRefusal(1).reason(), v1::REASON_BAD_CHECKSUM);
  send(header, bytes.substr(4));
  EXPECT_EQ(trainer.NextRefusal(1).reason(), v1::REASON_BAD_FRAME);
  send(header, bytes + std::string(4, '\0'));
  EXPECT_EQ(trainer.NextRefusal(1).reason(), v1::REASON_BAD_FRAME);
  send(header, "");
  EXPECT_EQ(trainer.NextRefusal(1).reason(), v1::REASON_BAD_FRAME);

  send(header, bytes);  // taken
  send(header, bytes);
  EXPECT_EQ(trainer.NextRefusal(1).reason(), v1::REASON_DUPLICATE);
  send(header, std::string(bytes.size(), '\1'));
  EXPECT_EQ(trainer.NextRefusal(1).reason(), v1::REASON_CONFLICT);

  // Initial weights come from slot 0 only.
  RawTrainer& other = job.slot(1);
  FrameHeader init = other.Header(FrameKind::kInit, 1, extent, range);
  EXPECT_TRUE(other.stream(1)->Write(GoodFrame(init, bytes)));
  EXPECT_EQ(other.NextRefusal(1).reason(), v1::REASON_NOT_CONTRIBUTOR);
  job.FinishRound();
}

TEST(WireAbuse, FramesBeyondTheWindowAreRefusedUntilItMoves) {
  // Room for the state of ten extents and the registers of two.
  LocalServers servers(1, {{"storage.memory_budget", "17MiB"}, {"rounds.window_extents_min", "1"}});
  JobSpec spec = SmallSpec("window", 2, {10 * 65536});
  spec.tile_elements = spec.extent_elements = 65536;
  std::vector<RawTrainer> trainers = RawTrainer::AttachAll(servers, spec);
  const uint32_t window = trainers[0].window_extents();
  const std::vector<uint32_t> order = trainers[0].OwnedBy(0);
  ASSERT_LT(window, order.size());
  const Tensors init = Random({10 * 65536}, 1);
  Reference reference(init);
  for (RawTrainer& trainer : trainers) trainer.SayHello();
  trainers[0].SendAll(FrameKind::kInit, 1, init);
  std::vector<Tensors> gradients;
  for (uint32_t s = 0; s < 2; ++s) {
    trainers[s].Begin(1);
    gradients.push_back(Random({10 * 65536}, 2 + s));
  }
  const auto send = [&](uint32_t slot, uint32_t position) {
    trainers[slot].SendExtent(FrameKind::kGradient, 1, gradients[slot], order[position]);
  };
  send(0, window);
  EXPECT_EQ(trainers[0].NextRefusal(0).reason(), v1::REASON_OUT_OF_WINDOW);
  for (uint32_t position = 0; position < order.size(); ++position) {
    send(0, position);
    send(1, position);
    if (position + 1 == order.size()) break;
    for (RawTrainer& trainer : trainers) trainer.AwaitWindow(0, 1, position + 1);
  }
  reference.Step(gradients, 0.5f, MakeBegin(1).hyper[0], {true});
  for (RawTrainer& trainer : trainers) {
    EXPECT_TRUE(SameBits(trainer.FinishRound(1), reference.p));
  }
}

// --- Messages that end their stream: the server continues
// -----------------------------------------

struct BadStreamRow {
  const char* name;
  Reason reason;
  std::function<grpc::ByteBuffer(RawTrainer*)> message;
};

grpc::ByteBuffer Raw(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string GoodBytes(RawTrainer* trainer, uint32_t payload_bytes = 64) {
  const FrameHeader header = trainer->Header(FrameKind::kGradient, 1, 0, {0, payload_bytes});
  std::vector<grpc::Slice> slices;
  std::string bytes;
  EXPECT_TRUE(GoodFrame(header, std::string(payload_bytes, 'x')).Dump(&slices).ok());
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

v1::ClientMessage SpoiledBegin(RawTrainer* trainer, const std::function<void(v1::RoundBegin*)>& f) {
  v1::ClientMessage message = trainer->BeginMessage(1);
  f(message.mutable_begin());
  return message;
}

std::vector<BadStreamRow> MessageRows() {
  return {
      {"no bytes at all", Reason::kBadFrame, [](RawTrainer*) { return Raw(""); }},
      {"no protobuf", Reason::kBadFrame, [](RawTrainer*) { return Raw(std::string(100, '\xff')); }},
      {"a frame cut in its header", Reason::kBadFrame,
       [](RawTrainer* t) { return Raw(GoodBytes(t).substr(0, 20)); }},
      {"a frame cut in its payload", Reason::kBadFrame,
       [](RawTrainer* t) { return Raw(GoodBytes(t).substr(0, GoodBytes(t).size() - 1)); }},
      {"bytes behind a frame", Reason::kBadFrame,
       [](RawTrainer* t) { return Raw(GoodBytes(t) + "x"); }},
      {"a frame above limits.max_frame_bytes", Reason::kBadFrame,
       [](RawTrainer* t) { return Raw(GoodBytes(t, 40'000)); }},
      {"a frame of a kind nobody knows", Reason::kBadFrame,
       [](RawTrainer* t) {
         const auto kind = static_cast<FrameKind>(9);
         return GoodFrame(t->Header(kind, 1, 0, {0, 64}), std::string(64, 'x'));
       }},
      {"a second Hello", Reason::kBadFrame,
       [](RawTrainer* t) {
         v1::ClientMessage message;
         *message.mutable_hello() = t->HelloMessage();
         return SerializeMessage(message);
       }},
  };
}

std::vector<BadStreamRow> BeginRows() {
  const auto begin = [](std::function<void(v1::RoundBegin*)> spoil) {
    return [spoil](RawTrainer* t) { return SerializeMessage(SpoiledBegin(t, spoil)); };
  };
  return {
      {"a round that is not next", Reason::kFutureRound,
       begin([](v1::RoundBegin* b) { b->set_round(5); })},
      {"an older round", Reason::kRoundClosed, begin([](v1::RoundBegin* b) { b->set_round(0); })},
      {"too many groups", Reason::kBadHyperparam,
       begin([](v1::RoundBegin* b) { *b->add_hyper() = b->hyper(0); })},
      {"too few hyper-parameters", Reason::kBadHyperparam,
       begin([](v1::RoundBegin* b) { b->mutable_hyper(0)->mutable_value()->RemoveLast(); })},
      {"a learning rate that is no number", Reason::kBadHyperparam, begin([](v1::RoundBegin* b) {
         b->mutable_hyper(0)->set_value(0, std::numeric_limits<double>::quiet_NaN());
       })},
      {"presence of too many tensors", Reason::kBadFrame,
       begin([](v1::RoundBegin* b) { b->set_presence("\x07\x01"); })},
      {"presence of a tensor that does not exist", Reason::kBadFrame,
       begin([](v1::RoundBegin* b) { b->set_presence("\x0f"); })},
      {"another layout version", Reason::kLayoutMismatch,
       begin([](v1::RoundBegin* b) { b->set_layout_version(9); })},
  };
}

std::vector<BadStreamRow> StreamRows() {
  std::vector<BadStreamRow> rows = MessageRows();
  for (BadStreamRow& row : BeginRows()) rows.push_back(std::move(row));
  return rows;
}

TEST(WireAbuse, MalformedMessagesEndTheirStreamTheOthersAreToldAndTheServerGoesOn) {
  LocalServers servers(2, {{"limits.max_frame_bytes", "16KiB"}, {"rounds.chunk_bytes", "8KiB"}});
  int number = 0;
  for (const BadStreamRow& row : StreamRows()) {
    Job job(servers, absl::StrCat("broken-", ++number));
    EXPECT_TRUE(job.slot(0).stream(0)->Write(row.message(&job.slot(0))));
    const absl::Status status = job.slot(0).stream(0)->Drain();
    EXPECT_EQ(ReasonOf(status), row.reason) << row.name << ": " << status;
    const absl::Status others = job.slot(1).stream(0)->Drain();
    if (row.reason == Reason::kLayoutMismatch) {
      EXPECT_EQ(ReasonOf(others), Reason::kLayoutMismatch) << row.name << ": " << others;
    } else {
      EXPECT_EQ(ReasonOf(others), Reason::kTrainerLost) << row.name << ": " << others;
    }
    EXPECT_EQ(FieldsOf(others).slot, 0) << row.name << ": " << others;
  }
  Job healthy(servers, "healthy");
  healthy.Begin();
  healthy.FinishRound();
}

TEST(WireAbuse, MessagesAboveGrpcsLimitEndTheirStream) {
  LocalServers servers(1, {{"limits.max_control_message_bytes", "64KiB"},
                           {"limits.max_frame_bytes", "16KiB"},
                           {"rounds.chunk_bytes", "8KiB"}});
  Job job(servers, "huge");
  // The server may end the call before all of it is written.
  job.slot(0).stream(0)->Write(Raw(std::string(1 << 20, 'x')));
  EXPECT_EQ(job.slot(0).stream(0)->Drain().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(job.slot(1).stream(0)->Drain()), Reason::kTrainerLost);
  Job healthy(servers, "healthy");
  healthy.Begin();
  healthy.FinishRound();
}

// --- Hello and Attach ---------------------------------------------------------------------------

TEST(WireAbuse, AStreamIsOpenedOnlyByItsOwner) {
  LocalServers servers(1);
  Job job(servers, "owned");
  struct Row {
    Reason reason;
    std::function<void(v1::Hello*)> spoil;
  };
  const Row rows[] = {
      {Reason::kUnknownJob, [](v1::Hello* h) { h->set_job(h->job() + 1); }},
      {Reason::kWrongIncarnation, [](v1::Hello* h) { h->set_incarnation(1); }},
      {Reason::kStaleEpoch, [](v1::Hello* h) { h->set_epoch(0); }},
      {Reason::kFutureEpoch, [](v1::Hello* h) { h->set_epoch(2); }},
      {Reason::kWrongIncarnation, [](v1::Hello* h) { h->set_slot(99); }},
      {Reason::kProtocolMismatch, [](v1::Hello* h) { h->mutable_protocol()->set_min(99); }},
  };
  for (const Row& row : rows) {
    v1::ClientMessage message;
    *message.mutable_hello() = job.slot(0).HelloMessage();
    row.spoil(message.mutable_hello());
    RawStream stream(servers.address(0), method::kExchange);
    EXPECT_TRUE(stream.Write(message));
    const absl::Status status = stream.Drain();
    EXPECT_EQ(ReasonOf(status), row.reason) << status;
  }
  RawStream mute(servers.address(0), method::kExchange);
  EXPECT_TRUE(mute.Write(job.slot(0).BeginMessage(1)));
  EXPECT_EQ(ReasonOf(mute.Drain()), Reason::kBadFrame);
  job.Begin();  // None of them has disturbed the seats.
  job.FinishRound();
}

struct BadSpecRow {
  const char* text;
  std::function<void(v1::AttachRequest*)> spoil;
};

v1::TensorSpec* Tensor(v1::AttachRequest* request) {
  return request->mutable_spec()->mutable_tensors(0);
}

std::vector<BadSpecRow> ImpossibleTensors() {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  return {
      {"elements", [](auto* r) { Tensor(r)->set_shape(0, kHuge); }},
      {"elements",
       [](auto* r) {
         for (int i = 0; i < 3; ++i) Tensor(r)->add_shape(int64_t{1} << 32);
       }},
      {"negative", [](auto* r) { Tensor(r)->set_shape(0, -1); }},
      {"limits.max_rank",
       [](auto* r) {
         for (int i = 0; i < 8; ++i) Tensor(r)->add_shape(1);
       }},
      {"appears twice", [](auto* r) { Tensor(r)->set_name("t1"); }},
      {"appears twice", [](auto* r) { Tensor(r)->add_aliases("t1"); }},
      {"limits.max_name_bytes", [](auto* r) { Tensor(r)->set_name(std::string(300, 'x')); }},
      {"dtype", [](auto* r) { Tensor(r)->set_dtype(static_cast<v1::DType>(77)); }},
      {"group", [](auto* r) { Tensor(r)->set_group(1); }},
  };
}

std::vector<BadSpecRow> ImpossibleRows() {
  std::vector<BadSpecRow> rows = ImpossibleTensors();
  const BadSpecRow others[] = {
      {"limits.max_groups", [](auto* r) { r->mutable_spec()->set_group_count(1u << 30); }},
      {"world", [](auto* r) { r->mutable_spec()->set_world(0); }},
      {"limits.max_slots", [](auto* r) { r->mutable_spec()->set_world(1u << 30); }},
      {"outside the world", [](auto* r) { r->set_slot(2); }},
      {"no tensors",
       [](auto* r) {
         r->mutable_spec()->clear_tensors();
         r->clear_tensor_crc32c();
       }},
      {"tile", [](auto* r) { r->mutable_spec()->set_tile_elements(63); }},
      {"extent", [](auto* r) { r->mutable_spec()->set_extent_elements(65); }},
      {"extent", [](auto* r) { r->mutable_spec()->set_extent_elements(0xffffffc0); }},
      {"optimizer",
       [](auto* r) { r->mutable_spec()->set_optimizer(static_cast<v1::OptimizerKind>(99)); }},
      {"durability",
       [](auto* r) { r->mutable_spec()->set_durability(v1::DURABILITY_UNSPECIFIED); }},
      {"max_grad_norm", [](auto* r) { r->mutable_spec()->set_max_grad_norm(-1); }},
      {"loss_scale", [](auto* r) { r->mutable_spec()->set_loss_scale(0); }},
      {"digests", [](auto* r) { r->clear_tensor_crc32c(); }},
      {"job name", [](auto* r) { r->mutable_spec()->set_name("../../etc"); }},
  };
  rows.insert(rows.end(), std::begin(others), std::end(others));
  return rows;
}

TEST(WireAbuse, ImpossibleJobsAreRefusedBeforeAnythingIsAllocated) {
  LocalServers servers(1);
  for (const BadSpecRow& row : ImpossibleRows()) {
    v1::AttachRequest request = AttachOf(SmallSpec("impossible", 2, kSizes), 0);
    row.spoil(&request);
    RawStream call(servers.address(0), method::kAttach);
    EXPECT_TRUE(call.Write(SerializeMessage(request)));
    const absl::Status status = call.Drain();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.text << ": " << status;
    EXPECT_EQ(ReasonOf(status), Reason::kBadSpec) << row.text << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.text));
  }
  Job healthy(servers, "impossible");  // Nothing holds the name.
  healthy.Begin();
  healthy.FinishRound();
}

TEST(WireAbuse, AnAttachThatIsNoMessageIsRefused) {
  LocalServers servers(1);
  RawStream call(servers.address(0), method::kAttach);
  EXPECT_TRUE(call.Write(Raw(std::string(100, '\xff'))));
  EXPECT_EQ(ReasonOf(call.Drain()), Reason::kBadFrame);
  RawStream unknown(servers.address(0), "/ballast.v1.Control/Destroy");
  EXPECT_EQ(unknown.Drain().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace ballast::server
