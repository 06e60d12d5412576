// Set-up and end of a session, and its completion-queue thread's sense of time. What that thread
// receives and sends is in session_stream.cc, how it copes with servers that go away in
// session_pause.cc, and with trainers that are replaced in session_epoch.cc; the calls of the
// public interface are in session_calls.cc.
#include "client/cpp/src/session.h"

#include <grpc/support/time.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/base/thread_executor.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "proto/convert/channel.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/status_convert.h"

namespace ballast::client {
namespace {

// A server is looked after twice as often as it is sent a heartbeat, so that one that falls silent
// is reported at most half a heartbeat late.
constexpr int kLooksPerHeartbeat = 2;
// A tick that comes this many heartbeats late says that this process was stopped, not the servers.
constexpr int kLateHeartbeats = 3;
constexpr std::chrono::seconds kLogInterval{30};
constexpr std::chrono::microseconds kSpinTime{50};
constexpr uint32_t kDefaultHeartbeatMs = 500;
constexpr uint32_t kDefaultReportAfterMs = 2500;

std::chrono::nanoseconds Scaled(uint32_t ms, uint32_t default_ms, double time_scale) {
  const double scaled_ms = (ms > 0 ? ms : default_ms) * time_scale;
  return std::chrono::nanoseconds(static_cast<int64_t>(scaled_ms * 1e6));
}

Reconnect::Limits ReconnectLimits(const JobOptions& options) {
  // More would overflow the clock.
  constexpr double kTimeoutMaxMs = 1e12;
  const double ms = static_cast<double>(options.reconnect_timeout.count()) * options.time_scale;
  Reconnect::Limits limits;
  limits.timeout =
      std::chrono::milliseconds(static_cast<int64_t>(std::clamp(ms, 1.0, kTimeoutMaxMs)));
  return limits;
}

// The home waits for the others itself, so the first try is made at once.
Reconnect::Limits AttachLimits(const JobOptions& options) {
  Reconnect::Limits limits = ReconnectLimits(options);
  limits.first_backoff = std::chrono::milliseconds(1);
  return limits;
}

SendLimits LimitsOf(const v1::AttachReply& reply) {
  return {reply.chunk_bytes(), reply.credit_bytes(), reply.window_extents()};
}

// A job's first round. Later ones have changed the initial weights.
constexpr uint64_t kFirstRound = 1;

// The first extent of the last `tensors` tensors.
uint32_t FirstFresh(const Layout& layout, uint32_t tensors) {
  const size_t known = layout.tensors().size() - std::min<size_t>(tensors, layout.tensors().size());
  uint32_t extent = 0;
  for (const Extent& each : layout.extents()) {
    if (layout.runs()[each.first_run].tensor >= known) break;
    ++extent;
  }
  return extent;
}

}  // namespace

std::map<uint32_t, uint64_t> Session::MembersOf(const v1::EpochRecord& record) {
  std::map<uint32_t, uint64_t> members;
  for (const v1::Member& member : record.members()) members[member.slot()] = member.incarnation();
  return members;
}

Session::Session(const JobOptions& options, Seat seat)
    : options_(options),
      job_(seat.reply.job()),
      incarnation_(seat.incarnation),
      durable_(options.durability != Durability::kNone),
      resumed_(seat.reply.resumed()),
      limits_(LimitsOf(seat.reply)),
      heartbeat_(Scaled(seat.reply.heartbeat_ms(), kDefaultHeartbeatMs, options.time_scale)),
      report_after_(
          Scaled(seat.reply.report_after_ms(), kDefaultReportAfterMs, options.time_scale)),
      passage_(AttachLimits(options)),
      spec_(std::move(seat.spec)),
      layout_(std::move(seat.layout)),
      epoch_(seat.reply.epoch().epoch()),
      start_round_(seat.reply.epoch().start_round()),
      members_(MembersOf(seat.reply.epoch())),
      layout_version_(seat.reply.layout_version()),
      round_(resumed_ ? start_round_ : 0),
      user_state_(resumed_ ? std::string(seat.reply.user_state()) : std::string()) {
  for (const v1::ServerAddress& address : seat.reply.servers()) {
    Server server(ReconnectLimits(options));
    server.id = address.id();
    server.address = address.address();
    server.plan = std::make_unique<SendPlan>(&layout_, limits_);
    servers_.push_back(std::move(server));
  }
  if (round_ > kFirstRound) fresh_extent_ = FirstFresh(layout_, seat.reply.fresh_tensors());
}

Session::~Session() {
  {
    MutexLock lock(&mu_);
    closing_ = true;
    Fail(ReasonedError(absl::StatusCode::kCancelled, Reason::kClosed, "the client was closed"));
    tick_.Cancel();
    while (!AllClosed() || tick_armed_ || passage_.call != nullptr) changed_.Wait(&mu_);
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
  MutexLock lock(&mu_);
  retired_.clear();
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
  BALLAST_RETURN_IF_ERROR(session->resumed_ ? session->TakeOver(weights)
                                            : session->Initialize(options.init, weights, 0));
  session->MarkOpened();
  return session;
}

void Session::MarkOpened() {
  MutexLock lock(&mu_);
  opened_ = true;
}

v1::ClientMessage Session::MakeHello(size_t index) const {
  v1::ClientMessage message;
  v1::Hello* const hello = message.mutable_hello();
  *hello->mutable_protocol() = OwnProtocolRange();
  hello->set_job(job_);
  hello->set_epoch(epoch_);
  hello->set_slot(options_.slot);
  hello->set_incarnation(incarnation_);
  hello->set_layout_version(layout_version_);
  hello->set_round(round_ == 0 ? start_round_ : HeldVersion(index));
  return message;
}

void Session::OpenStream(size_t index, Time now) {
  Server& server = servers_[index];
  // A connection of its own: the one before may still hold bytes that nobody takes any more.
  server.channel = grpc::CreateCustomChannel(server.address, grpc::InsecureChannelCredentials(),
                                             MakeChannelArgs(options_.time_scale));
  StreamHandler* const handler = this;
  server.stream = std::make_unique<Stream>(StreamKey{index, server.generation},
                                           /*wait_for_server=*/!server.reconnect.away(),
                                           server.channel, &queue_, handler);
  server.control.push_back(SerializeMessage(MakeHello(index)));
  server.last_heard = now;
  server.stream->Start();
}

absl::Status Session::OpenStreams() {
  const Time now = std::chrono::steady_clock::now();
  {
    MutexLock lock(&mu_);
    for (size_t i = 0; i < servers_.size(); ++i) OpenStream(i, now);
    next_look_ = now + heartbeat_ / kLooksPerHeartbeat;
    ArmTick(now);
  }
  thread_ = std::thread([this] { RunQueue(); });
  return AwaitWelcomes(now + options_.attach_timeout);
}

absl::Status Session::AwaitWelcomes(Time deadline) {
  while (true) {
    ReportPauses();
    BALLAST_RETURN_IF_ERROR(PollDuringCall());
    MutexLock lock(&mu_);
    if (!error_.ok()) return error_;
    const auto silent = std::find_if(servers_.begin(), servers_.end(),
                                     [](const Server& server) { return !server.welcomed; });
    if (silent == servers_.end()) return absl::OkStatus();
    if (std::chrono::steady_clock::now() >= deadline) {
      const std::string& last = silent->reconnect.last_error();
      return ServerLost(*silent, absl::StrCat("did not answer Hello within the attach timeout",
                                              last.empty() ? "" : "; the last error was: ", last));
    }
    changed_.WaitFor(&mu_, std::chrono::milliseconds(100));
  }
}

// Waits for the next event of the queue; false when it has shut down and is empty. Looks again and
// again for a moment before it sleeps: within a round the next event is microseconds away, and
// being woken up costs about as much, on both sides (docs/decisions/014).
bool Session::NextEvent(void** tag, bool* ok) {
  const Time sleep_at = std::chrono::steady_clock::now() + kSpinTime;
  do {
    switch (queue_.AsyncNext(tag, ok, gpr_time_0(GPR_CLOCK_MONOTONIC))) {
      case grpc::CompletionQueue::GOT_EVENT:
        return true;
      case grpc::CompletionQueue::SHUTDOWN:
        return false;
      case grpc::CompletionQueue::TIMEOUT:
        break;
    }
  } while (std::chrono::steady_clock::now() < sleep_at);
  return queue_.Next(tag, ok);
}

void Session::RunQueue() {
  SetThreadName("ballast-client");
  void* tag = nullptr;
  bool ok = false;
  while (NextEvent(&tag, &ok)) {
    std::vector<Retired> closed;  // Destroyed without the lock.
    MutexLock lock(&mu_);
    static_cast<CompletionTag*>(tag)->OnEvent(ok);
    closed = TakeClosed();
  }
}

// Sets the timer to whatever is due first.
void Session::ArmTick(Time now) {
  Time due = next_look_;
  if (!suspicion_.ok()) due = std::min(due, suspected_at_ + SecondThought());
  due = std::min(due, passage_.attach.due());
  for (const Server& server : servers_) due = std::min(due, server.reconnect.due());
  const Nanos wait = std::max(due - now, Nanos(0));
  tick_armed_ = true;
  last_tick_ = now;
  tick_.Set(
      &queue_,
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(wait.count(), GPR_TIMESPAN)),
      &tick_tag_);
}

// Also called when the timer was cancelled, because something is due earlier than it knew.
void Session::OnTick(bool) {
  tick_armed_ = false;
  changed_.NotifyAll();
  if (closing_ || !error_.ok()) return;
  const Time now = std::chrono::steady_clock::now();
  if (!suspicion_.ok() && now - suspected_at_ >= SecondThought()) {
    End(suspicion_);
    return;
  }
  if (now >= next_look_) {
    next_look_ = now + heartbeat_ / kLooksPerHeartbeat;
    LookAfterServers(now);
  }
  if (error_.ok()) RetryLostServers(now);
  if (error_.ok()) RetryAttach(now);
  if (error_.ok()) ArmTick(now);
}

void Session::LookAfterServers(Time now) {
  const bool we_slept = now - last_tick_ > heartbeat_ * kLateHeartbeats;
  const bool beat = ++looks_ % kLooksPerHeartbeat == 0;
  if (beat) ++heartbeat_sequence_;
  for (size_t i = 0; i < servers_.size(); ++i) {
    Server& server = servers_[i];
    if (server.stream == nullptr || server.stream->closed()) continue;
    if (we_slept) server.last_heard = now;
    if (now - server.last_heard > report_after_) {
      Lose(i, ServerLost(server, "is not responding"));
      if (!error_.ok()) return;
      continue;
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
}

void Session::LogLongWait(Time now) {
  if (activity_ != Activity::kStep || now < next_log_) return;
  next_log_ = now + kLogInterval;
  BALLAST_LOG(INFO, LogField("job", options_.job), LogField("slot", options_.slot),
              LogField("round", round_))
      << "still waiting for the round at server "
      << absl::StrJoin(progress_->Missing(), ", server ")
      << "; `ballastctl status` names the trainers they wait for";
}

// A trainer that gives up because of a server looks lost to the other servers, and their word of
// it may come before we notice what is wrong with that server: it may have reached our limit of
// silence soon, or what it said is still on its way. Then the trainer is not the one to be named.
// In a durable job no trainer gives up so.
absl::Status Session::BlameSilentServer(const absl::Status& status) const {
  const Time now = std::chrono::steady_clock::now();
  const bool we_slept = now - last_tick_ > heartbeat_ * kLateHeartbeats;
  if (durable_ || ReasonOf(status) != Reason::kTrainerLost || we_slept) return status;
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
  const bool sure = durable_ || servers_.size() == 1 || !tick_armed_;
  if (sure || ReasonOf(blamed) != Reason::kTrainerLost) {
    End(blamed);
  } else if (suspicion_.ok()) {
    suspicion_ = blamed;
    suspected_at_ = std::chrono::steady_clock::now();
    tick_.Cancel();
  }
}

absl::Status Session::InThisRound(const absl::Status& status) const {
  ErrorFields fields = FieldsOf(status);
  if (fields.round == 0) fields.round = round_;
  if (fields.job.empty()) fields.job = options_.job;
  return ReasonedError(status.code(), ReasonOf(status), status.message(), fields);
}

void Session::End(const absl::Status& status) {
  error_ = InThisRound(status);
  for (Server& server : servers_) {
    if (server.stream != nullptr && !server.stream->closed()) server.stream->Cancel();
  }
  if (passage_.call != nullptr) passage_.call->Cancel();
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
  const auto closed = [](const auto& of) { return of.stream == nullptr || of.stream->closed(); };
  return std::all_of(servers_.begin(), servers_.end(), closed) &&
         std::all_of(retired_.begin(), retired_.end(), closed);
}

}  // namespace ballast::client
