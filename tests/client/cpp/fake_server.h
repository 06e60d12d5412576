// A state server for the client's tests: speaks the protocol for one trainer, remembers every
// message received, and misbehaves on request. Its "optimizer" returns each gradient as the new
// weight. Its state survives the end of its streams, and Kill. As real ones do, all fakes of a job
// decide a round together.
// Thread safety: handlers run under the fake's lock, on gRPC's threads.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ballast/v1/control.pb.h"
#include "ballast/v1/data.pb.h"
#include "common/job/job_spec.h"
#include "common/tensor/layout.h"
#include "proto/convert/channel.h"
#include "proto/convert/grpc_status.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/methods.h"
#include "proto/convert/status_convert.h"
#include "tests/client/cpp/round_table.h"
#include "tests/client/cpp/transport/fake_stream.h"
#include "tests/proto/convert/grpc_frames.h"

namespace ballast::client {

inline constexpr size_t kFakeMaxBytes = 16 << 20;
// So much that a sender is held up by TCP rather than by HTTP/2.
inline constexpr int kFakeLookaheadBytes = 16 << 20;

class FakeServer;

// What all servers of the fake cluster agree on. The epoch record has a lock of its own, because a
// test changes it while the servers run.
struct FakeJob {
  // `slot` gets a new process, and the next epoch starts with `start_round`, which is not decided.
  void NextEpoch(uint32_t slot, uint64_t start_round) {
    EXPECT_GT(start_round, rounds.Newest()) << "no servers run a decided round again";
    std::lock_guard<std::mutex> lock(mu);
    record.set_epoch(epoch() + 1);
    record.set_start_round(start_round);
    newcomers[slot] = 1000 * record.epoch() + slot;
  }
  // The record as `attach` is told of it: its own process has its seat, unless that got a new one.
  v1::EpochRecord RecordFor(const v1::AttachRequest& attach) {
    std::lock_guard<std::mutex> lock(mu);
    v1::EpochRecord told = record;
    told.set_epoch(epoch());
    if (told.start_round() == 0) told.set_start_round(first_round);
    for (uint32_t slot = 0; slot < attach.spec().world(); ++slot) {
      v1::Member* const member = told.add_members();
      member->set_slot(slot);
      member->set_incarnation(slot == attach.slot() ? attach.incarnation() : slot);
      if (newcomers.count(slot) > 0) member->set_incarnation(newcomers[slot]);
    }
    return told;
  }
  uint32_t CurrentEpoch() {
    std::lock_guard<std::mutex> lock(mu);
    return epoch();
  }

  uint32_t chunk_bytes = 1024;
  uint64_t credit_bytes = 8192;
  uint32_t window_extents = 64;
  uint32_t heartbeat_ms = 500;
  uint32_t report_after_ms = 60'000;
  uint64_t first_round = 1;
  uint32_t fresh_tensors = 0;  // at the end of a resumed job's, told at Attach
  std::vector<std::pair<uint32_t, std::string>> servers;  // id, address
  RoundTable rounds;

  std::mutex live_mu;
  std::set<FakeServer*> live;  // under live_mu

  std::mutex mu;
  v1::EpochRecord record;                  // without members
  std::map<uint32_t, uint64_t> newcomers;  // slot -> incarnation

 private:
  uint32_t epoch() const { return std::max(record.epoch(), 1u); }
};

// How a test makes a fake server misbehave. Under the fake's lock.
struct FakeHooks {
  // Sees every message first; true: handled, the fake does nothing.
  using FrameHook = std::function<bool(FakeStream*, const DecodedFrame&)>;
  using ControlHook = std::function<bool(FakeStream*, const v1::ClientMessage&)>;
  using CompleteHook = std::function<bool(FakeStream*)>;
  using AttachHook = std::function<absl::Status(const v1::AttachRequest&)>;

  // Ends a stream as if the connection broke.
  static void Break(FakeStream* to) {
    to->End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "broken by the test"));
  }

  FrameHook on_frame;
  ControlHook on_control;
  AttachHook on_attach;
  CompleteHook on_complete;  // every gradient of the round is in; true: the fake does not vote
  std::function<void(v1::Welcome*)> change_welcome;
  std::function<void(v1::AttachReply*)> change_attach;
  std::function<void(v1::RoundResult*)> change_result;
  std::function<void(FakeStream*)> break_weights = Break;
  uint32_t weights_before_break = UINT32_MAX;  // weight frames until break_weights
  bool hold_attach = false;                    // Attach is not answered
  bool acknowledge = true;
  bool has_state = false;   // has initial weights from an earlier life
  std::set<uint32_t> kept;  // extents whose gradients outlive the epoch
};

// A fake server's observations so far. Under the fake's lock.
struct FakeRecord {
  std::vector<DecodedFrame> frames;  // in order of arrival, refused ones included
  std::vector<v1::Hello> hellos;
  std::vector<v1::RoundBegin> begins;
  std::vector<v1::Leave> leaves;
  v1::AttachRequest attach;                 // the first one
  std::vector<v1::AttachRequest> attaches;  // all
  v1::ExtendRequest extend;
  FakeStream* stream = nullptr;  // the newest
  uint64_t received_bytes = 0;
  uint64_t acknowledged_bytes = 0;
  uint64_t max_outstanding = 0;  // bytes received and not yet acknowledged
};

class FakeServer : public FakeHooks, public FakeRecord {
 public:
  FakeServer(uint32_t id, FakeJob* job) : id_(id), job_(job), address_("127.0.0.1:0") {
    Start();
    job_->servers.emplace_back(id, address_);
    std::lock_guard<std::mutex> lock(job_->live_mu);
    job_->live.insert(this);
  }
  ~FakeServer() {
    Kill();
    std::lock_guard<std::mutex> lock(job_->live_mu);
    job_->live.erase(this);
    job_->rounds.Clear();
  }

  // As if the process died. Not for handlers.
  void Kill() {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  // Listens; again at the same address after Kill.
  void Start() {
    service_ = std::make_unique<Service>(this);
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kFakeMaxBytes);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kFakeLookaheadBytes);
    int port = 0;
    builder.AddListeningPort(address_, MakeServerCredentials(), &port);
    builder.RegisterCallbackGenericService(service_.get());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  const std::string& address() const { return address_; }

  // Guards the hooks, the record and everything below.
  std::mutex& mutex() { return mu_; }

  // Weights as they are held: the bytes of each extent. Empty before the first INIT frame.
  std::map<uint32_t, std::string> weights;

  void Ack(FakeStream* to, uint64_t round, uint32_t window_base) {
    acknowledged_bytes = received_bytes;
    v1::ServerMessage message;
    message.mutable_ack()->set_received_bytes(received_bytes);
    message.mutable_ack()->set_round(round);
    message.mutable_ack()->set_window_base(window_base);
    to->Send(message);
  }

  void Refuse(FakeStream* to, const FrameHeader& header, v1::Reason reason) {
    v1::ServerMessage message;
    message.mutable_refused()->set_reason(reason);
    message.mutable_refused()->set_round(header.round);
    message.mutable_refused()->set_extent(header.extent);
    message.mutable_refused()->set_offset(header.offset_bytes);
    message.mutable_refused()->set_message("refused by the test");
    to->Send(message);
  }

  // Frames of `bytes` of an extent, in chunks; `flip` damages the first payload.
  void SendBytes(FakeStream* to, FrameKind kind, uint8_t array, uint64_t round, uint32_t extent,
                 ::ballast::DType dtype, const std::string& bytes, bool flip = false) {
    for (uint32_t at = 0; at < bytes.size(); at += job_->chunk_bytes) {
      std::string payload = bytes.substr(at, job_->chunk_bytes);
      FrameHeader header;
      header.job = kJob;
      header.epoch = epoch_;
      header.slot = attach.slot();
      header.round = round;
      header.extent = extent;
      header.incarnation = attach.incarnation();
      header.offset_bytes = at;
      header.length_bytes = static_cast<uint32_t>(payload.size());
      header.dtype = dtype;
      header.kind = kind;
      header.array = array;
      header.crc32c = Crc32c(payload.data(), payload.size(), IdentityCrc(header));
      if (kind == FrameKind::kWeight && weights_before_break-- == 0) break_weights(to);
      if (flip && at == 0) payload[0] = static_cast<char>(payload[0] ^ 1);
      const grpc::Slice slice(payload);
      to->Send(MakeFrame(header, {slice}));
    }
  }

  std::vector<uint32_t> Owned() const {
    std::vector<uint32_t> owned;
    for (uint32_t extent = 0; extent < owner_.size(); ++extent) {
      if (owner_[extent] == id_) owned.push_back(extent);
    }
    return owned;
  }
  const Layout& layout() const { return *layout_; }

  // As if the server had lost these before they were durable.
  void ForgetInit() { initialized_.clear(); }
  void ForgetGradients(uint32_t extent) {
    taken_.erase(taken_.lower_bound({extent, 0}), taken_.lower_bound({extent + 1, 0}));
  }

  // Votes as always. When the round is decided, this server tells its trainer nothing of that.
  void Decide() {
    finished_ = begins.back().round();
    news_ = Vote(finished_) || news_;
  }

  // Goes over to the job's newest epoch: the open round starts over, and the stream ends.
  void Adopt() {
    FollowEpoch();
    if (stream != nullptr) EndStale(stream);
  }

  // Owned extents whose gradients are all in.
  std::vector<uint32_t> Complete() const {
    std::vector<uint32_t> complete;
    for (const uint32_t extent : Owned()) {
      if (begins.empty() || begins.back().round() != round()) break;
      bool all = true;
      for (const ChunkRange& range : Expected(extent)) {
        all = all && taken_.count({extent, range.offset_bytes}) > 0;
      }
      if (all) complete.push_back(extent);
    }
    return complete;
  }
  uint64_t round() const { return finished_ == 0 ? job_->first_round : finished_ + 1; }

  // The open round, which is decided: result, weights and the end.
  void FinishRound(FakeStream* to, bool flip = false) {
    const uint64_t round = begins.back().round();
    EXPECT_TRUE(Vote(round)) << "a server sends its result when all servers have voted";
    finished_ = round;
    uint64_t bytes = 0;
    for (const uint32_t extent : Owned()) bytes += layout_->ExtentWireBytes(extent);
    v1::ServerMessage message;
    v1::RoundResult* const result = message.mutable_result();
    result->set_round(round);
    result->set_applied(true);
    result->set_grad_norm(1.25);
    result->set_clip_coef(1);
    result->set_loss_scale(1);
    result->set_opt_step(round);
    result->set_weight_bytes(bytes);
    if (change_result) change_result(result);
    to->Send(message);
    if (result->applied()) {
      for (const uint32_t extent : Owned()) {
        SendBytes(to, FrameKind::kWeight, 0, round + 1, extent, layout_->extents()[extent].dtype,
                  weights[extent], flip);
      }
    }
    v1::ServerMessage done;
    done.mutable_done()->set_round(round);
    to->Send(done);
  }

  static constexpr uint64_t kJob = 0xba11a57;

  // The layout and owners of the job, as the home tells its peers.
  void Plan(const JobSpec& spec) {
    layout_ = std::make_unique<Layout>(
        *Layout::Build(LayoutTensors(spec.tensors), spec.tile_elements, spec.extent_elements));
    owner_.clear();
    for (const uint32_t index : PlanOwners(*layout_, static_cast<uint32_t>(job_->servers.size()))) {
      owner_.push_back(job_->servers[index].first);
    }
  }
  std::vector<FakeServer*> peers;  // this one included

 private:
  // A service cannot be given to a second grpc::Server.
  class Service : public grpc::CallbackGenericService {
   public:
    explicit Service(FakeServer* fake) : fake_(fake) {}
    grpc::ServerGenericBidiReactor* CreateReactor(
        grpc::GenericCallbackServerContext* context) override {
      return fake_->CreateReactor(context);
    }

   private:
    FakeServer* const fake_;
  };

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) {
    const std::string method = context->method();
    auto receive = [this, method](FakeStream* call, const grpc::ByteBuffer& bytes) {
      if (Receive(method, call, bytes)) TellAll();
    };
    auto gone = [this](FakeStream* call) {
      std::lock_guard<std::mutex> lock(mu_);
      if (stream == call) stream = nullptr;
    };
    return new FakeStream(receive, gone);
  }

  // Whether a round was decided meanwhile, which the other servers do not know.
  bool Receive(const std::string& method, FakeStream* call, const grpc::ByteBuffer& bytes) {
    std::lock_guard<std::mutex> lock(mu_);
    if (method == method::kAttach) {
      OnAttach(call, bytes);
    } else if (method == method::kExtend) {
      OnExtend(call, bytes);
    } else {
      stream = call;
      OnMessage(call, bytes);
    }
    return std::exchange(news_, false);
  }

  // Whether all servers have voted on the round, as this one does now.
  bool Vote(uint64_t round) { return job_->rounds.Vote(id_, job_->servers.size(), epoch_, round); }
  // Under no fake's lock: it takes them all, one after the other.
  void TellAll() {
    std::lock_guard<std::mutex> lock(job_->live_mu);
    for (FakeServer* server : job_->live) server->FinishIfDecided();
  }
  void FinishIfDecided() {
    std::lock_guard<std::mutex> lock(mu_);
    const bool open = !begins.empty() && begins.back().round() == round();
    if (stream != nullptr && open && job_->rounds.Decided(round())) FinishRound(stream);
  }

  void OnAttach(FakeStream* call, const grpc::ByteBuffer& bytes) {
    v1::AttachRequest request;
    ASSERT_TRUE(ParseMessage(bytes, kFakeMaxBytes, &request).ok());
    attaches.push_back(request);
    const absl::Status status = on_attach ? on_attach(request) : absl::OkStatus();
    if (!status.ok()) return call->End(ToGrpc(status));
    if (hold_attach) return call->Hold();
    if (attach.spec().SerializeAsString() != request.spec().SerializeAsString()) {
      spec_ = *JobSpecFromProto(request.spec());
      for (FakeServer* peer : peers) {
        peer->Plan(spec_);
        peer->attach = request;
        peer->FollowEpoch();
      }
    }
    v1::AttachReply reply;
    reply.set_job(kJob);
    *reply.mutable_epoch() = job_->RecordFor(request);
    reply.set_resumed(reply.epoch().epoch() > 1);
    reply.set_fresh_tensors(job_->fresh_tensors);
    for (const uint32_t id : owner_) reply.mutable_plan()->add_owner(id);
    for (const auto& [id, address] : job_->servers) {
      v1::ServerAddress* const server = reply.add_servers();
      server->set_id(id);
      server->set_address(address);
    }
    reply.set_chunk_bytes(job_->chunk_bytes);
    reply.set_credit_bytes(job_->credit_bytes);
    reply.set_window_extents(job_->window_extents);
    reply.set_layout_version(1);
    reply.set_heartbeat_ms(job_->heartbeat_ms);
    reply.set_report_after_ms(job_->report_after_ms);
    reply.set_protocol(1);
    if (change_attach) change_attach(&reply);
    call->Send(SerializeMessage(reply));
    call->End(grpc::Status::OK);
  }

  void OnExtend(FakeStream* call, const grpc::ByteBuffer& bytes) {
    ASSERT_TRUE(ParseMessage(bytes, kFakeMaxBytes, &extend).ok());
    const auto added = TensorsFromProto(extend.tensors());
    ASSERT_TRUE(added.ok()) << added.status();
    spec_.tensors.insert(spec_.tensors.end(), added->begin(), added->end());
    v1::ExtendReply reply;
    reply.set_layout_version(extend.base_layout_version() + 1);
    reply.mutable_epoch()->set_epoch(extend.epoch());
    for (FakeServer* peer : peers) peer->Plan(spec_);
    for (const uint32_t id : owner_) reply.mutable_plan()->add_owner(id);
    call->Send(SerializeMessage(reply));
    call->End(grpc::Status::OK);
  }

  void OnMessage(FakeStream* to, const grpc::ByteBuffer& bytes) {
    auto input = DecodeClientMessage(bytes, kFakeMaxBytes, kFakeMaxBytes);
    ASSERT_TRUE(input.ok()) << input.status();
    if (absl::holds_alternative<DecodedFrame>(*input)) {
      OnFrame(to, absl::get<DecodedFrame>(*input));
    } else {
      OnControl(to, absl::get<v1::ClientMessage>(*input));
    }
  }

  void OnFrame(FakeStream* to, const DecodedFrame& frame) {
    ASSERT_TRUE(CheckFrameCrc(frame.header, FrameCrc(frame.header, frame.payload)).ok());
    const FrameHeader& header = frame.header;
    EXPECT_EQ(header.epoch, epoch_);
    frames.push_back(frame);
    received_bytes += header.length_bytes;
    max_outstanding = std::max(max_outstanding, received_bytes - acknowledged_bytes);
    if (on_frame && on_frame(to, frame)) return;
    Take(frame);
    if (acknowledge) Ack(to, header.round, 0);
    if (header.kind == FrameKind::kGradient) FinishIfComplete(to);
  }

  void Take(const DecodedFrame& frame) {
    const FrameHeader& header = frame.header;
    std::string& held = weights[header.extent];
    held.resize(layout_->ExtentWireBytes(header.extent), '\0');
    const bool gradient = header.kind == FrameKind::kGradient;
    // Received parts of the round's "step" stay.
    if (gradient || taken_.empty()) frame.payload.CopyTo(held.data() + header.offset_bytes);
    (gradient ? taken_ : initialized_).emplace(header.extent, header.offset_bytes);
  }

  // Frames of an extent that the slot sends in the open round.
  std::vector<ChunkRange> Expected(uint32_t extent) const {
    std::vector<bool> present;
    const std::string& bits = begins.back().presence();
    for (size_t i = 0; !bits.empty() && i < layout_->tensors().size(); ++i) {
      present.push_back((bits[i / 8] >> i % 8 & 1) != 0);
    }
    return ChunkRanges(*layout_, extent, job_->chunk_bytes, present);
  }

  std::vector<uint32_t> InitMissing() const {
    std::vector<uint32_t> missing;
    for (const uint32_t extent : Owned()) {
      bool all = true;
      if (has_state) break;
      for (const ChunkRange& range : ChunkRanges(*layout_, extent, job_->chunk_bytes, {})) {
        all = all && initialized_.count({extent, range.offset_bytes}) > 0;
      }
      if (!all) missing.push_back(extent);
    }
    return missing;
  }

  void FinishIfComplete(FakeStream* to) {
    if (Complete() != Owned()) return;
    if (on_complete && on_complete(to)) return;
    if (!Vote(begins.back().round())) return;
    FinishRound(to);
    news_ = true;
  }

  void FollowEpoch() {
    if (epoch_ == job_->CurrentEpoch()) return;
    epoch_ = job_->CurrentEpoch();
    for (const auto& taken : std::exchange(taken_, {})) {
      if (kept.count(taken.first) > 0) taken_.insert(taken);
    }
  }
  void EndStale(FakeStream* to) {
    const absl::Status stale =
        ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kStaleEpoch,
                      "the job is in epoch " + std::to_string(epoch_) + "; attach again");
    v1::ServerMessage error;
    *error.mutable_error() = DetailOf(stale);
    to->Send(error);
    to->End(ToGrpc(stale));
  }

  void OnHello(FakeStream* to, const v1::Hello& hello) {
    if (hello.epoch() > epoch_) FollowEpoch();
    if (hello.epoch() < epoch_) return EndStale(to);
    v1::ServerMessage reply;
    v1::Welcome* const welcome = reply.mutable_welcome();
    if (job_->rounds.Decided(round())) finished_ = round();  // While the trainer was away.
    welcome->set_round(round());
    for (const uint32_t extent : Complete()) welcome->add_complete(extent);
    for (const uint32_t extent : InitMissing()) welcome->add_init_missing(extent);
    if (change_welcome) change_welcome(welcome);
    to->Send(reply);
    if (hello.round() + 1 == welcome->round()) FinishRound(to);
  }

  void OnControl(FakeStream* to, const v1::ClientMessage& message) {
    if (message.has_hello()) {
      hellos.push_back(message.hello());
      received_bytes = 0;
      acknowledged_bytes = 0;
    }
    if (message.has_begin()) {
      EXPECT_TRUE(attach.slot() != 0 || InitMissing().empty());
      if (begins.empty() || begins.back().round() != message.begin().round()) taken_.clear();
      begins.push_back(message.begin());
    }
    if (message.has_leave()) leaves.push_back(message.leave());
    if (on_control && on_control(to, message)) return;
    v1::ServerMessage reply;
    if (message.has_hello()) {
      OnHello(to, message.hello());
    } else if (message.has_heartbeat()) {
      *reply.mutable_heartbeat() = message.heartbeat();
      to->Send(reply);
    } else if (message.has_begin()) {
      FinishIfComplete(to);
    } else if (message.has_fetch_state()) {
      OnFetch(to, message.fetch_state());
    }
  }

  // State array a of an extent is filled with the byte 'p' + a.
  void OnFetch(FakeStream* to, const v1::FetchState& request) {
    v1::ServerMessage info;
    info.mutable_state()->set_round(request.round());
    uint64_t bytes = 0;
    for (const uint32_t extent : Owned()) {
      if (request.weights()) bytes += layout_->ExtentWireBytes(extent);
      bytes += uint64_t{4} * layout_->extents()[extent].elements * request.arrays().size();
    }
    info.mutable_state()->set_bytes(bytes);
    for (size_t i = 0; i < layout_->tensors().size(); ++i) info.mutable_state()->add_tensor_step(i);
    to->Send(info);
    for (const uint32_t extent : Owned()) {
      if (request.weights()) {
        weights[extent].resize(layout_->ExtentWireBytes(extent), 'w');
        SendBytes(to, FrameKind::kWeight, 0, request.round(), extent,
                  layout_->extents()[extent].dtype, weights[extent]);
      }
      for (const uint32_t array : request.arrays()) {
        SendBytes(to, FrameKind::kState, static_cast<uint8_t>(array), request.round(), extent,
                  ::ballast::DType::kF32,
                  std::string(size_t{4} * layout_->extents()[extent].elements,
                              static_cast<char>('p' + array)));
      }
    }
  }

  const uint32_t id_;
  FakeJob* const job_;
  std::string address_;
  std::mutex mu_;
  JobSpec spec_;
  std::unique_ptr<Layout> layout_;
  std::vector<uint32_t> owner_;
  std::set<std::pair<uint32_t, uint32_t>> taken_;  // extent, offset: gradients of the open round
  std::set<std::pair<uint32_t, uint32_t>> initialized_;  // likewise: initial weights
  uint64_t finished_ = 0;                                // newest round that it knows as decided
  bool news_ = false;                                    // a round was decided by its vote
  uint32_t epoch_ = 1;
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace ballast::client
