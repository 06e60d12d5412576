// Set-up, waiting and the end of a session, and the calls that run rounds. Fetches and growth are
// in session_calls.cc.
#include "client/cpp/session/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/job/round_input.h"
#include "client/cpp/session/retry.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/types/enum_names.h"
#include "proto/convert/channel.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/methods.h"

namespace ballast::client {
namespace {

using std::chrono::nanoseconds;

constexpr std::chrono::seconds kLeaveTimeout{2};
constexpr std::chrono::hours kForever{24 * 365};
constexpr std::chrono::milliseconds kPollInterval{100};

// A home of an older release ignores unknown fields of a job's specification.
absl::Status CheckPolicyReply(const AttachedJob& attached) {
  if (attached.reply.has_policy() || !attached.spec.policy.active()) return absl::OkStatus();
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kUnsupported,
                       "the servers know no dynamic loss scale and no schedules; use the same "
                       "release of Ballast on both sides");
}

// A home of an older release lets every trainer push, even equal gradients.
absl::Status CheckContributors(const AttachedJob& attached) {
  const JobSpec& spec = attached.spec;
  const v1::EpochRecord& epoch = attached.reply.epoch();
  bool known = true;
  bool each = true;
  for (const v1::ContributorSet& set : epoch.contributors()) {
    known = known && v1::ContributorRule_IsValid(set.rule()) && set.slots_size() > 0;
    each = each && set.rule() == v1::CONTRIBUTOR_RULE_EACH;
  }
  std::vector<uint32_t> slots;
  for (const v1::Member& member : epoch.members()) slots.push_back(member.slot());
  const uint32_t groups = spec.group_count;
  const bool follows = spec.gradients == Gradients::kLocal
                           ? each
                           : ContributorsIn(epoch) == ContributorsBy(spec.gradients, slots, groups);
  if (known && follows) return absl::OkStatus();
  return ReasonedError(
      absl::StatusCode::kFailedPrecondition, Reason::kUnsupported,
      absl::StrCat("the servers of job \"", spec.name, "\" choose contributors ",
                   "that this release does not know for gradients \"", NameOf(spec.gradients),
                   "\"; use the same release of Ballast on both sides"));
}

absl::Status CheckReply(const v1::AttachReply& reply) {
  const bool chunk_ok = reply.chunk_bytes() > 0 && reply.chunk_bytes() % 64 == 0 &&
                        reply.chunk_bytes() <= kMaxMessageBytes / 2;
  if (!reply.servers().empty() && chunk_ok && reply.window_extents() != 0) {
    return absl::OkStatus();
  }
  return ReasonedError(
      absl::StatusCode::kInternal, Reason::kProtocolMismatch,
      absl::StrCat("the home answered with ", reply.servers_size(), " servers, chunks of ",
                   reply.chunk_bytes(), " bytes and a window of ", reply.window_extents(),
                   " extents; use the same release on both sides"));
}

// A frame of device memory takes one pinned buffer.
absl::Status FitFrames(const v1::AttachReply& reply, GpuTensors* gpu) {
  return gpu == nullptr ? absl::OkStatus() : gpu->staging()->FitFrames(reply.chunk_bytes());
}

// How long Leave may take. A server may still return from an outage, or follow into the job's
// epoch.
nanoseconds LeaveLimit(const SessionCore& core) {
  const bool all_know = std::all_of(core.servers().begin(), core.servers().end(),
                                    [](const auto& server) { return server->leave_sent(); });
  if (!all_know) return core.job().report_after;
  return std::chrono::duration_cast<nanoseconds>(kLeaveTimeout * core.job().options.time_scale);
}

bool AllLeft(const SessionCore& core) {
  return std::all_of(core.servers().begin(), core.servers().end(),
                     [](const auto& server) { return server->left(); });
}

}  // namespace

Session::Session(const JobOptions& options, const AttachedJob& attached,
                 const MakeTransport& make_transport, std::unique_ptr<GpuTensors> gpu)
    : options_(options), gpu_(std::move(gpu)), transport_(make_transport(&mu_)) {
  if (attached.reply.resumed()) user_state_ = attached.reply.user_state();
  SessionCore::Environment environment;
  environment.transport = transport_.get();
  environment.lease = &lease_;
  environment.device = staging();
  environment.on_change = [this] { changed_.NotifyAll(); };
  HomeRendezvous::Deps meets{attached.reply.job(), options.slot, attached.incarnation};
  if (IsDurable(options)) meets.reconnect_timeout = options.reconnect_timeout;
  meets.time_scale = options.time_scale;
  meets.call = [this](const v1::RendezvousRequest& request, std::chrono::milliseconds timeout,
                      v1::RendezvousReply* reply) {
    return CallHome(method::kRendezvous, request, timeout, reply, /*quiet=*/true);
  };
  meets.wait = [this](std::chrono::milliseconds time) {
    return SleepPolling(time, [this] { return Poll(); });
  };
  meets.now = [this] {
    MutexLock lock(&mu_);
    return transport_->Now();
  };
  meets.epoch = [this] { return epoch(); };
  rendezvous_ = std::make_unique<HomeRendezvous>(std::move(meets));
  environment.doing = [this] { return rendezvous_->doing(); };
  core_ = std::make_unique<SessionCore>(options, attached, std::move(environment));
}

Session::~Session() {
  {
    MutexLock lock(&mu_);
    core_.reset();
  }
  transport_.reset();
}

absl::StatusOr<std::unique_ptr<Session>> Session::Open(const JobOptions& options,
                                                       const AttachedJob& attached,
                                                       const MakeTransport& make_transport,
                                                       const std::vector<void*>& weights,
                                                       std::unique_ptr<GpuTensors> gpu) {
  BALLAST_RETURN_IF_ERROR(CheckReply(attached.reply));
  BALLAST_RETURN_IF_ERROR(FitFrames(attached.reply, gpu.get()));
  BALLAST_RETURN_IF_ERROR(CheckPolicyReply(attached));
  BALLAST_RETURN_IF_ERROR(CheckContributors(attached));
  std::unique_ptr<Session> session(new Session(options, attached, make_transport, std::move(gpu)));
  BALLAST_RETURN_IF_ERROR(session->Start(attached.reply.plan()));
  BALLAST_RETURN_IF_ERROR(session->resumed() ? session->TakeOver(weights)
                                             : session->Initialize(options.init, weights, 0));
  MutexLock lock(&session->mu_);
  session->opened_ = true;
  return session;
}

absl::Status Session::Start(const v1::Plan& plan) {
  {
    MutexLock lock(&mu_);
    BALLAST_RETURN_IF_ERROR(core_->Start(plan));
  }
  return AwaitWelcomes(transport_->Now() + options_.attach_timeout);
}

// --- Waiting ------------------------------------------------------------------------------------

absl::Status Session::AwaitWelcomes(Time deadline) {
  while (true) {
    ReportPauses();
    BALLAST_RETURN_IF_ERROR(Poll());
    MutexLock lock(&mu_);
    if (!core_->error().ok()) return core_->error();
    const auto silent = std::find_if(core_->servers().begin(), core_->servers().end(),
                                     [](const auto& server) { return !server->welcomed(); });
    if (silent == core_->servers().end()) return absl::OkStatus();
    if (transport_->Now() >= deadline) {
      const std::string& last = (*silent)->reconnect().last_error();
      return (*silent)->Lost(absl::StrCat("did not answer Hello within the attach timeout",
                                          last.empty() ? "" : "; the last error was: ", last));
    }
    changed_.WaitFor(&mu_, kPollInterval);
  }
}

absl::Status Session::Poll() {
  bool opened = false;
  {
    MutexLock lock(&mu_);
    if (!core_->error().ok()) return core_->error();
    opened = opened_;
  }
  if (opened || !options_.should_stop || !options_.should_stop()) return absl::OkStatus();
  return ReasonedError(absl::StatusCode::kCancelled, Reason::kClosed,
                       "attaching was stopped by the caller");
}

void Session::ReportPauses() {
  if (!options_.on_pause) return;
  while (true) {
    std::optional<Pause> pause;
    {
      MutexLock lock(&mu_);
      pause = core_->pauses().Take();
    }
    if (!pause.has_value()) return;
    options_.on_pause(*pause);
  }
}

bool Session::Drain(Time deadline) {
  {
    MutexLock lock(&mu_);
    core_->DropLinks();
  }
  // A connection that a server has stopped reading from may still hold frames; it goes with its
  // link.
  return transport_->AwaitEnded(deadline) &&
         lease_.WaitReleased(
             std::max<nanoseconds>(deadline - transport_->Now(), std::chrono::milliseconds(1)));
}

absl::StatusOr<bool> Session::AwaitActivity(nanoseconds timeout) {
  const Time deadline = transport_->Now() + timeout;
  absl::Status error;
  while (true) {
    ReportPauses();
    MutexLock lock(&mu_);
    while (core_->error().ok() && !core_->Done() && !core_->pauses().has_news()) {
      const auto left = deadline - transport_->Now();
      if (left <= nanoseconds::zero()) return false;
      changed_.WaitFor(&mu_, left);
    }
    if (core_->error().ok() && core_->pauses().has_news()) continue;
    if (!core_->Done()) error = core_->error();
    break;
  }
  if (error.ok()) {
    return lease_.WaitReleased(
        std::max<nanoseconds>(deadline - transport_->Now(), std::chrono::milliseconds(1)));
  }
  if (!Drain(deadline)) return false;
  MutexLock lock(&mu_);
  core_->EndActivity();
  return error;
}

absl::StatusOr<Activity> Session::FinishActivity() {
  while (true) {
    BALLAST_ASSIGN_OR_RETURN(const bool done, AwaitActivity(kPollInterval));
    if (done) break;
    const absl::Status stopped = Poll();
    if (stopped.ok()) continue;
    MutexLock lock(&mu_);
    core_->Fail(stopped);
  }
  BALLAST_RETURN_IF_ERROR(EndOnGpu());
  MutexLock lock(&mu_);
  return core_->EndActivity();
}

absl::Status Session::CallHome(const char* method, const google::protobuf::MessageLite& request,
                               std::chrono::milliseconds timeout,
                               google::protobuf::MessageLite* reply, bool quiet) {
  std::optional<absl::StatusOr<Payload>> answer;  // both under the lock
  std::unique_ptr<CallHandle> call;
  {
    MutexLock lock(&mu_);
    const CallTarget target{core_->servers().front()->address(), method, timeout};
    call = transport_->Start(target, request, [this, &answer](absl::StatusOr<Payload> arrived) {
      answer.emplace(std::move(arrived));
      changed_.NotifyAll();
    });
  }
  absl::Status ended;
  while (ended.ok()) {
    {
      MutexLock lock(&mu_);
      if (!answer.has_value()) changed_.WaitFor(&mu_, kPollInterval);
      if (answer.has_value()) break;
    }
    if (!quiet) ReportPauses();
    ended = Poll();
  }
  MutexLock lock(&mu_);
  call.reset();
  if (!ended.ok()) return ended;
  BALLAST_RETURN_IF_ERROR(answer->status());
  return ParseMessage(**answer, kMaxMessageBytes, reply);
}

// --- Rounds -------------------------------------------------------------------------------------

absl::Status Session::BeginOnGpu() {
  if (gpu_ == nullptr) return absl::OkStatus();
  {
    MutexLock lock(&mu_);
    BALLAST_RETURN_IF_ERROR(core_->CheckIdle());
  }
  return gpu_->Begin();
}

absl::Status Session::BeginRound(absl::StatusOr<RoundInput> input) {
  BALLAST_RETURN_IF_ERROR(input.status());
  input->user_state = user_state_;
  return core_->BeginRound(*std::move(input));
}

absl::Status Session::BeginStep(const std::vector<Hyper>& hyper,
                                const std::vector<TensorBuffers>& buffers, double loss_scale) {
  bool compares = false;
  std::vector<LayoutTensor> tensors;
  {
    MutexLock lock(&mu_);
    BALLAST_RETURN_IF_ERROR(core_->CheckIdle());
    compares = core_->job().ComparesGradients();
    if (compares) tensors = core_->job().layout.tensors();
  }
  BALLAST_RETURN_IF_ERROR(BeginOnGpu());
  std::vector<uint32_t> digests;
  if (compares) {
    BALLAST_ASSIGN_OR_RETURN(digests, GradientDigests(tensors, buffers, staging()));
  }
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(core_->CheckIdle());
  BALLAST_ASSIGN_OR_RETURN(RoundInput input, StepInput(core_->job(), hyper, buffers, loss_scale));
  input.sums_of = sums_of_;
  input.begin.mutable_gradient_crc32c()->Assign(digests.begin(), digests.end());
  return BeginRound(std::move(input));
}

absl::Status Session::BeginUpload(const std::vector<TensorBuffers>& buffers) {
  BALLAST_RETURN_IF_ERROR(BeginOnGpu());
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(core_->CheckIdle());
  return BeginRound(UploadInput(core_->job(), buffers, staging()));
}

absl::Status Session::BeginStateUpload(const StateUpload& upload,
                                       const std::vector<TensorBuffers>& buffers) {
  BALLAST_RETURN_IF_ERROR(BeginOnGpu());
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(core_->CheckIdle());
  return BeginRound(StateUploadInput(core_->job(), upload, buffers, staging()));
}

absl::StatusOr<bool> Session::Wait(std::chrono::milliseconds timeout, RoundReport* report) {
  {
    MutexLock lock(&mu_);
    if (!core_->in_round()) {
      if (!core_->error().ok()) return core_->error();
      return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kBadArgument,
                           "no round is running; call BeginStep first");
    }
  }
  BALLAST_ASSIGN_OR_RETURN(const bool done, AwaitActivity(timeout));
  if (!done) return false;
  BALLAST_RETURN_IF_ERROR(EndOnGpu());
  RoundReport own;
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(core_->EndRound(report != nullptr ? report : &own));
  return true;
}

absl::StatusOr<RoundReport> Session::Step(const std::vector<Hyper>& hyper,
                                          const std::vector<TensorBuffers>& buffers,
                                          double loss_scale) {
  BALLAST_RETURN_IF_ERROR(BeginStep(hyper, buffers, loss_scale));
  RoundReport report;
  bool done = false;
  while (!done) {
    BALLAST_ASSIGN_OR_RETURN(done, Wait(kForever, &report));
  }
  return report;
}

// --- The end ------------------------------------------------------------------------------------

absl::Status Session::Leave() {
  {
    MutexLock lock(&mu_);
    if (core_->leaving()) return absl::OkStatus();
    if (!core_->error().ok()) return core_->error();
    core_->BeginLeave();
    const Time start = transport_->Now();
    while (!AllLeft(*core_) && core_->error().ok()) {
      const auto left = start + LeaveLimit(*core_) - transport_->Now();
      if (left <= nanoseconds::zero()) break;
      changed_.WaitFor(&mu_, left);
    }
    core_->EndLeave();
  }
  Drain(transport_->Now() + kForever);
  if (staging() != nullptr) {
    // No Wait may follow, which would end the copies that a round has queued.
    MutexLock lock(&mu_);
    staging()->EndEarly().IgnoreError();
  }
  return absl::OkStatus();
}

void Session::Abort() {
  MutexLock lock(&mu_);
  core_->Fail(
      ReasonedError(absl::StatusCode::kCancelled, Reason::kClosed, "the client was aborted"));
}

}  // namespace ballast::client
