#include "tests/sim/nodes/trainer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/job/round_input.h"
#include "common/base/reason.h"
#include "proto/convert/channel.h"
#include "proto/convert/job_convert.h"

namespace ballast::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr milliseconds kAttachAgain{100};
constexpr milliseconds kStragglerExtra{300};
// As Session's LeaveLimit.
constexpr std::chrono::seconds kLeaveTimeout{2};

}  // namespace

SimTrainer::SimTrainer(const Context& context, uint32_t process, const server::Member& who,
                       bool newcomer)
    : context_(context),
      process_(process),
      who_(who),
      newcomer_(newcomer),
      weights_(context.layout, Tensors::Kind::kWire),
      grads_(context.layout, Tensors::Kind::kWire),
      arrays_(StateArrayCount(context.plan->spec), Tensors(context.layout, Tensors::Kind::kState)),
      transport_(context, process, who.slot) {
  if (context.swarm->faults.drift) {
    const auto percent = static_cast<double>(context.world->random().Between(50, 200));
    context.world->clock(node())->SetRate(percent / 100);
  }
  context.oracle->OnTrainer(process, who);
  if (who.slot == 0 || !context.swarm->shape.broadcast) TakeInitialWeights();
}

void SimTrainer::TakeInitialWeights() {
  for (uint32_t e = 0; e < context_.layout->extents().size(); ++e) {
    weights_.Put(e, context_.oracle->reference()->Weights(1, e));
  }
}

void SimTrainer::Later(nanoseconds delay, std::function<void()> action) {
  context_.world->clock(node())->After(static_cast<Tick>(delay.count()) + 1, EventKind::kTimer,
                                       std::move(action));
}

void SimTrainer::Kill(bool announced) {
  if (!std::exchange(alive_, false)) return;
  if (context_.world->tracing()) context_.world->Trace(node(), "ends");
  context_.world->EndLife(node());
  context_.oracle->OnTrainerOver(process_);
  context_.network->EndTrainer(process_, announced);
  if (search_ != nullptr) search_->End();
  if (meeting_ != nullptr) meeting_->End();
}

// --- The seat -----------------------------------------------------------------------------------

client::JobOptions SimTrainer::Options() const {
  const JobSpec spec = Spec();
  client::JobOptions options;
  options.job = spec.name;
  options.world = spec.world;
  options.slot = who_.slot;
  const bool broadcast = context_.swarm->shape.broadcast;
  options.init = broadcast ? client::InitMode::kBroadcast : client::InitMode::kEqual;
  options.durability = static_cast<client::Durability>(spec.durability);
  options.variable_world = spec.variable_world;
  options.min_world = context_.swarm->shape.min_world;
  options.resume = newcomer_ ? client::Resume::kMust : client::Resume::kAuto;
  options.on_pause = [](const client::Pause&) {};
  return options;
}

JobSpec SimTrainer::Spec() const {
  JobSpec spec = context_.plan->spec;
  // A process that joins wants a world with its seat in it.
  if (spec.variable_world) spec.world = std::max(spec.world, who_.slot + 1);
  return spec;
}

void SimTrainer::Attach() {
  const client::JobOptions options = Options();
  v1::AttachRequest request;
  *request.mutable_protocol() = OwnProtocolRange();
  ToProto(Spec(), request.mutable_spec());
  request.set_slot(who_.slot);
  request.set_incarnation(who_.incarnation);
  request.set_init(v1::INIT_MODE_BROADCAST);
  request.set_resume(static_cast<v1::Resume>(options.resume));
  request.set_min_world(options.min_world);
  search_ = std::make_unique<SimHomeSearch>(
      context_, process_, &transport_, options, request,
      [this](const absl::StatusOr<v1::AttachReply>& reply) { OnAttached(reply); });
}

void SimTrainer::OnAttached(const absl::StatusOr<v1::AttachReply>& reply) {
  const absl::Status& status = reply.status();
  const bool full = context_.swarm->faults.disk_full && ReasonOf(status) == Reason::kOverBudget;
  if (full) context_.world->Met(Cover::kFullDisk);
  if (reply.ok()) {
    OpenSession(*reply);
  } else if ((full && !context_.oracle->begun()) || OpenedInVain(status)) {
    Later(kAttachAgain, [this] { Attach(); });  // As its launcher would.
  } else if (absl::IsCancelled(status)) {
    Kill(/*announced=*/true);  // A later process has asked for its seat.
  } else {
    GiveUp(status);
  }
}

// A disk failed while a server opened the resting job. The launcher starts the trainers again, and
// the server opens the files once more.
bool SimTrainer::OpenedInVain(const absl::Status& status) const {
  const Faults& faults = context_.swarm->faults;
  const bool failed = absl::IsDataLoss(status) || absl::IsResourceExhausted(status);
  return failed && context_.rests() && (faults.write_errors || faults.sync_errors);
}

void SimTrainer::OpenSession(const v1::AttachReply& reply) {
  newcomer_ = newcomer_ || reply.resumed();  // The others may be rounds ahead.
  const client::AttachedJob attached{
      .spec = Spec(), .layout = *context_.layout, .reply = reply, .incarnation = who_.incarnation};
  client::SessionCore::Environment environment;
  environment.transport = &transport_;
  environment.lease = &lease_;
  environment.on_change = [this] { Wake(); };
  environment.doing = [this] { return meeting_ == nullptr ? Doing() : meeting_->doing(); };
  core_ = std::make_unique<client::SessionCore>(Options(), attached, std::move(environment));
  const absl::Status started = core_->Start(reply.plan());
  if (!started.ok()) return GiveUp(started);
  if (!context_.swarm->meetings) return;
  meeting_ =
      std::make_unique<SimMeeting>(context_, process_, who_, reply.job(), &transport_, core_.get());
}

// --- The caller's thread ------------------------------------------------------------------------

void SimTrainer::Wake() {
  if (std::exchange(wake_planned_, true)) return;
  context_.world->After(0, node(), EventKind::kTimer, [this] {
    wake_planned_ = false;
    GoOn();
  });
}

// Waits for the activity's end, then begins the next one.
void SimTrainer::GoOn() {
  if (core_ == nullptr || !error_.ok()) return;
  if (meeting_ != nullptr) meeting_->Poke();
  while (core_->pauses().Take().has_value()) {
  }
  if (core_->leaving()) return AwaitLeft();
  if (!core_->error().ok()) return GiveUp(core_->error());
  if (stage_ == Stage::kOpens && !AllWelcomed()) return;
  if (!core_->Done()) return;
  EndActivity();
  if (leaves_) return BeginLeave();
  if (stage_ != Stage::kTrains) return Initialize();
  PlanStep();
}

bool SimTrainer::AllWelcomed() const {
  return std::all_of(core_->servers().begin(), core_->servers().end(),
                     [](const auto& server) { return server->welcomed(); });
}

void SimTrainer::EndActivity() {
  if (!lease_.WaitReleased(nanoseconds(0))) {
    context_.world->Red("an activity ends before its memory is back");
  }
  if (core_->in_round()) return EndStep();
  const client::Activity ended = core_->EndActivity();
  if (const auto* const fetch = std::get_if<client::Fetch>(&ended)) OnFetched(*fetch);
}

// As Session's Initialize and, for a newcomer, TakeOver.
void SimTrainer::Initialize() {
  const Stage before = stage_;
  if (before == Stage::kOpens && job().IsLeadTrainer()) {
    stage_ = Stage::kUploads;
    TakeInitialWeights();
    const absl::Status begun =
        core_->PushInitialWeights({weights_.pointers(), 0}, /*from_first=*/!newcomer_);
    return begun.ok() ? Wake() : GiveUp(begun);
  }
  const bool fetches = newcomer_ || (before == Stage::kOpens && context_.swarm->shape.broadcast);
  if (before != Stage::kFetches && fetches) {
    stage_ = Stage::kFetches;
    client::Fetch fetch;
    fetch.weights = weights_.pointers();
    v1::FetchState request;
    request.set_weights(true);
    return BeginFetch(std::move(fetch), request);
  }
  stage_ = Stage::kTrains;
  PlanStep();
}

void SimTrainer::BeginFetch(client::Fetch fetch, const v1::FetchState& request) {
  const absl::Status begun = core_->BeginFetch(std::move(fetch), request);
  if (!begun.ok()) GiveUp(begun);
}

void SimTrainer::FetchState() {
  state_asked_ = true;
  state_fetched_ = false;
  client::Fetch fetch;
  v1::FetchState request;
  for (uint32_t array = 0; array < arrays_.size(); ++array) {
    fetch.states.push_back(arrays_[array].pointers());
    request.add_arrays(array);
  }
  BeginFetch(std::move(fetch), request);
}

void SimTrainer::OnFetched(const client::Fetch& fetch) {
  if (stage_ != Stage::kTrains) return;
  context_.oracle->OnSteps(who_.slot, job().round, fetch.tensor_step);
  std::vector<std::vector<float>> arrays;  // per extent, one after the other
  for (uint32_t e = 0; e < context_.layout->extents().size(); ++e) {
    const size_t elements = context_.layout->extents()[e].elements;
    std::vector<float>& of = arrays.emplace_back(arrays_.size() * elements);
    for (size_t array = 0; array < arrays_.size(); ++array) {
      const std::vector<char> bytes = arrays_[array].Get(e);
      std::memcpy(of.data() + array * elements, bytes.data(), bytes.size());
    }
  }
  context_.oracle->OnArrays(who_.slot, job().round, arrays);
  state_fetched_ = state_asked_;
}

bool SimTrainer::at_rest() const {
  return core_ != nullptr && error_.ok() && core_->CheckIdle().ok() && AllWelcomed();
}

void SimTrainer::GiveUp(const absl::Status& status) {
  if (!error_.ok()) return;
  if (leaves_) return Kill(/*announced=*/true);  // Its work is done.
  error_ = status;
  context_.oracle->OnTrainerOver(process_);
  if (context_.world->tracing()) {
    context_.world->Trace(node(),
                          absl::StrCat("slot ", who_.slot, " gives up: ", status.ToString()));
  }
}

// --- Leaving ------------------------------------------------------------------------------------

void SimTrainer::Leave() {
  leaves_ = true;
  Wake();
}

void SimTrainer::BeginLeave() {
  if (leaves_soon_) context_.world->Met(Cover::kTrainerLeft);
  core_->BeginLeave();
  const bool all_know = std::all_of(core_->servers().begin(), core_->servers().end(),
                                    [](const auto& server) { return server->leave_sent(); });
  Later(all_know ? nanoseconds(kLeaveTimeout) : job().report_after,
        [this] { Kill(/*announced=*/true); });
  AwaitLeft();
}

void SimTrainer::AwaitLeft() {
  const bool left = std::all_of(core_->servers().begin(), core_->servers().end(),
                                [](const auto& server) { return server->left(); });
  if (left || !core_->error().ok()) Kill(/*announced=*/true);
}

// --- Rounds -------------------------------------------------------------------------------------

bool SimTrainer::finished() const {
  return stage_ == Stage::kTrains && job().round > context_.lives->last_round;
}

void SimTrainer::PlanStep() {
  if (finished() || step_planned_) return;
  const server::EpochRecord& newest = context_.oracle->newest();
  const bool others = newest.world() > newest.min_world;  // There may be fewer by now.
  if (leaves_soon_ && others && job().round > 1 && at_rest()) return Leave();
  step_planned_ = true;
  Random& random = context_.world->random();
  nanoseconds compute(random.Below(context_.swarm->pace.compute));
  if (random.OneIn(context_.swarm->faults.straggler_one_in)) {
    context_.world->Met(Cover::kStraggler);
    compute += kStragglerExtra;
  }
  Later(compute, [this] { BeginStep(); });
}

void SimTrainer::BeginStep() {
  step_planned_ = false;
  if (!error_.ok() || leaves_ || !core_->CheckIdle().ok()) return;
  Reference* const reference = context_.oracle->reference();
  const uint64_t round = job().round;
  for (uint32_t e = 0; e < context_.layout->extents().size(); ++e) {
    grads_.Put(e, reference->Gradient(round, who_.slot, e, weights_.Get(e)));
  }
  absl::StatusOr<client::RoundInput> input = Input(reference->PlaneOf(round));
  if (!input.ok()) return context_.world->Red(input.status().ToString());
  const absl::Status begun = core_->BeginRound(*std::move(input));
  if (!begun.ok()) context_.world->Red(begun.ToString());
}

absl::StatusOr<client::RoundInput> SimTrainer::Input(UploadPlane plane) {
  const Reference& reference = *context_.oracle->reference();
  const uint64_t round = job().round;
  std::vector<client::TensorBuffers> buffers;
  for (uint32_t t = 0; t < context_.layout->tensors().size(); ++t) {
    const bool present = reference.Present(round, who_.slot, t);
    buffers.push_back({present ? grads_.data(t) : nullptr, weights_.data(t)});
  }
  if (plane == UploadPlane::kWeights) {
    // From other memory than the weights land in: initial weights may have to go out once more.
    std::vector<client::TensorBuffers> uploaded;
    for (uint32_t t = 0; t < buffers.size(); ++t) uploaded.push_back({nullptr, grads_.data(t)});
    auto input = client::UploadInput(job(), uploaded, nullptr);
    if (input.ok()) input->weights = weights_.pointers();
    return input;
  }
  if (IsStatePlane(plane)) {
    client::StateUpload upload;
    upload.array = ArrayOf(plane);
    upload.low = IsLowPlane(plane);
    const std::optional<StepCounts> steps = reference.SetSteps(round);
    if (steps.has_value()) upload.tensor_step = steps->tensor;
    if (steps.has_value()) upload.opt_step = steps->opt_step;
    return client::StateUploadInput(job(), upload, buffers, nullptr);
  }
  std::vector<Hyper> hyper;
  for (uint32_t g = 0; g < context_.plan->spec.group_count; ++g) {
    hyper.push_back(reference.HyperOf(round, g));
  }
  // Gradients here are the same at any scale; a trainer only has to know the scale.
  const bool scaled = context_.plan->spec.policy.loss_scaler.has_value();
  auto input = client::StepInput(job(), hyper, buffers, scaled ? job().policy.state.loss_scale : 0);
  if (!input.ok() || !job().ComparesGradients()) return input;
  const std::vector<uint32_t> digests =
      *client::GradientDigests(context_.layout->tensors(), buffers, nullptr);
  input->begin.mutable_gradient_crc32c()->Assign(digests.begin(), digests.end());
  return input;
}

// As the all-gather of a process group would. What came from the servers stays: after a break they
// send all.
void SimTrainer::GatherWeights(uint64_t round, uint32_t extent) {
  weights_.Put(extent, context_.oracle->reference()->Weights(round + 1, extent));
}

void SimTrainer::EndStep() {
  const uint64_t round = job().round;
  if (context_.world->tracing()) {
    context_.world->Trace(node(), absl::StrCat("slot ", who_.slot, " has finished round ", round));
  }
  client::RoundReport report;
  (void)core_->EndRound(&report);  // A halted round counts as any other.
  std::vector<std::vector<char>> weights;
  for (uint32_t e = 0; e < context_.layout->extents().size(); ++e) {
    if (!context_.oracle->reference()->GetsWeights(round, who_.slot, e)) GatherWeights(round, e);
    weights.push_back(weights_.Get(e));
  }
  context_.oracle->OnTrainerRound(who_.slot, round, weights);
}

std::string SimTrainer::Waiting() const {
  std::string text = absl::StrCat("slot ", who_.slot, alive_ ? "" : " dead",
                                  leaves_ ? " leaves" : "", " stage ", static_cast<int>(stage_));
  if (core_ == nullptr) return text + " asks";
  absl::StrAppend(&text, " epoch ", job().epoch, " round ", job().round,
                  core_->in_round() ? " running (" : " (");
  for (const auto& server : core_->servers()) {
    absl::StrAppend(&text, server->index() == 0 ? "" : ", ", "server ", server->id(),
                    server->welcomed() ? " welcomed" : " away",
                    server->share().all_received() ? " all received" : "");
    if (!server->welcomed()) absl::StrAppend(&text, ": ", server->reconnect().last_error());
  }
  if (meeting_ != nullptr) absl::StrAppend(&text, "; ", meeting_->Waiting());
  return text + ")" + (error_.ok() ? "" : " error " + error_.ToString());
}

}  // namespace ballast::sim
