// Set-up and end of a session, and its completion-queue thread: time, and what is received and
// sent. The calls of the public interface are in session_calls.cc.
#include "client/cpp/src/session.h"

#include <grpc/support/time.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/crc32c.h"
#include "common/base/executor.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "proto/convert/channel.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/status_convert.h"

namespace ballast::client {
namespace {

// A server is looked after twice as often as it is sent a heartbeat, so that one that falls silent
// is reported at most half a heartbeat late.
constexpr uint64_t kTicksPerHeartbeat = 2;
// A tick that comes this many intervals late says that this process was stopped, not the servers.
constexpr int kLateTicks = 3;
constexpr std::chrono::seconds kLogInterval{30};
constexpr uint32_t kDefaultHeartbeatMs = 500;
constexpr uint32_t kDefaultReportAfterMs = 2500;

std::chrono::nanoseconds Scaled(uint32_t ms, uint32_t default_ms, double time_scale) {
  const double scaled_ms = (ms > 0 ? ms : default_ms) * time_scale;
  return std::chrono::nanoseconds(static_cast<int64_t>(scaled_ms * 1e6));
}

SendLimits LimitsOf(const v1::AttachReply& reply) {
  return {reply.chunk_bytes(), reply.credit_bytes(), reply.window_extents()};
}

}  // namespace

Session::Session(const JobOptions& options, Seat seat)
    : options_(options),
      job_(seat.reply.job()),
      incarnation_(seat.incarnation),
      limits_(LimitsOf(seat.reply)),
      heartbeat_(Scaled(seat.reply.heartbeat_ms(), kDefaultHeartbeatMs, options.time_scale)),
      report_after_(
          Scaled(seat.reply.report_after_ms(), kDefaultReportAfterMs, options.time_scale)),
      spec_(std::move(seat.spec)),
      layout_(std::move(seat.layout)),
      epoch_(seat.reply.epoch().epoch()),
      layout_version_(seat.reply.layout_version()) {
  for (const v1::ServerAddress& address : seat.reply.servers()) {
    Server server;
    server.id = address.id();
    server.address = address.address();
    server.channel = grpc::CreateCustomChannel(server.address, grpc::InsecureChannelCredentials(),
                                               MakeChannelArgs(options.time_scale));
    server.plan = std::make_unique<SendPlan>(&layout_, limits_);
    servers_.push_back(std::move(server));
  }
}

Session::~Session() {
  {
    MutexLock lock(&mu_);
    closing_ = true;
    Fail(ReasonedError(absl::StatusCode::kCancelled, Reason::kClosed, "the client was closed"));
    tick_.Cancel();
    while (!AllClosed() || tick_armed_) changed_.Wait(&mu_);
  }
  queue_.Shutdown();
  if (thread_.joinable()) {
    thread_.join();
  } else {
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }
  // The last references to unsent slices go with the streams and their connections.
  servers_.clear();
}

absl::Status Session::TakePlan(const v1::Plan& plan, const Layout& layout) {
  const auto known = [this](uint32_t id) {
    return std::any_of(servers_.begin(), servers_.end(),
                       [id](const Server& server) { return server.id == id; });
  };
  const bool complete = static_cast<size_t>(plan.owner_size()) == layout.extents().size();
  if (!complete || !std::all_of(plan.owner().begin(), plan.owner().end(), known)) {
    return ReasonedError(
        absl::StatusCode::kInternal, Reason::kLayoutMismatch,
        absl::StrCat("the home's plan has ", plan.owner_size(), " extents, ours has ",
                     layout.extents().size(), ", or it names an unknown server; use the same ",
                     "release of Ballast on both sides"));
  }
  MutexLock lock(&mu_);
  owner_.assign(plan.owner().begin(), plan.owner().end());
  layout_ = layout;
  AssignExtents();
  return absl::OkStatus();
}

void Session::AssignExtents() {
  for (Server& server : servers_) {
    server.owned.clear();
    server.owned_weight_bytes = 0;
    server.owned_elements = 0;
    for (const uint32_t extent : layout_.push_order()) {
      if (owner_[extent] != server.id) continue;
      server.owned.push_back(extent);
      server.owned_weight_bytes += layout_.ExtentWireBytes(extent);
      server.owned_elements += layout_.extents()[extent].elements;
    }
  }
}

absl::StatusOr<std::unique_ptr<Session>> Session::Open(const JobOptions& options, Seat seat,
                                                       const std::vector<void*>& weights) {
  const v1::AttachReply& reply = seat.reply;
  const bool chunk_ok = reply.chunk_bytes() > 0 && reply.chunk_bytes() % 64 == 0 &&
                        reply.chunk_bytes() <= kMaxMessageBytes / 2;
  if (reply.servers().empty() || !chunk_ok || reply.window_extents() == 0) {
    return ReasonedError(
        absl::StatusCode::kInternal, Reason::kProtocolMismatch,
        absl::StrCat("the home answered with ", reply.servers_size(), " servers, chunks of ",
                     reply.chunk_bytes(), " bytes and a window of ", reply.window_extents(),
                     " extents; use the same release on both sides"));
  }
  const v1::Plan plan = reply.plan();
  const Layout layout = seat.layout;
  std::unique_ptr<Session> session(new Session(options, std::move(seat)));
  BALLAST_RETURN_IF_ERROR(session->TakePlan(plan, layout));
  BALLAST_RETURN_IF_ERROR(session->OpenStreams());
  BALLAST_RETURN_IF_ERROR(session->Initialize(options.init, weights, 0));
  session->MarkOpened();
  return session;
}

void Session::MarkOpened() {
  MutexLock lock(&mu_);
  opened_ = true;
}

absl::Status Session::OpenStreams() {
  const Time deadline = std::chrono::steady_clock::now() + options_.attach_timeout;
  {
    MutexLock lock(&mu_);
    v1::ClientMessage hello;
    *hello.mutable_hello()->mutable_protocol() = OwnProtocolRange();
    hello.mutable_hello()->set_job(job_);
    hello.mutable_hello()->set_epoch(epoch_);
    hello.mutable_hello()->set_slot(options_.slot);
    hello.mutable_hello()->set_incarnation(incarnation_);
    hello.mutable_hello()->set_layout_version(layout_version_);
    StreamHandler* const handler = this;
    for (size_t i = 0; i < servers_.size(); ++i) {
      Server& server = servers_[i];
      server.stream = std::make_unique<Stream>(i, server.channel, &queue_, handler);
      server.control.push_back(SerializeMessage(hello));
      server.last_heard = std::chrono::steady_clock::now();
      server.stream->Start();
    }
    ArmTick(TickInterval());
  }
  thread_ = std::thread([this] { RunQueue(); });
  while (true) {
    BALLAST_RETURN_IF_ERROR(PollDuringCall());
    MutexLock lock(&mu_);
    if (!error_.ok()) return error_;
    const auto silent = std::find_if(servers_.begin(), servers_.end(),
                                     [](const Server& server) { return !server.welcomed; });
    if (silent == servers_.end()) return absl::OkStatus();
    if (std::chrono::steady_clock::now() >= deadline) {
      return ServerLost(*silent, "did not answer Hello within the attach timeout");
    }
    changed_.WaitFor(&mu_, std::chrono::milliseconds(100));
  }
}

void Session::RunQueue() {
  SetThreadName("ballast-client");
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
    MutexLock lock(&mu_);
    static_cast<CompletionTag*>(tag)->OnEvent(ok);
  }
}

std::chrono::nanoseconds Session::TickInterval() const {
  return heartbeat_ / static_cast<int>(kTicksPerHeartbeat);
}

void Session::ArmTick(std::chrono::nanoseconds interval) {
  tick_armed_ = true;
  last_tick_ = std::chrono::steady_clock::now();
  tick_.Set(&queue_,
            gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                         gpr_time_from_nanos(interval.count(), GPR_TIMESPAN)),
            &tick_tag_);
}

void Session::OnTick(bool ok) {
  tick_armed_ = false;
  changed_.NotifyAll();
  if (closing_ || !error_.ok()) return;
  const Time now = std::chrono::steady_clock::now();
  if (!suspicion_.ok() && now - suspected_at_ >= SecondThought()) {
    End(suspicion_);
    return;
  }
  if (!ok) {
    ArmTick(SecondThought());
    return;
  }
  const bool we_slept = now - last_tick_ > heartbeat_ * kLateTicks;
  const bool beat = ++ticks_ % kTicksPerHeartbeat == 0;
  if (beat) ++heartbeat_sequence_;
  for (Server& server : servers_) {
    if (server.stream->closed()) continue;
    if (we_slept) server.last_heard = now;
    if (now - server.last_heard > report_after_) {
      Fail(ServerLost(server, "is not responding"));
      return;
    }
    server.plan->RetryRefused();
    if (beat && server.control.empty()) {
      v1::ClientMessage heartbeat;
      heartbeat.mutable_heartbeat()->set_sequence(heartbeat_sequence_);
      server.control.push_back(SerializeMessage(heartbeat));
    }
    server.stream->Kick();
  }
  LogLongWait(now);
  ArmTick(suspicion_.ok() ? TickInterval() : SecondThought());
}

void Session::LogLongWait(Time now) {
  if (activity_ != Activity::kStep || now < next_log_) return;
  next_log_ = now + kLogInterval;
  BALLAST_LOG(INFO, LogField("job", options_.job), LogField("slot", options_.slot),
              LogField("round", round_))
      << "still waiting for the round, unfinished servers: "
      << absl::StrJoin(progress_->Missing(), ", ")
      << "; `ballastctl status` names the trainers they wait for";
}

// A trainer that gives up because of a server looks lost to the other servers, and their word of
// it may come before we notice what is wrong with that server: it may have reached our limit of
// silence soon, or what it said is still on its way. Then the trainer is not the one to be named.
absl::Status Session::BlameSilentServer(const absl::Status& status) const {
  const Time now = std::chrono::steady_clock::now();
  const bool we_slept = now - last_tick_ > heartbeat_ * kLateTicks;
  if (ReasonOf(status) != Reason::kTrainerLost || we_slept) return status;
  for (const Server& server : servers_) {
    const bool open = server.stream != nullptr && !server.stream->closed();
    if (open && now - server.last_heard > report_after_ * 3 / 5) {
      return ServerLost(server, "is not responding");
    }
  }
  return status;
}

void Session::Fail(const absl::Status& status) {
  if (!error_.ok()) return;
  const absl::Status blamed = BlameSilentServer(status);
  if (ReasonOf(blamed) != Reason::kTrainerLost || servers_.size() == 1 || !tick_armed_) {
    End(blamed);
  } else if (suspicion_.ok()) {
    suspicion_ = blamed;
    suspected_at_ = std::chrono::steady_clock::now();
    tick_.Cancel();
  }
}

void Session::End(const absl::Status& status) {
  error_ = status;
  for (Server& server : servers_) {
    if (server.stream != nullptr && !server.stream->closed()) server.stream->Cancel();
  }
  changed_.NotifyAll();
}

absl::Status Session::ServerLost(const Server& server, absl::string_view how) const {
  ErrorFields fields;
  fields.job = options_.job;
  fields.server = static_cast<int>(server.id);
  fields.address = server.address;
  return ReasonedError(absl::StatusCode::kUnavailable, Reason::kServerLost,
                       absl::StrCat("state server ", server.id, " at ", server.address, " ", how),
                       fields);
}

absl::Status Session::ServerBroke(const Server& server, absl::string_view what) const {
  ErrorFields fields;
  fields.job = options_.job;
  fields.server = static_cast<int>(server.id);
  return ReasonedError(absl::StatusCode::kInternal, Reason::kBadFrame,
                       absl::StrCat("state server ", server.id, " at ", server.address, " ", what,
                                    "; use the same release of Ballast on both sides"),
                       fields);
}

bool Session::AllClosed() const {
  return std::all_of(servers_.begin(), servers_.end(), [](const Server& server) {
    return server.stream == nullptr || server.stream->closed();
  });
}

void Session::OnClosed(size_t index, const absl::Status& status) {
  changed_.NotifyAll();
  if (!error_.ok() || leaving_) return;
  if (ReasonOf(status) != Reason::kUnspecified) {
    Fail(status);
    return;
  }
  const std::string how =
      status.ok() ? "closed the stream" : absl::StrCat("is gone: ", status.message());
  Fail(ServerLost(servers_[index], how));
}

void Session::OnMessage(size_t index, const grpc::ByteBuffer& message) {
  Server& server = servers_[index];
  if (!error_.ok() || server.gave_up) return;
  server.last_heard = std::chrono::steady_clock::now();
  const absl::StatusOr<ServerInput> input =
      DecodeServerMessage(message, limits_.chunk_bytes, kMaxMessageBytes);
  absl::Status status;
  if (!input.ok()) {
    status = ServerBroke(server, absl::StrCat("sent a ", input.status().message()));
  } else if (absl::holds_alternative<DecodedFrame>(*input)) {
    status = OnFrame(index, absl::get<DecodedFrame>(*input));
  } else {
    status = OnControl(index, absl::get<v1::ServerMessage>(*input));
  }
  if (!status.ok()) Fail(status);
  if (ActivityDone()) changed_.NotifyAll();
}

absl::Status Session::OnControl(size_t index, const v1::ServerMessage& message) {
  Server* const server = &servers_[index];
  const bool stepping = activity_ == Activity::kStep;
  switch (message.kind_case()) {
    case v1::ServerMessage::kWelcome:
      return OnWelcome(server, message.welcome());
    case v1::ServerMessage::kAck:
      return OnAck(server, message.ack());
    case v1::ServerMessage::kResult:
      if (!stepping) return ServerBroke(*server, "sent a result of no round");
      return progress_->OnResult(index, message.result(), std::chrono::steady_clock::now());
    case v1::ServerMessage::kError:
      server->gave_up = true;
      return FromDetail(message.error());
    case v1::ServerMessage::kHeartbeat:
      return absl::OkStatus();
    case v1::ServerMessage::kState:
      return OnStateInfo(server, message.state());
    case v1::ServerMessage::kRefused:
      return OnRefused(server, message.refused());
    case v1::ServerMessage::kDone:
      if (!stepping) return ServerBroke(*server, "ended a round that is not running");
      return progress_->OnDone(index, message.done());
    default:
      return ServerBroke(*server, "sent a message of an unknown kind");
  }
}

absl::Status Session::OnWelcome(Server* server, const v1::Welcome& welcome) {
  if (server->welcomed) return ServerBroke(*server, "said Welcome twice");
  for (const Server& other : servers_) {
    if (other.welcomed && round_ != welcome.round()) {
      return ServerBroke(*server, absl::StrCat("is at round ", welcome.round(), ", server ",
                                               other.id, " at ", round_));
    }
  }
  server->welcomed = true;
  round_ = welcome.round();
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::Status Session::OnAck(Server* server, const v1::Ack& ack) {
  server->plan->OnAck(ack.received_bytes(), ack.round(), ack.window_base());
  server->stream->Kick();
  if (activity_ == Activity::kStep &&
      std::all_of(servers_.begin(), servers_.end(),
                  [](const Server& s) { return s.plan->all_received(); })) {
    progress_->OnPushed(std::chrono::steady_clock::now());
  }
  return absl::OkStatus();
}

absl::Status Session::OnRefused(Server* server, const v1::FrameRefused& refused) {
  ++counters_.frames_refused;
  const Reason reason = static_cast<Reason>(refused.reason());
  const bool sending = activity_ == Activity::kStep || activity_ == Activity::kUpload;
  if (!sending && reason != Reason::kDuplicate && refused.round() >= round_) {
    // The memory has been given back, so the frame cannot be sent again.
    return ServerBroke(*server, absl::StrCat("refused bytes that it had acknowledged: ",
                                             ReasonName(reason), ": ", refused.message()));
  }
  const absl::Status status = server->plan->OnRefused(reason, refused.round(), refused.extent(),
                                                      refused.offset(), refused.message());
  server->stream->Kick();
  return status;
}

absl::Status Session::OnStateInfo(Server* server, const v1::StateInfo& info) {
  if (activity_ != Activity::kFetch || server->has_info) {
    return ServerBroke(*server, "sent state that was not asked for");
  }
  if (info.round() != round_ || info.bytes() != server->expected_bytes) {
    return ServerBroke(
        *server, absl::StrCat("offers ", info.bytes(), " bytes of version ", info.round(),
                              ", asked for ", server->expected_bytes, " of version ", round_));
  }
  server->has_info = true;
  // Every server counts the steps of every tensor that it owns a part of.
  const size_t tensors = layout_.tensors().size();
  tensor_step_.resize(tensors);
  for (size_t i = 0; i < std::min<size_t>(tensors, info.tensor_step_size()); ++i) {
    tensor_step_[i] = std::max<uint64_t>(tensor_step_[i], info.tensor_step(static_cast<int>(i)));
  }
  return absl::OkStatus();
}

absl::Status Session::OnFrame(size_t index, const DecodedFrame& frame) {
  Server& server = servers_[index];
  const FrameHeader& header = frame.header;
  if (header.job != job_ || header.slot != options_.slot) {
    return ServerBroke(server,
                       absl::StrCat("sent a frame for slot ", header.slot, " of job ", header.job));
  }
  if (header.extent >= owner_.size() || owner_[header.extent] != server.id) {
    return ServerBroke(server, absl::StrCat("sent extent ", header.extent, ", not its own"));
  }
  counters_.payload_down_bytes += frame.payload.bytes();
  switch (header.kind) {
    case v1::FRAME_KIND_WEIGHT:
      return OnWeightFrame(index, frame);
    case v1::FRAME_KIND_STATE:
      return OnStateFrame(&server, frame);
    default:
      return ServerBroke(server, "sent a frame of a kind that only trainers send");
  }
}

absl::Status Session::OnWeightFrame(size_t index, const DecodedFrame& frame) {
  Server& server = servers_[index];
  if (frame.header.dtype != layout_.extents()[frame.header.extent].dtype) {
    return ServerBroke(server, absl::StrCat("sent weights as ", DTypeName(frame.header.dtype)));
  }
  if (activity_ == Activity::kStep) {
    BALLAST_RETURN_IF_ERROR(progress_->OnWeight(index, frame.header.round, frame.payload.bytes(),
                                                std::chrono::steady_clock::now()));
  } else {
    BALLAST_RETURN_IF_ERROR(CountFetched(&server, frame));
  }
  return Store(server, frame, weights_);
}

absl::Status Session::OnStateFrame(Server* server, const DecodedFrame& frame) {
  if (frame.header.dtype != ::ballast::DType::kF32 || frame.header.array >= states_.size()) {
    return ServerBroke(*server, absl::StrCat("sent state array ", frame.header.array, " as ",
                                             DTypeName(frame.header.dtype)));
  }
  BALLAST_RETURN_IF_ERROR(CountFetched(server, frame));
  return Store(*server, frame, states_[frame.header.array]);
}

absl::Status Session::CountFetched(Server* server, const DecodedFrame& frame) {
  server->received_bytes += frame.payload.bytes();
  if (activity_ != Activity::kFetch || !server->has_info || frame.header.round != round_ ||
      server->received_bytes > server->expected_bytes) {
    return ServerBroke(*server, "sent bytes that were not asked for");
  }
  return absl::OkStatus();
}

absl::Status Session::Store(const Server& server, const DecodedFrame& frame,
                            const std::vector<void*>& destinations) {
  const FrameHeader& header = frame.header;
  const std::vector<TensorPiece> pieces =
      PiecesOf(layout_, header.extent, DTypeBytes(header.dtype), header.offset, header.length);
  if (pieces.empty() || destinations.size() != layout_.tensors().size()) {
    return ServerBroke(server, absl::StrCat("sent ", header.length, " bytes at ", header.offset,
                                            " of extent ", header.extent, ", which has no such"));
  }
  uint32_t crc = IdentityCrc(header);
  counters_.copied_down_bytes += Scatter(frame.payload, pieces, destinations, &crc);
  const absl::Status intact = VerifyChecksum(frame, crc);
  if (intact.ok()) return absl::OkStatus();
  ErrorFields fields = FieldsOf(intact);
  fields.job = options_.job;
  fields.server = static_cast<int>(server.id);
  return ReasonedError(intact.code(), Reason::kBadChecksum,
                       absl::StrCat("server ", server.id, ": ", intact.message()), fields);
}

void Session::SendControl(Server* server, const v1::ClientMessage& message) {
  server->control.push_back(SerializeMessage(message));
}

std::optional<grpc::ByteBuffer> Session::NextMessage(size_t index) {
  Server& server = servers_[index];
  if (!server.control.empty()) {
    grpc::ByteBuffer message = std::move(server.control.front());
    server.control.pop_front();
    return message;
  }
  const bool sending = activity_ == Activity::kStep || activity_ == Activity::kUpload;
  if (!sending || !error_.ok()) return std::nullopt;
  const std::optional<FrameRange> range = server.plan->Next();
  if (!range.has_value()) return std::nullopt;
  return FormFrame(*range);
}

grpc::ByteBuffer Session::FormFrame(const FrameRange& range) {
  FrameHeader header;
  header.job = job_;
  header.epoch = epoch_;
  header.slot = options_.slot;
  header.round = round_;
  header.extent = range.extent;
  header.incarnation = incarnation_;
  header.offset = range.offset;
  header.length = range.length;
  header.dtype = layout_.extents()[range.extent].dtype;
  header.kind = send_kind_;
  // Right before the write, so that the kernel's copy finds the bytes in the cache.
  header.crc32c = IdentityCrc(header);
  std::vector<grpc::Slice> slices;
  for (const TensorPiece& piece :
       PiecesOf(layout_, range.extent, DTypeBytes(header.dtype), range.offset, range.length)) {
    const char* data = sources_[piece.tensor] + piece.tensor_offset;
    header.crc32c = Crc32c(data, piece.bytes, header.crc32c);
    slices.push_back(lease_.Wrap(data, piece.bytes));
  }
  counters_.payload_up_bytes += range.length;
  step_up_bytes_ += range.length;
  return MakeFrame(header, slices);
}

}  // namespace ballast::client
