// A session's activities, timer and end. Its events from servers are in session_events.cc.
#include "client/cpp/session/session_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/job/nonfinite.h"

namespace ballast::client {
namespace {

// A server is looked after twice as often as it is sent a heartbeat, so that one that falls silent
// is reported at most half a heartbeat late.
constexpr int kLooksPerHeartbeat = 2;
// A tick that comes this many heartbeats late says that this process was stopped, not the servers.
constexpr int kLateHeartbeats = 3;
constexpr std::chrono::seconds kStepLogInterval{30};
// Until pinned buffers are looked for again; a transport does not say when a frame has left.
constexpr std::chrono::milliseconds kStarvedPause{1};

// How long the loss of a trainer is held back.
std::chrono::nanoseconds SecondThought(const JobView& job) { return job.heartbeat / 5; }

void LogLongWait(const JobView& job, Step* step, Time now) {
  if (step == nullptr || now < step->next_log) return;
  step->next_log = now + kStepLogInterval;
  BALLAST_LOG(INFO, LogField("job", job.options.job), LogField("slot", job.options.slot),
              LogField("round", job.round))
      << "still waiting for the round at server "
      << absl::StrJoin(step->progress.Missing(), ", server ")
      << "; `ballastctl status` names the trainers they wait for, and `ballastctl health` says "
         "whether a server waits for its disk instead";
}

RoundProgress ProgressOf(const JobView& job, const SessionCore::Servers& servers, Time now) {
  std::vector<uint32_t> ids;
  std::vector<uint64_t> owned_bytes;
  for (const auto& server : servers) {
    ids.push_back(server->id());
    owned_bytes.push_back(server->share().weight_bytes());
  }
  return RoundProgress(job.round, std::move(ids), std::move(owned_bytes), now);
}

}  // namespace

SessionCore::SessionCore(const JobOptions& options, const AttachedJob& attached,
                         Environment environment)
    : transport_(environment.transport),
      on_change_(std::move(environment.on_change)),
      doing_(std::move(environment.doing)),
      job_(options, attached),
      frames_(&job_, environment.lease, environment.device),
      pauses_(&job_, on_change_),
      transition_(&job_, transport_, &pauses_) {
  for (const v1::ServerAddress& server : attached.reply.servers()) {
    // The base is private: inside make_unique `this` would not convert to it.
    ServerLink::Owner* const owner = this;
    servers_.push_back(
        std::make_unique<ServerLink>(servers_.size(), server, &job_, transport_, owner));
  }
}

absl::Status SessionCore::Start(const v1::Plan& plan) {
  BALLAST_RETURN_IF_ERROR(TakePlan(plan, job_.layout));
  for (auto& server : servers_) server->Open(HelloVersion(*server));
  timer_ = transport_->MakeTimer([this] { OnTick(); });
  const Time now = transport_->Now();
  pulse_.last_tick = now;
  pulse_.next_look = now + job_.heartbeat / kLooksPerHeartbeat;
  Rearm(now);
  return absl::OkStatus();
}

// In a new job every server is asked for its round. Later a server may be one version ahead of the
// others: it has done its part of the running round.
uint64_t SessionCore::HelloVersion(const ServerLink& server) const {
  if (job_.round == 0) return job_.start_round;
  return HeldVersion(activity_, server.index(), job_.round);
}

absl::Status SessionCore::TakePlan(const v1::Plan& plan, Layout layout) {
  const auto known = [this](uint32_t id) {
    return std::any_of(servers_.begin(), servers_.end(),
                       [id](const auto& server) { return server->id() == id; });
  };
  const bool complete = static_cast<size_t>(plan.owner_size()) == layout.extents().size();
  if (!complete || !std::all_of(plan.owner().begin(), plan.owner().end(), known)) {
    return ReasonedError(
        absl::StatusCode::kInternal, Reason::kLayoutMismatch,
        absl::StrCat("the home's plan has ", plan.owner_size(), " extents, ours has ",
                     layout.extents().size(), ", or it names an unknown server; use the same ",
                     "release of Ballast on both sides"));
  }
  // Only now: a refused plan has changed nothing. Shares read owner and layout through job_.
  job_.owner.assign(plan.owner().begin(), plan.owner().end());
  job_.layout = std::move(layout);
  for (auto& server : servers_) server->share().TakeOwned();
  return absl::OkStatus();
}

absl::Status SessionCore::Grow(JobSpec spec, Layout layout, const v1::ExtendReply& reply) {
  BALLAST_RETURN_IF_ERROR(TakePlan(reply.plan(), std::move(layout)));
  job_.spec = std::move(spec);
  job_.contributors = job_.ContributorsByRule();  // The reply's record may be another epoch's.
  job_.layout_version = reply.layout_version();
  for (auto& server : servers_) server->share().SetWindow(reply.window_extents());
  return absl::OkStatus();
}

TransferCounters SessionCore::counters() const {
  TransferCounters counters = frames_.counters();
  counters.copied_up_bytes = transport_->copied_bytes();
  return counters;
}

// --- Activities ---------------------------------------------------------------------------------

absl::Status SessionCore::CheckIdle() const {
  if (!error_.ok()) return error_;
  if (std::holds_alternative<Idle>(activity_)) return absl::OkStatus();
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kBadArgument,
                       absl::StrCat("round ", job_.round, " is still running; Wait for it first"),
                       job_.Fields());
}

absl::Status SessionCore::PushInitialWeights(InitialUpload upload, bool from_first) {
  BALLAST_RETURN_IF_ERROR(CheckIdle());
  const uint32_t first_extent = upload.first_extent;
  activity_.emplace<InitialUpload>(std::move(upload));
  for (auto& server : servers_) {
    if (!server->welcomed()) continue;  // Its Welcome will say what it lacks.
    if (from_first) server->share().AddMissing(first_extent);
    server->SendMissing(first_extent);
  }
  return absl::OkStatus();
}

absl::Status SessionCore::BeginFetch(Fetch fetch, v1::FetchState request) {
  BALLAST_RETURN_IF_ERROR(CheckIdle());
  // All are asked before the first request goes out: after an error the session is still idle.
  for (const auto& server : servers_) BALLAST_RETURN_IF_ERROR(server->LacksInit());
  v1::ClientMessage message;
  *message.mutable_fetch_state() = std::move(request);
  message.mutable_fetch_state()->set_round(job_.round);
  fetch.request = message.SerializeAsString();
  const uint64_t element_bytes =
      sizeof(float) * static_cast<uint64_t>(message.fetch_state().arrays_size());
  for (const auto& server : servers_) {
    const ServerShare& share = server->share();
    Fetch::Part part;
    part.expected_bytes = share.elements() * element_bytes;
    if (message.fetch_state().weights()) part.expected_bytes += share.weight_bytes();
    fetch.parts.push_back(part);
  }
  // The activity keeps the request: a server that returns is sent the same one again (Resume).
  const std::string& sent = activity_.emplace<Fetch>(std::move(fetch)).request;
  for (auto& server : servers_) {
    if (server->welcomed()) server->Send(sent);  // Others are asked after their Welcome.
  }
  return absl::OkStatus();
}

absl::Status SessionCore::BeginRound(RoundInput input) {
  // The members may have changed since the collective: the sums would lack a trainer, or count one
  // that has left.
  if (input.sums_of != 0 && input.sums_of != job_.epoch) {
    return job_.SumsAreStale(input.sums_of, job_.epoch);
  }
  const Time now = transport_->Now();
  pauses_.meter().StartRound(now);
  Step& step = activity_.emplace<Step>(std::move(input), ProgressOf(job_, servers_, now), now);
  step.world = job_.world();
  for (auto& server : servers_) {
    if (server->welcomed()) server->StartStep(step);  // Others start after their Welcome.
  }
  return absl::OkStatus();
}

bool SessionCore::Done() const {
  if (const Step* const step = std::get_if<Step>(&activity_)) return step->progress.complete();
  if (const Fetch* const fetch = std::get_if<Fetch>(&activity_)) return fetch->complete();
  if (!std::holds_alternative<InitialUpload>(activity_)) return true;
  // Before its Welcome nothing is known of the initial weights that a server lacks.
  return std::all_of(servers_.begin(), servers_.end(), [](const auto& server) {
    return server->welcomed() && server->share().all_received();
  });
}

Activity SessionCore::EndActivity() {
  // Frames begun ahead hold pinned buffers, which otherwise come back only by sending.
  frames_.DropBegun();
  const bool early = !error_.ok() || std::holds_alternative<StaleStep>(activity_);
  // Nothing else waits for an unfinished activity's device copies, and its memory goes back now.
  if (early) frames_.EndEarly();
  return std::exchange(activity_, Idle());
}

absl::Status SessionCore::EndRound(RoundReport* report) {
  if (std::holds_alternative<StaleStep>(activity_)) {
    // The round has yet to run, with sums of the new members: its number stays.
    pauses_.meter().EndRound();
    return std::get<StaleStep>(EndActivity()).why;
  }
  const Time now = transport_->Now();
  const Step& step = std::get<Step>(activity_);
  PauseMeter& meter = pauses_.meter();
  *report = step.progress.Report(now);
  report->bytes_up = step.up_bytes;
  report->paused_ns = static_cast<uint64_t>(meter.paused(now).count());
  report->reconnects = meter.reconnects();
  report->world = step.world;
  absl::Status halted;
  if (!report->applied) {
    const UnappliedRound unapplied = step.progress.Unapplied();
    report->nonfinite_element = NonfiniteText(job_.layout, job_.spec, unapplied.first);
    if (step.progress.halted()) halted = HaltError(job_.layout, job_.spec, unapplied);
  }
  meter.EndRound();
  job_.opt_step = report->opt_step;
  job_.policy = step.progress.Policy();
  report->policy = job_.ShownPolicy();
  // From here on a server without initial weights has lost state: they cannot be sent again.
  job_.fresh_extent = static_cast<uint32_t>(job_.layout.extents().size());
  ++job_.round;
  EndActivity();
  return halted;
}

// --- Time ---------------------------------------------------------------------------------------

// Sets the timer to whatever is due first.
void SessionCore::Rearm(Time now) {
  Time due = std::min(pulse_.next_look, transition_.due());
  if (suspicion_.has_value()) due = std::min(due, suspicion_->since + SecondThought(job_));
  for (const auto& server : servers_) due = std::min(due, server->reconnect().due());
  if (frames_.starved()) due = std::min(due, now + kStarvedPause);
  // Null until Start has opened the links.
  if (timer_ != nullptr) timer_->Set(std::max(due, now));
}

void SessionCore::OnTick() {
  if (!error_.ok()) return;
  const Time now = transport_->Now();
  if (suspicion_.has_value() && now - suspicion_->since >= SecondThought(job_)) {
    // No server turned out to be the cause in the meantime.
    End(suspicion_->status);
    return;
  }
  if (now >= pulse_.next_look) {
    pulse_.next_look = now + job_.heartbeat / kLooksPerHeartbeat;
    LookAfterServers(now);
  }
  if (error_.ok()) RetryLostServers(now);
  if (error_.ok() && frames_.starved()) {
    for (auto& server : servers_) {
      if (server->alive()) server->Kick();
    }
  }
  if (!error_.ok()) return;
  const absl::Status passing = transition_.Retry(
      home(), now, [this](const absl::StatusOr<Payload>& answer) { OnAttachAnswer(answer); });
  if (!passing.ok()) Fail(passing);
  // Last: LookAfterServers compares `now` with the previous tick.
  pulse_.last_tick = now;
  if (error_.ok()) Rearm(now);
}

void SessionCore::LookAfterServers(Time now) {
  const bool we_slept = now - pulse_.last_tick > job_.heartbeat * kLateHeartbeats;
  const bool beat = ++pulse_.looks % kLooksPerHeartbeat == 0;
  if (beat) ++pulse_.beats;
  for (auto& server : servers_) {
    if (!server->alive()) continue;
    // The silence was ours: after a stop of this process all servers get a full limit again.
    if (we_slept) server->Hear(now);
    if (server->Silence(now) > job_.report_after) {
      Lose(server.get(), server->Lost(server->handshake().Silent()));
      if (!error_.ok()) return;
      continue;
    }
    // gRPC waits for a first connection without an error. The handshake is asked at half the limit,
    // so that the report at the limit can name its fault.
    const bool waits_for_connection = !server->welcomed() && !server->reconnect().away();
    if (waits_for_connection && server->Silence(now) > job_.report_after / 2) {
      server->handshake().OnSilence();
    }
    server->share().RetryRefused();
    if (beat) server->Beat(pulse_.beats, doing_ ? doing_() : Doing());
    server->Kick();
  }
  LogLongWait(job_, std::get_if<Step>(&activity_), now);
}

void SessionCore::RetryLostServers(Time now) {
  for (auto& server : servers_) {
    Reconnect& tries = server->reconnect();
    Reconnect::Action action = tries.Next(now);
    for (; action != Reconnect::Action::kNothing; action = tries.Next(now)) {
      if (action == Reconnect::Action::kOpen) server->Open(HelloVersion(*server));
      if (action == Reconnect::Action::kReport) {
        pauses_.Tell(server->News(Pause::Kind::kWaiting, now));
      }
      if (action != Reconnect::Action::kGiveUp) continue;
      // It did answer, without the job: it needs its disk, not more time.
      if (server->state().lacks_job) return Fail(server->StateLost(now - tries.since()));
      Fail(server->Lost(absl::StrCat("has been away for ", RoundedText(now - tries.since()),
                                     "; last error: ", tries.last_error(),
                                     "; start it again on its data, or allow it more than ",
                                     RoundedText(tries.timeout()), " with reconnect_timeout")));
      return;
    }
  }
}

// --- The end ------------------------------------------------------------------------------------

// A trainer that gives up because of a server looks lost to the other servers. Their report may
// arrive before this trainer notices that server's fault: the server may reach the limit of silence
// soon, or its own report may be on its way. Then the trainer is not the one to be named. In a
// durable job no trainer gives up so.
absl::Status SessionCore::BlameSilentServer(const absl::Status& status) const {
  const Time now = transport_->Now();
  const bool we_slept = now - pulse_.last_tick > job_.heartbeat * kLateHeartbeats;
  if (job_.durable || ReasonOf(status) != Reason::kTrainerLost || we_slept) return status;
  for (const auto& server : servers_) {
    if (server->alive() && server->Silence(now) > job_.report_after * 3 / 5) {
      return server->Lost("is not responding");
    }
  }
  return status;
}

void SessionCore::Fail(const absl::Status& status) {
  if (!error_.ok()) return;
  const absl::Status blamed = BlameSilentServer(status);
  // A single server, which has just spoken, cannot be the silent one itself.
  const bool sure = job_.durable || servers_.size() == 1;
  if (sure || ReasonOf(blamed) != Reason::kTrainerLost) {
    End(blamed);
  } else if (!suspicion_.has_value()) {
    // Later reports must not extend the wait: only the first one starts it.
    const Time now = transport_->Now();
    suspicion_ = Suspicion{blamed, now};
    Rearm(now);
  }
}

void SessionCore::End(const absl::Status& status) {
  error_ = job_.InThisRound(status);
  // Links are only cancelled: the caller's thread destroys them, and then waits for lent memory.
  for (auto& server : servers_) server->Cancel();
  transition_.Abort();
  on_change_();
}

void SessionCore::DropLinks() {
  for (auto& server : servers_) server->Close();
}

void SessionCore::BeginLeave() {
  leaving_ = true;
  for (auto& server : servers_) {
    // The others get it after their Welcome (OnWelcome).
    if (server->welcomed()) server->SendLeave();
  }
}

void SessionCore::EndLeave() {
  for (const auto& server : servers_) {
    if (job_.durable && error_.ok() && !server->left()) server->LogUnheardLeave();
  }
  // Fail keeps the first error, and a trainer that has left is CLOSED whatever came before.
  error_ = absl::OkStatus();
  Fail(ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kClosed,
                     "this trainer has left the job"));
}

}  // namespace ballast::client
