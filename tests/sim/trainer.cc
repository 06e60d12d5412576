#include "tests/sim/trainer.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"

namespace ballast::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

}  // namespace

SimTrainer::SimTrainer(const Context& context, uint32_t process, const server::Member& who,
                       bool newcomer)
    : context_(context),
      process_(process),
      who_(who),
      slot_(who.slot),
      newcomer_(newcomer),
      seated_(!newcomer),
      record_(context.plan->epoch) {
  const Shape& shape = context.swarm->shape;
  const Layout& layout = *context.layout;
  if (context.swarm->faults.drift) {
    const auto percent = static_cast<double>(context.world->random().Between(50, 200));
    context.world->clock(node())->SetRate(percent / 100);
  }
  const client::SendLimits limits{shape.chunk_bytes, shape.credit_bytes, shape.window_extents[0]};
  for (const uint32_t id : context.plan->servers) {
    Server server(&layout, limits);
    server.id = id;
    for (const uint32_t extent : layout.push_order()) {
      if (context.plan->owner[extent] != id) continue;
      server.owned.push_back(extent);
      server.owned_weight_bytes += layout.ExtentWireBytes(extent);
      server.owned_elements += layout.extents()[extent].elements;
    }
    servers_.push_back(std::move(server));
  }
  const bool own = slot_ == 0 || !shape.broadcast;
  for (uint32_t e = 0; e < layout.extents().size(); ++e) {
    weights_.push_back(own ? context.oracle->reference()->Weights(1, e)
                           : std::vector<char>(layout.ExtentWireBytes(e)));
    fetched_.emplace_back(3 * layout.extents()[e].elements);
  }
  grads_.resize(weights_.size());
}

SimTrainer::Time SimTrainer::Now() const {
  return Time(nanoseconds(static_cast<int64_t>(context_.world->clock(node())->Now())));
}

void SimTrainer::Later(nanoseconds delay, std::function<void()> action) {
  const nanoseconds::rep ticks = std::max<nanoseconds::rep>(delay.count(), 0) + 1;
  context_.world->clock(node())->After(static_cast<ballast::sim::Tick>(ticks), EventKind::kTimer,
                                       std::move(action));
}

// --- Activities ---------------------------------------------------------------------------------

void SimTrainer::Start() {
  if (newcomer_) {
    CallAttach(/*resume=*/true);
  } else {
    for (size_t i = 0; i < servers_.size(); ++i) OpenStream(i);
  }
  next_look_ = Now() + kHeartbeat / kLooksPerHeartbeat;
  last_tick_ = Now();
  ArmTick();
}

void SimTrainer::Kill(bool announced) {
  if (!std::exchange(alive_, false)) return;
  if (context_.world->tracing()) context_.world->Trace(node(), "is killed");
  context_.world->EndLife(node());
  context_.network->EndTrainer(process_, announced);
}

bool SimTrainer::at_rest() const {
  return error_.ok() && activity_ == Activity::kIdle &&
         std::all_of(servers_.begin(), servers_.end(),
                     [](const Server& server) { return server.welcomed; });
}

bool SimTrainer::ActivityDone() const {
  switch (activity_) {
    case Activity::kIdle:
      return true;
    case Activity::kUpload:
      return std::all_of(servers_.begin(), servers_.end(), [](const Server& server) {
        return server.welcomed && server.plan.all_received();
      });
    case Activity::kFetch:
      return std::all_of(servers_.begin(), servers_.end(),
                         [](const Server& server) { return server.fetched(); });
    case Activity::kStep:
      return progress_->complete();
  }
  return true;
}

// What the caller's thread does: waits for the activity's end, then begins the next one.
void SimTrainer::GoOn() {
  if (!error_.ok() || !seated_ || leaving_ || !ActivityDone()) return;
  if (!opened_) {
    opened_ = std::all_of(servers_.begin(), servers_.end(),
                          [](const Server& server) { return server.welcomed; });
    if (!opened_) return;
  }
  const Activity ended = std::exchange(activity_, Activity::kIdle);
  if (ended == Activity::kStep) EndStep();
  const bool state = ended == Activity::kFetch && initialized_;
  if (state) context_.oracle->OnArrays(slot_, round_, fetched_);
  if (state) state_fetched_ = state_asked_;
  if (!initialized_ && newcomer_) {
    if (ended == Activity::kIdle && IsLeadTrainer()) return BeginUpload();
    if (ended != Activity::kFetch) return BeginFetch(/*weights=*/true, {});
    initialized_ = true;
  }
  if (!initialized_) {
    const bool waits = slot_ == 0 || context_.swarm->shape.broadcast;
    if (waits && ended == Activity::kIdle) {
      if (slot_ == 0) {
        BeginUpload();
      } else {
        BeginFetch(/*weights=*/true, {});
      }
      return;
    }
    initialized_ = true;
  }
  if (finished() || next_planned_) return;
  if (leaves_soon_ && round_ > 1 && at_rest()) return Leave();
  next_planned_ = true;
  Random& random = context_.world->random();
  nanoseconds compute(random.Below(context_.swarm->pace.compute));
  if (random.OneIn(context_.swarm->faults.straggler_one_in)) {
    context_.world->Met(Cover::kStraggler);
    compute += milliseconds(300);
  }
  Later(compute, [this] { BeginStep(); });
}

void SimTrainer::BeginUpload() {
  activity_ = Activity::kUpload;
  for (Server& server : servers_) {
    if (!server.welcomed) continue;  // Its Welcome will say what it lacks.
    if (!newcomer_) server.init_missing = server.owned;
    ResumeUpload(&server);
  }
  GoOn();
}

void SimTrainer::BeginFetch(bool weights, std::vector<uint32_t> arrays) {
  for (const Server& server : servers_) {
    if (const absl::Status status = LacksInit(server); !status.ok()) {
      error_ = status;
      return;
    }
  }
  activity_ = Activity::kFetch;
  fetch_ = {round_, weights, std::move(arrays)};
  for (Server& server : servers_) {
    server.expected_bytes = (weights ? server.owned_weight_bytes : 0) +
                            server.owned_elements * sizeof(float) * fetch_.arrays.size();
    server.has_info = false;
    server.received_bytes = 0;
    if (server.welcomed) context_.network->SendUp(server.stream, fetch_);
  }
}

void SimTrainer::FetchState() {
  state_asked_ = true;
  state_fetched_ = false;
  BeginFetch(/*weights=*/false, {0, 1, 2});
}

void SimTrainer::Leave() {
  leaving_ = true;
  if (leaves_soon_) context_.world->Met(Cover::kTrainerLeft);
  for (Server& server : servers_) {
    if (server.welcomed) SendLeave(&server);
  }
}

void SimTrainer::BeginStep() {
  next_planned_ = false;
  if (!error_.ok() || leaving_ || activity_ != Activity::kIdle) return;
  activity_ = Activity::kStep;
  Reference* const reference = context_.oracle->reference();
  for (uint32_t e = 0; e < weights_.size(); ++e) {
    grads_[e] = reference->Gradient(round_, slot_, e, weights_[e]);
  }
  begin_ = reference->Begin(round_, slot_);
  std::vector<uint32_t> ids;
  std::vector<uint64_t> owned_bytes;
  for (const Server& server : servers_) {
    ids.push_back(server.id);
    owned_bytes.push_back(server.owned_weight_bytes);
  }
  progress_ = std::make_unique<client::RoundProgress>(round_, ids, owned_bytes, Now());
  for (Server& server : servers_) {
    server.resumed = false;
    server.complete_before.clear();
    if (server.welcomed) StartStep(&server);  // Otherwise after its Welcome.
  }
}

void SimTrainer::EndStep() {
  if (context_.world->tracing()) {
    context_.world->Trace(node(), absl::StrCat("slot ", slot_, " has finished round ", round_));
  }
  context_.oracle->OnTrainerRound(slot_, round_, weights_);
  fresh_extent_ = static_cast<uint32_t>(weights_.size());
  ++round_;
}

std::string SimTrainer::Waiting() const {
  std::string text = absl::StrCat("slot ", slot_, alive_ ? "" : " dead", seated_ ? "" : " asks",
                                  leaving_ ? " leaving" : "", " epoch ", record_.epoch, " round ",
                                  round_, " activity ", static_cast<int>(activity_), " (");
  for (size_t i = 0; i < servers_.size(); ++i) {
    const Server& server = servers_[i];
    const bool step = activity_ == Activity::kStep;
    absl::StrAppend(
        &text, i == 0 ? "" : ", ", "server ", server.id, server.welcomed ? " welcomed" : " away",
        server.restoring ? " restoring" : "", server.plan.all_received() ? " all received" : "",
        step && progress_->answered(i) ? " result" : "", step && progress_->done(i) ? " done" : "");
    if (!server.welcomed) absl::StrAppend(&text, ": ", server.reconnect.last_error());
  }
  return text + ")" + (error_.ok() ? "" : " error " + error_.ToString());
}

}  // namespace ballast::sim
