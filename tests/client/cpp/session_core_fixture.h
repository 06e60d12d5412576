// A session's core over a transport without threads, with a server that echoes gradients.
// Comes from: session_core_test.cc, session_device_test.cc. Thread safety: one thread.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "client/cpp/session/session_core.h"
#include "common/base/reason.h"
#include "common/bytes/crc32c.h"
#include "proto/convert/channel.h"
#include "tests/client/cpp/transport/memory_transport.h"

namespace ballast::client {

inline constexpr uint32_t kElements = 64;
inline constexpr uint64_t kJob = 77;
inline constexpr char kAddress[] = "server:1";

// Tensors of one extent each, owned by the only server.
inline AttachedJob MakeAttachedJob(size_t tensors) {
  AttachedJob attached;
  attached.spec.name = "test";
  attached.spec.world = 1;
  attached.spec.group_count = 1;
  attached.spec.tile_elements = kElements;
  attached.spec.extent_elements = kElements;
  for (size_t i = 0; i < tensors; ++i) {
    TensorSpec tensor;
    tensor.name = "t" + std::to_string(i);
    tensor.shape = {kElements};
    tensor.dtype = ::ballast::DType::kF32;
    attached.spec.tensors.push_back(tensor);
    attached.reply.mutable_plan()->add_owner(1);
  }
  attached.layout = *Layout::Build(LayoutTensors(attached.spec.tensors), kElements, kElements);
  attached.incarnation = 5;
  attached.reply.set_job(kJob);
  attached.reply.mutable_epoch()->set_epoch(1);
  attached.reply.mutable_epoch()->set_start_round(1);
  attached.reply.mutable_epoch()->add_members()->set_incarnation(5);
  attached.reply.add_servers()->set_id(1);
  attached.reply.mutable_servers(0)->set_address(kAddress);
  attached.reply.set_chunk_bytes(128);
  attached.reply.set_credit_bytes(1 << 20);
  attached.reply.set_window_extents(64);
  attached.reply.set_layout_version(1);
  return attached;
}

// A server whose optimizer returns each gradient as the new weight.
class EchoServer {
 public:
  EchoServer(MemoryPeer* peer, size_t extents) : peer_(peer), values_(extents) {
    peer_->on_message = [this](const std::string& message) { OnMessage(message); };
  }

  // The job has one more tensor, of one extent.
  void Grow() { values_.emplace_back(); }
  // The job goes into its next epoch: the trainer's stream ends.
  void NextEpoch() {
    ++epoch_;
    peer_->End(ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kStaleEpoch,
                             "the job is in a later epoch"));
  }

  uint32_t slot = 0;  // the trainer's
  bool silent = false;
  bool hold = false;     // takes gradients, and decides nothing
  uint32_t lacking = 0;  // the last extents: it sends neither their weights nor the end
  bool forgets = false;  // a decided round, with its link
  int frames_until_stop = -1;
  int begun = 0;   // RoundBegin
  int frames = 0;  // of gradients

 private:
  void OnMessage(const std::string& message) {
    if (silent) return;
    const auto input =
        DecodeClientMessage(Payload::FromString(message), kMaxMessageBytes, kMaxMessageBytes);
    ASSERT_TRUE(input.ok()) << input.status();
    if (absl::holds_alternative<DecodedFrame>(*input)) {
      OnFrame(absl::get<DecodedFrame>(*input));
    } else {
      OnControl(absl::get<v1::ClientMessage>(*input));
    }
  }
  void OnControl(const v1::ClientMessage& message) {
    v1::ServerMessage reply;
    begun += message.has_begin() ? 1 : 0;
    if (message.has_hello()) {
      taken_bytes_ = 0;
      received_bytes_ = 0;
      reply.mutable_welcome()->set_round(round_);
      decided_ = decided_ && !forgets;
      for (uint32_t extent = 0; decided_ && extent < values_.size(); ++extent) {
        reply.mutable_welcome()->add_complete(extent);
      }
    } else if (message.has_heartbeat()) {
      *reply.mutable_heartbeat() = message.heartbeat();
    } else {
      return;
    }
    peer_->Send(reply.SerializeAsString());
    if (message.has_hello() && decided_) FinishRound();
  }
  void OnFrame(const DecodedFrame& frame) {
    ASSERT_TRUE(CheckFrameCrc(frame.header, FrameCrc(frame.header, frame.payload)).ok());
    if (frames_until_stop >= 0 && frames_until_stop-- == 0) return peer_->Stop();
    const FrameHeader& header = frame.header;
    frames += header.kind == FrameKind::kGradient ? 1 : 0;
    values_[header.extent].resize(kElements * sizeof(float));
    frame.payload.CopyTo(values_[header.extent].data() + header.offset_bytes);
    received_bytes_ += header.length_bytes;
    v1::ServerMessage ack;
    ack.mutable_ack()->set_received_bytes(received_bytes_);
    ack.mutable_ack()->set_round(round_);
    peer_->Send(ack.SerializeAsString());
    if (header.kind == FrameKind::kGradient) taken_bytes_ += header.length_bytes;
    if (taken_bytes_ == TotalBytes() && !hold) FinishRound();
  }
  void FinishRound() {
    taken_bytes_ = 0;
    decided_ = true;
    v1::ServerMessage result;
    result.mutable_result()->set_round(round_);
    result.mutable_result()->set_applied(true);
    result.mutable_result()->set_opt_step(round_);
    result.mutable_result()->set_weight_bytes(TotalBytes());
    peer_->Send(result.SerializeAsString());
    for (uint32_t extent = 0; extent + lacking < values_.size(); ++extent) SendWeights(extent);
    if (lacking > 0) return;
    decided_ = false;
    v1::ServerMessage done;
    done.mutable_done()->set_round(round_++);
    peer_->Send(done.SerializeAsString());
  }
  void SendWeights(uint32_t extent) {
    const std::string& bytes = values_[extent];
    for (uint32_t at = 0; at < bytes.size(); at += 128) {
      FrameHeader header;
      header.job = kJob;
      header.epoch = epoch_;
      header.slot = slot;
      header.round = round_ + 1;
      header.extent = extent;
      header.offset_bytes = at;
      header.length_bytes = 128;
      header.dtype = ::ballast::DType::kF32;
      header.kind = FrameKind::kWeight;
      header.crc32c = Crc32c(bytes.data() + at, 128, IdentityCrc(header));
      peer_->Send(EncodeFramePrefix(header) + bytes.substr(at, 128));
    }
  }
  uint64_t TotalBytes() const { return values_.size() * kElements * sizeof(float); }

  MemoryPeer* const peer_;
  std::vector<std::string> values_;  // per extent
  uint32_t epoch_ = 1;
  uint64_t round_ = 1;
  bool decided_ = false;  // the round, which is not over
  uint64_t received_bytes_ = 0;
  uint64_t taken_bytes_ = 0;
};

// Runs events until `done`; false when there is none left before.
inline bool RunUntil(EventQueue* events, const std::function<bool()>& done) {
  while (!done()) {
    if (!events->RunOne()) return false;
  }
  return true;
}

class SessionCoreTest : public ::testing::Test {
 protected:
  static constexpr size_t kTensors = 3;

  // A job whose gradients are equal on these slots; slot 3 is this trainer's.
  static AttachedJob WithMembers(const std::vector<uint32_t>& slots) {
    AttachedJob attached = MakeAttachedJob(kTensors);
    attached.spec.gradients = ::ballast::Gradients::kReduced;
    v1::EpochRecord* const epoch = attached.reply.mutable_epoch();
    epoch->clear_members();
    for (const uint32_t slot : slots) {
      v1::Member* const member = epoch->add_members();
      member->set_slot(slot);
      member->set_incarnation(slot == 3 ? 5 : 9);
    }
    v1::ContributorSet* const set = epoch->add_contributors();
    set->add_slots(slots.front());
    set->set_divisor(1);
    return attached;
  }
  void Start(Durability durability) { Start(durability, MakeAttachedJob(kTensors)); }
  void Start(Durability durability, const AttachedJob& attached) {
    ASSERT_TRUE(TryStart(durability, attached));
  }
  // Whether the server lets the trainer in.
  bool TryStart(Durability durability, const AttachedJob& attached) {
    options_.job = "test";
    options_.durability = durability;
    options_.on_pause = [](const Pause&) {};
    SessionCore::Environment environment;
    environment.transport = &transport_;
    environment.lease = &lease_;
    environment.on_change = [this] { ++changes_; };
    core_ = std::make_unique<SessionCore>(options_, attached, environment);
    EXPECT_TRUE(core_->Start(attached.reply.plan()).ok());
    for (size_t i = 0; i < kTensors; ++i) AddBuffers();
    const ServerLink& server = *core_->servers()[0];
    RunUntil([&] { return server.welcomed() || !core_->error().ok(); });
    return server.welcomed();
  }
  void AddBuffers() {
    grads_.emplace_back(kElements, static_cast<float>(grads_.size() + 1));
    weights_.emplace_back(kElements, 0.0f);
  }
  // The home's answer to attach from now on: the job with `tensors` in `epoch`.
  void AnswerAttach(size_t tensors, uint32_t epoch) {
    v1::AttachReply reply = MakeAttachedJob(tensors).reply;
    reply.set_layout_version(static_cast<uint32_t>(tensors - kTensors + 1));
    reply.mutable_epoch()->set_epoch(epoch);
    peer_->AnswerCalls(reply.SerializeAsString());
  }
  // The job has grown by one tensor, which its home has answered in `epoch`.
  void Grow(uint32_t epoch) {
    server_.Grow();
    AddBuffers();
    AttachedJob grown = MakeAttachedJob(kTensors + 1);
    v1::ExtendReply reply;
    *reply.mutable_plan() = grown.reply.plan();
    reply.set_layout_version(2);
    reply.set_window_extents(64);
    reply.mutable_epoch()->set_epoch(epoch);
    ASSERT_TRUE(core_->Grow(grown.spec, std::move(grown.layout), reply).ok());
  }
  // In the job's next epoch the trainer runs a round with all its tensors.
  void ExpectARoundInEpoch(uint32_t epoch) {
    BeginStep();
    ASSERT_TRUE(RunStep());
    ASSERT_TRUE(core_->error().ok()) << core_->error();
    RoundReport report;
    ASSERT_TRUE(core_->EndRound(&report).ok());
    EXPECT_EQ(weights_, grads_);
    EXPECT_EQ(core_->job().epoch, epoch);
    EXPECT_EQ(core_->job().layout_version, 2u);
  }
  bool RunUntil(const std::function<bool()>& done) { return client::RunUntil(&events_, done); }
  void BeginStep() { ASSERT_TRUE(TryStep(0).ok()); }
  // Of sums over the members of `sums_of`; 0: of gradients.
  absl::Status TryStep(uint32_t sums_of) {
    std::vector<TensorBuffers> buffers(grads_.size());
    for (size_t i = 0; i < grads_.size(); ++i) {
      buffers[i].grad = grads_[i].data();
      buffers[i].weight = weights_[i].data();
    }
    auto input = StepInput(core_->job(), std::vector<Hyper>(1, AdamWHyper()), buffers);
    EXPECT_TRUE(input.ok()) << input.status();
    input->sums_of = sums_of;
    return core_->BeginRound(*std::move(input));
  }
  bool RunStep() {
    return RunUntil([this] { return core_->Done() || !core_->error().ok(); });
  }
  Time now() const { return events_.now(); }

  BufferLease lease_;
  EventQueue events_;
  MemoryTransport transport_{&events_};
  MemoryPeer* const peer_ = transport_.AddPeer(kAddress);
  EchoServer server_{peer_, kTensors};
  JobOptions options_;
  std::vector<std::vector<float>> grads_;
  std::vector<std::vector<float>> weights_;
  int changes_ = 0;
  std::unique_ptr<SessionCore> core_;
};

}  // namespace ballast::client
