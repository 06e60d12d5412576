// The calls of the public interface: each starts an activity, waits for its end on the caller's
// thread, and gives the lent memory back before it returns.
#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ballast/v1/admin.pb.h"
#include "client/cpp/src/attach.h"
#include "client/cpp/src/reconnect.h"
#include "client/cpp/src/session.h"
#include "client/cpp/src/unary_call.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/job/nonfinite.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/methods.h"

namespace ballast::client {
namespace {

using std::chrono::nanoseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLeaveTimeout{2};
constexpr std::chrono::hours kForever{24 * 365};
constexpr std::chrono::milliseconds kPollInterval{100};
constexpr std::chrono::hours kWholeStateTimeout{24};  // a server that dies ends it before

absl::Status BadArgument(absl::string_view message) {
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadArgument, message);
}

std::vector<Hyper> ToHyper(const std::vector<AdamWHyper>& hyper) {
  std::vector<Hyper> out;
  out.reserve(hyper.size());
  for (const AdamWHyper& h : hyper) {
    out.push_back({h.lr, h.beta1, h.beta2, h.eps, h.weight_decay});
  }
  return out;
}

// Bit i, least significant first: tensor i has a gradient. Empty when all have.
std::string PresenceBits(const std::vector<bool>& present) {
  if (std::find(present.begin(), present.end(), false) == present.end()) return "";
  std::string bits((present.size() + 7) / 8, '\0');
  for (size_t i = 0; i < present.size(); ++i) {
    if (present[i]) bits[i / 8] = static_cast<char>(bits[i / 8] | 1 << i % 8);
  }
  return bits;
}

}  // namespace

absl::Status Session::CheckIdle() const {
  if (!error_.ok()) return error_;
  if (activity_ == Activity::kIdle) return absl::OkStatus();
  ErrorFields fields;
  fields.job = options_.job;
  fields.round = round_;
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kBadArgument,
                       absl::StrCat("round ", round_, " is still running; Wait for it first"),
                       fields);
}

absl::Status Session::PollDuringCall() {
  bool opened = false;
  {
    MutexLock lock(&mu_);
    if (!error_.ok()) return error_;
    opened = opened_;
  }
  if (opened || !options_.should_stop || !options_.should_stop()) return absl::OkStatus();
  return ReasonedError(absl::StatusCode::kCancelled, Reason::kClosed,
                       "attaching was stopped by the caller");
}

bool Session::ActivityDone() const {
  switch (activity_) {
    case Activity::kIdle:
      return true;
    case Activity::kUpload:
      return std::all_of(servers_.begin(), servers_.end(), [](const Server& server) {
        return server.welcomed && server.plan->all_received();
      });
    case Activity::kFetch:
      return std::all_of(servers_.begin(), servers_.end(),
                         [](const Server& server) { return server.fetched(); });
    case Activity::kStep:
      return progress_->complete();
  }
  return true;
}

bool Session::Drain(Time deadline) {
  {
    MutexLock lock(&mu_);
    while (!AllClosed()) {
      const auto left = deadline - SteadyClock::now();
      if (left <= nanoseconds::zero()) return false;
      changed_.WaitFor(&mu_, left);
    }
  }
  // A connection that a server has stopped reading from may still hold slices; it goes with its
  // channel. No operation of these streams is under way, so nobody else looks at them.
  std::vector<Retired> streams;
  {
    MutexLock lock(&mu_);
    streams.swap(retired_);
    for (Server& server : servers_) {
      streams.push_back({std::move(server.channel), std::move(server.stream)});
    }
  }
  streams.clear();
  return lease_.WaitReleased(
      std::max<nanoseconds>(deadline - SteadyClock::now(), std::chrono::milliseconds(1)));
}

absl::StatusOr<bool> Session::AwaitActivity(nanoseconds timeout) {
  const Time deadline = SteadyClock::now() + timeout;
  absl::Status error;
  while (true) {
    ReportPauses();
    MutexLock lock(&mu_);
    while (error_.ok() && !ActivityDone() && pauses_.empty()) {
      const auto left = deadline - SteadyClock::now();
      if (left <= nanoseconds::zero()) return false;
      changed_.WaitFor(&mu_, left);
    }
    if (error_.ok() && !pauses_.empty()) continue;
    if (!ActivityDone()) error = error_;
    break;
  }
  if (error.ok()) {
    return lease_.WaitReleased(
        std::max<nanoseconds>(deadline - SteadyClock::now(), std::chrono::milliseconds(1)));
  }
  if (!Drain(deadline)) return false;
  MutexLock lock(&mu_);
  activity_ = Activity::kIdle;
  return error;
}

absl::Status Session::FinishActivity() {
  while (true) {
    BALLAST_ASSIGN_OR_RETURN(const bool done, AwaitActivity(kPollInterval));
    if (done) break;
    const absl::Status stopped = PollDuringCall();
    if (stopped.ok()) continue;
    MutexLock lock(&mu_);
    Fail(stopped);
  }
  MutexLock lock(&mu_);
  activity_ = Activity::kIdle;
  return absl::OkStatus();
}

absl::Status Session::Initialize(InitMode init, const std::vector<void*>& weights,
                                 uint32_t first_extent) {
  bool lead = false;
  {
    MutexLock lock(&mu_);
    lead = IsLead();
  }
  if (lead) return Upload(weights, first_extent);
  return init == InitMode::kEqual ? absl::OkStatus() : FetchWeightsInto(weights);
}

absl::Status Session::TakeOver(const std::vector<void*>& weights) {
  bool lead = false;
  {
    MutexLock lock(&mu_);
    BALLAST_RETURN_IF_ERROR(CheckIdle());
    lead = IsLead();
    if (lead) {
      activity_ = Activity::kUpload;
      weights_ = weights;
      upload_first_ = 0;
      for (Server& server : servers_) {
        if (server.welcomed) ResumeUpload(&server);
      }
    }
  }
  if (lead) BALLAST_RETURN_IF_ERROR(FinishActivity());
  return FetchWeightsInto(weights);
}

absl::Status Session::Upload(const std::vector<void*>& weights, uint32_t first_extent) {
  {
    MutexLock lock(&mu_);
    BALLAST_RETURN_IF_ERROR(CheckIdle());
    activity_ = Activity::kUpload;
    weights_ = weights;
    upload_first_ = first_extent;
    for (Server& server : servers_) {
      if (!server.welcomed) continue;  // Its Welcome will say what it lacks.
      std::vector<uint32_t>& missing = server.init_missing;
      const auto sent_now = [first_extent](uint32_t extent) { return extent >= first_extent; };
      missing.erase(std::remove_if(missing.begin(), missing.end(), sent_now), missing.end());
      std::copy_if(server.owned.begin(), server.owned.end(), std::back_inserter(missing), sent_now);
      ResumeUpload(&server);
    }
  }
  return FinishActivity();
}

absl::Status Session::Fetch(const v1::FetchState& request) {
  {
    MutexLock lock(&mu_);
    BALLAST_RETURN_IF_ERROR(CheckIdle());
    for (const Server& server : servers_) BALLAST_RETURN_IF_ERROR(LacksInit(server));
    activity_ = Activity::kFetch;
    tensor_step_.clear();
    v1::ClientMessage message;
    *message.mutable_fetch_state() = request;
    message.mutable_fetch_state()->set_round(round_);
    fetch_ = SerializeMessage(message);
    for (Server& server : servers_) {
      server.has_info = false;
      server.received_bytes = 0;
      if (!server.welcomed) continue;  // Asked after its Welcome.
      server.control.push_back(fetch_);
      server.stream->Kick();
    }
  }
  return FinishActivity();
}

absl::Status Session::FetchWeightsInto(const std::vector<void*>& weights) {
  {
    MutexLock lock(&mu_);
    BALLAST_RETURN_IF_ERROR(CheckIdle());
    weights_ = weights;
    for (Server& server : servers_) server.expected_bytes = server.owned_weight_bytes;
  }
  v1::FetchState request;
  request.set_weights(true);
  return Fetch(request);
}

absl::Status Session::FetchWeights(const std::vector<TensorBuffers>& buffers) {
  std::vector<void*> weights;
  {
    MutexLock lock(&mu_);
    BALLAST_RETURN_IF_ERROR(CheckIdle());
    BALLAST_ASSIGN_OR_RETURN(weights, WeightsOf(buffers, spec_.tensors, layout_.tensors()));
  }
  return FetchWeightsInto(weights);
}

absl::Status Session::FetchState(const std::vector<StateBuffers>& buffers,
                                 std::vector<uint64_t>* tensor_step) {
  v1::FetchState request;
  {
    MutexLock lock(&mu_);
    BALLAST_RETURN_IF_ERROR(CheckIdle());
    if (buffers.size() != layout_.tensors().size()) {
      return BadArgument(absl::StrCat("got state buffers for ", buffers.size(),
                                      " tensors, the job has ", layout_.tensors().size()));
    }
    for (std::vector<void*>& array : states_) array.assign(buffers.size(), nullptr);
    for (size_t i = 0; i < buffers.size(); ++i) {
      states_[0][i] = buffers[i].master;
      states_[1][i] = buffers[i].exp_avg;
      states_[2][i] = buffers[i].exp_avg_sq;
    }
    for (uint32_t array = 0; array < states_.size(); ++array) {
      const auto& wanted = states_[array];
      if (std::any_of(wanted.begin(), wanted.end(), [](void* p) { return p != nullptr; })) {
        request.add_arrays(array);
      }
    }
    for (Server& server : servers_) {
      server.expected_bytes =
          server.owned_elements * sizeof(float) * static_cast<uint64_t>(request.arrays_size());
    }
  }
  BALLAST_RETURN_IF_ERROR(Fetch(request));
  MutexLock lock(&mu_);
  if (tensor_step != nullptr) *tensor_step = tensor_step_;
  return absl::OkStatus();
}

absl::Status Session::ValidateStep(const std::vector<Hyper>& hyper,
                                   const std::vector<TensorBuffers>& buffers) const {
  BALLAST_RETURN_IF_ERROR(ValidateHyper(spec_, hyper));
  return WeightsOf(buffers, spec_.tensors, layout_.tensors()).status();
}

v1::ClientMessage Session::MakeRoundBegin(const std::vector<Hyper>& hyper) const {
  v1::ClientMessage message;
  v1::RoundBegin* const begin = message.mutable_begin();
  begin->set_round(round_);
  begin->set_layout_version(layout_version_);
  for (const Hyper& values : hyper) {
    begin->add_hyper()->mutable_value()->Assign(values.begin(), values.end());
  }
  begin->set_presence(PresenceBits(present_));
  return message;
}

v1::ClientMessage Session::MakeUploadBegin(const StateUpload* plane) const {
  v1::ClientMessage message;
  v1::RoundBegin* const begin = message.mutable_begin();
  begin->set_round(round_);
  begin->set_layout_version(layout_version_);
  begin->set_upload(plane == nullptr);
  if (plane != nullptr) {
    begin->set_plane(static_cast<v1::StatePlane>(plane->plane));
    begin->set_presence(PresenceBits(present_));
    begin->mutable_tensor_step()->Assign(plane->tensor_step.begin(), plane->tensor_step.end());
    begin->set_opt_step(plane->opt_step);
  }
  if (options_.init == InitMode::kBroadcast) return message;
  for (const uint32_t digest : DigestsOf(grads_, layout_.tensors())) {
    begin->add_weight_crc32c(digest);
  }
  return message;
}

absl::Status Session::SetUserState(std::string state) {
  if (state.size() > kUserStateBytesMax) {
    return BadArgument(absl::StrCat("the user state has ", state.size(), " bytes, the limit is ",
                                    kUserStateBytesMax, "; keep a position there, not the data"));
  }
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(CheckIdle());
  user_state_ = std::move(state);
  return absl::OkStatus();
}

std::string Session::user_state() const {
  MutexLock lock(&mu_);
  return user_state_;
}

void Session::LendBuffers(const std::vector<TensorBuffers>& buffers) {
  grads_.assign(buffers.size(), nullptr);
  weights_.assign(buffers.size(), nullptr);
  present_.assign(buffers.size(), false);
  for (size_t i = 0; i < buffers.size(); ++i) {
    grads_[i] = static_cast<const char*>(buffers[i].grad);
    weights_[i] = buffers[i].weight;
    present_[i] = buffers[i].grad != nullptr;
  }
}

absl::Status Session::BeginStep(const std::vector<AdamWHyper>& hyper,
                                const std::vector<TensorBuffers>& buffers) {
  const std::vector<Hyper> values = ToHyper(hyper);
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(CheckIdle());
  BALLAST_RETURN_IF_ERROR(ValidateStep(values, buffers));
  upload_round_ = false;
  LendBuffers(buffers);
  BeginRounds(MakeRoundBegin(values));
  return absl::OkStatus();
}

absl::Status Session::BeginUpload(const std::vector<TensorBuffers>& buffers) {
  std::vector<TensorBuffers> lent = buffers;
  for (TensorBuffers& tensor : lent) tensor.grad = tensor.weight;
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(CheckIdle());
  BALLAST_RETURN_IF_ERROR(WeightsOf(buffers, spec_.tensors, layout_.tensors()).status());
  upload_round_ = true;
  LendBuffers(lent);
  BeginRounds(MakeUploadBegin(nullptr));
  return absl::OkStatus();
}

absl::Status Session::CheckStateUpload(const StateUpload& upload,
                                       const std::vector<TensorBuffers>& buffers) const {
  BALLAST_RETURN_IF_ERROR(WeightsOf(buffers, spec_.tensors, layout_.tensors()).status());
  const auto plane = static_cast<UploadPlane>(upload.plane);
  if (!IsStatePlane(plane) || static_cast<uint32_t>(plane) > kUploadPlaneMax) {
    return BadArgument(absl::StrCat("plane number ", static_cast<int>(upload.plane),
                                    " is not known; planes have the numbers 2 to 7"));
  }
  for (size_t t = 0; t < buffers.size(); ++t) {
    if ((buffers[t].grad != nullptr) == Carries(plane, layout_.tensors()[t].dtype)) continue;
    return BadArgument(absl::StrCat("tensor \"", spec_.tensors[t].name, "\" has ",
                                    buffers[t].grad == nullptr ? "no " : "", "bytes of ",
                                    UploadPlaneText(plane), "; in a low plane fp32 tensors ",
                                    "have none, and else all have"));
  }
  const size_t steps = upload.tensor_step.size();
  if (steps != 0 && steps != buffers.size()) {
    return BadArgument(absl::StrCat("got step counts of ", steps, " tensors, the job has ",
                                    buffers.size(), "; give all or none"));
  }
  for (const uint64_t step : upload.tensor_step) {
    if (std::max(step, upload.opt_step) <= kStepCountMax) continue;
    return BadArgument(absl::StrCat("a step count is ", std::max(step, upload.opt_step),
                                    ", the limit is ", kStepCountMax));
  }
  return absl::OkStatus();
}

absl::Status Session::BeginStateUpload(const StateUpload& upload,
                                       const std::vector<TensorBuffers>& buffers) {
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(CheckIdle());
  BALLAST_RETURN_IF_ERROR(CheckStateUpload(upload, buffers));
  upload_round_ = true;
  LendBuffers(buffers);
  BeginRounds(MakeUploadBegin(&upload));
  return absl::OkStatus();
}

std::vector<bool> Session::Pushed() const {
  if (!upload_round_) return present_;
  return IsLead() ? present_ : std::vector<bool>(present_.size(), false);
}

void Session::BeginRounds(v1::ClientMessage begin) {
  const Time now = SteadyClock::now();
  activity_ = Activity::kStep;
  next_log_ = now + std::chrono::seconds(30);
  step_up_bytes_ = 0;
  round_world_ = static_cast<uint32_t>(members_.size());
  meter_.StartRound(now);
  std::vector<uint32_t> ids;
  std::vector<uint64_t> owned_bytes;
  for (const Server& server : servers_) {
    ids.push_back(server.id);
    owned_bytes.push_back(server.owned_weight_bytes);
  }
  progress_ = std::make_unique<RoundProgress>(round_, ids, owned_bytes, now);
  begin_ = SerializeMessage(begin);
  begin.mutable_begin()->set_user_state(user_state_);
  home_begin_ = SerializeMessage(begin);
  for (Server& server : servers_) {
    server.resumed = false;
    if (server.welcomed) StartStep(&server);  // Otherwise after its Welcome.
  }
}

absl::StatusOr<bool> Session::Wait(std::chrono::milliseconds timeout, RoundReport* report) {
  {
    MutexLock lock(&mu_);
    if (activity_ != Activity::kStep) {
      if (!error_.ok()) return error_;
      return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kBadArgument,
                           "no round is running; call BeginStep first");
    }
  }
  BALLAST_ASSIGN_OR_RETURN(const bool done, AwaitActivity(timeout));
  if (!done) return false;
  MutexLock lock(&mu_);
  const Time now = SteadyClock::now();
  const RoundReport round = progress_->Report(now);
  opt_step_ = round.opt_step;
  if (report != nullptr) {
    *report = round;
    report->bytes_up = step_up_bytes_;
    report->paused_ns = static_cast<uint64_t>(meter_.paused(now).count());
    report->reconnects = meter_.reconnects();
    report->world = round_world_;
    if (!report->applied) {
      report->nonfinite_place = NonfiniteText(layout_, spec_, progress_->Unapplied().first);
    }
  }
  meter_.EndRound();
  fresh_extent_ = static_cast<uint32_t>(layout_.extents().size());
  activity_ = Activity::kIdle;
  ++round_;
  if (progress_->halted()) return HaltError(layout_, spec_, progress_->Unapplied());
  return true;
}

absl::StatusOr<RoundReport> Session::Step(const std::vector<AdamWHyper>& hyper,
                                          const std::vector<TensorBuffers>& buffers) {
  BALLAST_RETURN_IF_ERROR(BeginStep(hyper, buffers));
  RoundReport report;
  bool done = false;
  while (!done) {
    BALLAST_ASSIGN_OR_RETURN(done, Wait(kForever, &report));
  }
  return report;
}

v1::ExtendRequest Session::MakeExtendRequest(const JobSpec& grown,
                                             const std::vector<void*>& weights,
                                             const Layout& layout, InitMode init) const {
  const size_t first = grown.tensors.size() - weights.size();
  v1::ExtendRequest request;
  request.set_job(job_);
  request.set_slot(options_.slot);
  request.set_incarnation(incarnation_);
  request.set_group_count(grown.group_count);
  for (size_t i = first; i < grown.tensors.size(); ++i) {
    ToProto(grown.tensors[i], request.add_tensors());
  }
  request.set_init(init == InitMode::kEqual ? v1::INIT_MODE_EQUAL : v1::INIT_MODE_BROADCAST);
  if (init == InitMode::kEqual) {
    const std::vector<LayoutTensor> sizes(layout.tensors().begin() + static_cast<ptrdiff_t>(first),
                                          layout.tensors().end());
    for (const uint32_t digest : DigestsOf(weights, sizes)) request.add_tensor_crc32c(digest);
  }
  return request;
}

// The home of a durable job may go away meanwhile. What it made of the request is then found out by
// asking again: it answers one that has taken effect as it would have before.
absl::Status Session::AskToExtend(const std::shared_ptr<grpc::Channel>& home,
                                  const v1::ExtendRequest& request, v1::ExtendReply* reply) {
  const auto poll = [this] {
    ReportPauses();
    return PollDuringCall();
  };
  const Time give_up = SteadyClock::now() + options_.attach_timeout + options_.reconnect_timeout;
  while (true) {
    const absl::Status status =
        CallUnary(home, method::kExtend, request, options_.attach_timeout, poll, reply);
    const bool again = status.code() == absl::StatusCode::kUnavailable &&
                       options_.durability != Durability::kNone && IsNotYet(status, options_.slot);
    if (!again || SteadyClock::now() >= give_up) return status;
    std::this_thread::sleep_for(kPollInterval);
    BALLAST_RETURN_IF_ERROR(poll());
  }
}

absl::Status Session::Extend(const std::vector<Tensor>& tensors,
                             const std::vector<TensorBuffers>& buffers, InitMode init) {
  if (tensors.empty()) return BadArgument("no tensors to add");
  BALLAST_ASSIGN_OR_RETURN(const std::vector<TensorSpec> added, ToTensorSpecs(tensors));
  {
    MutexLock lock(&mu_);
    BALLAST_RETURN_IF_ERROR(CheckIdle());
  }
  BALLAST_RETURN_IF_ERROR(AwaitWelcomes(SteadyClock::now() + options_.attach_timeout));
  JobSpec grown;
  Layout layout;
  std::shared_ptr<grpc::Channel> home;
  {
    MutexLock lock(&mu_);
    grown = spec_;
    layout = layout_;
    home = servers_[0].channel;
  }
  const size_t old_tensors = grown.tensors.size();
  const uint32_t first_extent = static_cast<uint32_t>(layout.extents().size());
  for (const TensorSpec& tensor : added) {
    grown.tensors.push_back(tensor);
    grown.group_count = std::max(grown.group_count, tensor.group + 1);
  }
  BALLAST_RETURN_IF_ERROR(CheckJobSpec(grown));
  const std::vector<LayoutTensor> sizes = LayoutTensors(added);
  BALLAST_RETURN_IF_ERROR(layout.Append(sizes));
  BALLAST_ASSIGN_OR_RETURN(const std::vector<void*> weights, WeightsOf(buffers, added, sizes));
  v1::ExtendRequest request = MakeExtendRequest(grown, weights, layout, init);
  {
    MutexLock lock(&mu_);
    request.set_epoch(epoch_);
    request.set_base_layout_version(layout_version_);
    request.set_round(round_);
  }
  v1::ExtendReply reply;
  BALLAST_RETURN_IF_ERROR(AskToExtend(home, request, &reply));
  BALLAST_RETURN_IF_ERROR(TakePlan(reply.plan(), layout));
  {
    MutexLock lock(&mu_);
    spec_ = std::move(grown);
    epoch_ = reply.epoch().epoch();
    layout_version_ = reply.layout_version();
    for (Server& server : servers_) server.plan->SetWindow(reply.window_extents());
  }
  // Only the new tensors have memory here; what a fetch brings of the others is left out.
  std::vector<void*> all(old_tensors, nullptr);
  all.insert(all.end(), weights.begin(), weights.end());
  return Initialize(init, all, first_extent);
}

absl::StatusOr<uint64_t> Session::Snapshot(const std::string& name, uint32_t keep) {
  v1::SnapshotRequest request;
  request.set_name(name);
  request.set_keep(keep);
  std::shared_ptr<grpc::Channel> home;
  {
    MutexLock lock(&mu_);
    BALLAST_RETURN_IF_ERROR(CheckIdle());
    request.set_job(spec_.name);
    home = servers_[0].channel;
  }
  const auto poll = [this] {
    ReportPauses();
    return PollDuringCall();
  };
  v1::SnapshotReply reply;
  BALLAST_RETURN_IF_ERROR(
      CallUnary(home, method::kAdminCreateSnapshot, request, kWholeStateTimeout, poll, &reply));
  return reply.snapshot().round();
}

// A server that is away, or not in the job's epoch yet, may still come: its Welcome is answered
// with Leave.
nanoseconds Session::LeaveLimit() const {
  const bool all_know = std::all_of(servers_.begin(), servers_.end(),
                                    [](const Server& server) { return server.leave_sent; });
  if (!all_know) return report_after_;
  return std::chrono::duration_cast<nanoseconds>(kLeaveTimeout * options_.time_scale);
}

bool Session::AllLeft() const {
  return std::all_of(servers_.begin(), servers_.end(), [](const Server& server) {
    return server.leave_sent && server.stream->closed();
  });
}

void Session::LogUnheardLeave(const Server& server) const {
  BALLAST_LOG(WARN, LogField("job", options_.job), LogField("slot", options_.slot))
      << "left without an answer of server " << server.id
      << "; unless it heard of that, it keeps the seat until this trainer's lease (timing.lease) "
      << "is over";
}

absl::Status Session::Leave() {
  {
    MutexLock lock(&mu_);
    if (leaving_) return absl::OkStatus();
    BALLAST_RETURN_IF_ERROR(CheckIdle());
    leaving_ = true;
    for (Server& server : servers_) {
      if (server.welcomed) SendLeave(&server);
    }
    const Time start = SteadyClock::now();
    while (!AllLeft() && error_.ok()) {
      const auto left = start + LeaveLimit() - SteadyClock::now();
      if (left <= nanoseconds::zero()) break;
      changed_.WaitFor(&mu_, left);
    }
    for (const Server& server : servers_) {
      const bool left = server.leave_sent && server.stream->closed();
      if (durable_ && error_.ok() && !left) LogUnheardLeave(server);
    }
    error_ = absl::OkStatus();
    Fail(ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kClosed,
                       "this trainer has left the job"));
  }
  Drain(SteadyClock::now() + kForever);
  return absl::OkStatus();
}

void Session::Abort() {
  MutexLock lock(&mu_);
  Fail(ReasonedError(absl::StatusCode::kCancelled, Reason::kClosed, "the client was aborted"));
}

uint64_t Session::round() const {
  MutexLock lock(&mu_);
  return round_;
}

uint64_t Session::opt_step() const {
  MutexLock lock(&mu_);
  return opt_step_;
}

uint32_t Session::world() const {
  MutexLock lock(&mu_);
  return static_cast<uint32_t>(members_.size());
}

TransferCounters Session::counters() const {
  MutexLock lock(&mu_);
  return counters_;
}

}  // namespace ballast::client
