// Initial weights, fetches, snapshots, growth, the user state, and a session's getters.
#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ballast/v1/admin.pb.h"
#include "client/cpp/job/arguments.h"
#include "client/cpp/job/attach.h"
#include "client/cpp/session/reconnect.h"
#include "client/cpp/session/session.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/methods.h"

namespace ballast::client {
namespace {

constexpr std::chrono::milliseconds kRetryInterval{100};
constexpr std::chrono::hours kWholeStateTimeout{24};  // a server that dies ends the call before

// A job's specification and layout, and then those with more tensors.
struct GrownSpec {
  JobSpec spec;
  Layout layout;
  std::vector<LayoutTensor> sizes;  // of the new tensors
};

absl::Status Grow(const std::vector<TensorSpec>& added,
                  const std::vector<uint32_t>& schedule_groups, GrownSpec* grown) {
  std::vector<uint32_t>* const groups = &grown->spec.policy.schedule_group;
  groups->insert(groups->end(), schedule_groups.begin(), schedule_groups.end());
  for (const TensorSpec& tensor : added) {
    grown->spec.tensors.push_back(tensor);
    grown->spec.group_count = std::max(grown->spec.group_count, tensor.group + 1);
  }
  BALLAST_RETURN_IF_ERROR(CheckJobSpec(grown->spec));
  grown->sizes = LayoutTensors(added);
  return grown->layout.Append(grown->sizes);
}

// A fetch of all arrays into `buffers`. Error: INVALID_ARGUMENT BAD_ARGUMENT.
absl::StatusOr<Fetch> StateFetch(const JobView& job, const std::vector<StateBuffers>& buffers) {
  const size_t tensors = job.layout.tensors().size();
  if (buffers.size() != tensors) {
    return BadArgument(
        absl::StrCat("got state buffers for ", buffers.size(), " tensors, the job has ", tensors));
  }
  Fetch fetch;
  fetch.states.assign(StateArrayCount(job.spec), std::vector<void*>(tensors, nullptr));
  for (size_t t = 0; t < tensors; ++t) {
    const std::vector<float*>& arrays = buffers[t].arrays;
    if (arrays.size() > fetch.states.size()) {
      return BadArgument(absl::StrCat("got buffers for ", arrays.size(), " state arrays of tensor ",
                                      "\"", job.spec.tensors[t].name, "\", the job has ",
                                      fetch.states.size()));
    }
    for (size_t a = 0; a < arrays.size(); ++a) fetch.states[a][t] = arrays[a];
  }
  return fetch;
}

}  // namespace

// --- Initial weights ----------------------------------------------------------------------------

absl::Status Session::Initialize(InitMode init, const std::vector<void*>& weights,
                                 uint32_t first_extent) {
  bool lead_trainer = false;
  {
    MutexLock lock(&mu_);
    lead_trainer = core_->job().IsLeadTrainer();
  }
  if (lead_trainer) return UploadInitial(weights, first_extent, /*from_first=*/true);
  return init == InitMode::kEqual ? absl::OkStatus() : FetchWeightsInto(weights);
}

absl::Status Session::TakeOver(const std::vector<void*>& weights) {
  bool lead_trainer = false;
  {
    MutexLock lock(&mu_);
    BALLAST_RETURN_IF_ERROR(core_->CheckIdle());
    lead_trainer = core_->job().IsLeadTrainer();
  }
  if (lead_trainer) {
    BALLAST_RETURN_IF_ERROR(UploadInitial(weights, /*first_extent=*/0, /*from_first=*/false));
  }
  return FetchWeightsInto(weights);
}

absl::Status Session::UploadInitial(const std::vector<void*>& weights, uint32_t first_extent,
                                    bool from_first) {
  BALLAST_RETURN_IF_ERROR(BeginOnGpu());
  {
    MutexLock lock(&mu_);
    BALLAST_RETURN_IF_ERROR(core_->PushInitialWeights({weights, first_extent}, from_first));
  }
  return FinishActivity().status();
}

// --- Fetches ------------------------------------------------------------------------------------

absl::Status Session::FetchWeightsInto(const std::vector<void*>& weights) {
  BALLAST_RETURN_IF_ERROR(BeginOnGpu());
  {
    MutexLock lock(&mu_);
    Fetch fetch;
    fetch.weights = weights;
    v1::FetchState request;
    request.set_weights(true);
    BALLAST_RETURN_IF_ERROR(core_->BeginFetch(std::move(fetch), std::move(request)));
  }
  return FinishActivity().status();
}

absl::Status Session::FetchWeights(const std::vector<TensorBuffers>& buffers) {
  std::vector<void*> weights;
  {
    MutexLock lock(&mu_);
    BALLAST_RETURN_IF_ERROR(core_->CheckIdle());
    const JobView& job = core_->job();
    BALLAST_ASSIGN_OR_RETURN(weights, WeightsOf(buffers, job.spec.tensors, job.layout.tensors()));
  }
  return FetchWeightsInto(weights);
}

absl::Status Session::FetchState(const std::vector<StateBuffers>& buffers,
                                 std::vector<uint64_t>* tensor_step) {
  BALLAST_RETURN_IF_ERROR(BeginOnGpu());
  {
    MutexLock lock(&mu_);
    BALLAST_RETURN_IF_ERROR(core_->CheckIdle());
    BALLAST_ASSIGN_OR_RETURN(Fetch fetch, StateFetch(core_->job(), buffers));
    v1::FetchState request;
    for (uint32_t array = 0; array < fetch.states.size(); ++array) {
      const std::vector<void*>& wanted = fetch.states[array];
      if (std::any_of(wanted.begin(), wanted.end(), [](void* p) { return p != nullptr; })) {
        request.add_arrays(array);
      }
    }
    BALLAST_RETURN_IF_ERROR(core_->BeginFetch(std::move(fetch), std::move(request)));
  }
  BALLAST_ASSIGN_OR_RETURN(Activity ended, FinishActivity());
  if (tensor_step != nullptr) *tensor_step = std::move(std::get<Fetch>(ended).tensor_step);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Session::Snapshot(const std::string& name, uint32_t keep) {
  v1::SnapshotRequest request;
  request.set_name(name);
  request.set_keep(keep);
  {
    MutexLock lock(&mu_);
    BALLAST_RETURN_IF_ERROR(core_->CheckIdle());
    request.set_job(core_->job().spec.name);
  }
  v1::SnapshotReply reply;
  BALLAST_RETURN_IF_ERROR(
      CallHome(method::kAdminCreateSnapshot, request, kWholeStateTimeout, &reply));
  return reply.snapshot().round();
}

// --- Growth -------------------------------------------------------------------------------------

absl::StatusOr<v1::ExtendRequest> Session::MakeExtendRequest(const JobSpec& grown,
                                                             const Layout& layout,
                                                             const std::vector<void*>& weights,
                                                             InitMode init) {
  const size_t first = grown.tensors.size() - weights.size();
  v1::ExtendRequest request;
  request.set_slot(options_.slot);
  request.set_group_count(grown.group_count);
  for (size_t i = first; i < grown.tensors.size(); ++i) {
    ToProto(grown.tensors[i], request.add_tensors());
  }
  request.set_init(init == InitMode::kEqual ? v1::INIT_MODE_EQUAL : v1::INIT_MODE_BROADCAST);
  if (init == InitMode::kEqual) {
    const std::vector<LayoutTensor> sizes(layout.tensors().begin() + static_cast<ptrdiff_t>(first),
                                          layout.tensors().end());
    BALLAST_RETURN_IF_ERROR(BeginOnGpu());
    BALLAST_ASSIGN_OR_RETURN(const std::vector<uint32_t> digests,
                             DigestsOf(weights, sizes, staging()));
    request.mutable_tensor_crc32c()->Assign(digests.begin(), digests.end());
  }
  MutexLock lock(&mu_);
  const JobView& job = core_->job();
  const std::vector<uint32_t>& groups = grown.policy.schedule_group;
  const auto old_groups = static_cast<ptrdiff_t>(job.spec.policy.schedule_group.size());
  request.mutable_schedule_group()->Assign(groups.begin() + old_groups, groups.end());
  request.set_job(job.id);
  request.set_incarnation(job.incarnation);
  request.set_epoch(job.epoch);
  request.set_base_layout_version(job.layout_version);
  request.set_round(job.round);
  return request;
}

// The home of a durable job may go away meanwhile. Then asking again is safe: the home answers a
// request that took effect as it would have at first.
absl::Status Session::AskToExtend(const v1::ExtendRequest& request, v1::ExtendReply* reply) {
  const Time give_up = transport_->Now() + options_.attach_timeout + options_.reconnect_timeout;
  while (true) {
    const absl::Status status = CallHome(method::kExtend, request, options_.attach_timeout, reply);
    const bool again = status.code() == absl::StatusCode::kUnavailable && IsDurable(options_) &&
                       IsNotYet(status, options_.slot);
    if (!again || transport_->Now() >= give_up) return status;
    std::this_thread::sleep_for(kRetryInterval);
    ReportPauses();
    BALLAST_RETURN_IF_ERROR(Poll());
  }
}

absl::Status Session::Extend(const std::vector<Tensor>& tensors,
                             const std::vector<TensorBuffers>& buffers, InitMode init,
                             const std::vector<uint32_t>& schedule_groups) {
  if (tensors.empty()) return BadArgument("no tensors to add");
  BALLAST_RETURN_IF_ERROR(CheckKnown("init", init));
  BALLAST_ASSIGN_OR_RETURN(const std::vector<TensorSpec> added, ToTensorSpecs(tensors));
  GrownSpec grown;
  {
    MutexLock lock(&mu_);
    BALLAST_RETURN_IF_ERROR(core_->CheckIdle());
    grown.spec = core_->job().spec;
    grown.layout = core_->job().layout;
  }
  BALLAST_RETURN_IF_ERROR(AwaitWelcomes(transport_->Now() + options_.attach_timeout));
  // Only the new tensors have memory here; the fetched bytes of the others are skipped.
  std::vector<void*> weights(grown.spec.tensors.size(), nullptr);
  const uint32_t first_extent = static_cast<uint32_t>(grown.layout.extents().size());
  BALLAST_RETURN_IF_ERROR(Grow(added, schedule_groups, &grown));
  BALLAST_ASSIGN_OR_RETURN(const std::vector<void*> new_weights,
                           WeightsOf(buffers, added, grown.sizes));
  weights.insert(weights.end(), new_weights.begin(), new_weights.end());
  BALLAST_ASSIGN_OR_RETURN(const v1::ExtendRequest request,
                           MakeExtendRequest(grown.spec, grown.layout, new_weights, init));
  v1::ExtendReply reply;
  BALLAST_RETURN_IF_ERROR(AskToExtend(request, &reply));
  {
    MutexLock lock(&mu_);
    BALLAST_RETURN_IF_ERROR(core_->Grow(std::move(grown.spec), std::move(grown.layout), reply));
  }
  return Initialize(init, weights, first_extent);
}

// --- The user state -----------------------------------------------------------------------------

absl::Status Session::SetUserState(std::string state) {
  if (state.size() > kUserStateBytesMax) {
    return BadArgument(absl::StrCat("the user state has ", state.size(), " bytes, the limit is ",
                                    kUserStateBytesMax, "; keep a position there, not the data"));
  }
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(core_->CheckIdle());
  user_state_ = std::move(state);
  return absl::OkStatus();
}

std::string Session::user_state() const {
  MutexLock lock(&mu_);
  return user_state_;
}

// --- Getters ------------------------------------------------------------------------------------

std::vector<std::string> Session::state_arrays() const {
  MutexLock lock(&mu_);
  std::vector<std::string> names = {"master"};
  for (const StateArray& array : StateArraysOf(core_->job().spec)) names.push_back(array.name);
  return names;
}

bool Session::resumed() const {
  MutexLock lock(&mu_);
  return core_->job().resumed;
}

uint64_t Session::round() const {
  MutexLock lock(&mu_);
  return core_->job().round;
}

uint64_t Session::opt_step() const {
  MutexLock lock(&mu_);
  return core_->job().opt_step;
}

Policy Session::policy() const {
  MutexLock lock(&mu_);
  return core_->job().ShownPolicy();
}

uint32_t Session::world() const {
  MutexLock lock(&mu_);
  return core_->job().world();
}

uint32_t Session::epoch() const {
  MutexLock lock(&mu_);
  return core_->job().epoch;
}

std::vector<DealtExtent> Session::dealt() const {
  MutexLock lock(&mu_);
  return core_->job().Dealt();
}

void Session::SetSumsOf(uint32_t epoch) {
  MutexLock lock(&mu_);
  sums_of_ = epoch;
}

uint64_t Session::job_id() const {
  MutexLock lock(&mu_);
  return core_->job().id;
}

uint32_t Session::server_count() const {
  MutexLock lock(&mu_);
  return static_cast<uint32_t>(core_->servers().size());
}

TransferCounters Session::counters() const {
  MutexLock lock(&mu_);
  return core_->counters();
}

}  // namespace ballast::client
