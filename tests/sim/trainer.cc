#include "tests/sim/trainer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/crc32c.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"

namespace ballast::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr milliseconds kHeartbeat{500};
constexpr int kLooksPerHeartbeat = 2;
constexpr int kLateHeartbeats = 3;
constexpr milliseconds kReportAfter{2500};

v1::RoundResult ToWire(const server::RoundResult& result) {
  v1::RoundResult out;
  out.set_round(result.round);
  out.set_applied(result.applied);
  out.set_grad_norm(result.grad_norm);
  out.set_clip_coef(result.clip_coef);
  out.set_opt_step(result.opt_step);
  out.set_nonfinite(result.nonfinite);
  out.set_weight_bytes(result.weight_bytes);
  out.set_loss_scale(result.loss_scale);
  return out;
}

absl::Status Broke(absl::string_view what) {
  return ReasonedError(absl::StatusCode::kInternal, Reason::kBadFrame, what);
}

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
    clock_rate_ = static_cast<double>(context.world->random().Between(50, 200)) / 100;
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
  const double local = static_cast<double>(context_.world->now()) * clock_rate_;
  return Time(nanoseconds(static_cast<int64_t>(local)));
}

void SimTrainer::Later(nanoseconds delay, std::function<void()> action) {
  const double ticks = static_cast<double>(delay.count()) / clock_rate_;
  context_.world->After(static_cast<ballast::sim::Tick>(std::max(0.0, ticks)) + 1, node(),
                        EventKind::kTimer, std::move(action));
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
  if (ended == Activity::kFetch && initialized_) state_fetched_ = state_asked_;
  if (!initialized_ && newcomer_) {
    if (ended == Activity::kIdle && IsLead()) return BeginUpload();
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
  next_planned_ = true;
  Random& random = context_.world->random();
  nanoseconds compute(random.Below(context_.swarm->pace.compute));
  if (random.OneIn(context_.swarm->faults.straggler_one_in)) compute += milliseconds(300);
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
  for (Server& server : servers_) {
    if (server.welcomed) context_.network->SendUp(server.stream, LeaveMessage{round_});
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

// --- Messages -----------------------------------------------------------------------------------

void SimTrainer::OnDownClosed(const StreamPtr& stream, const absl::Status& status) {
  if (!alive_) return;
  for (size_t i = 0; i < servers_.size(); ++i) {
    if (servers_[i].stream != stream || !error_.ok()) continue;
    const bool typed = ReasonOf(status) != Reason::kUnspecified ||
                       status.GetPayload(kErrorDetailTypeUrl).has_value();
    Lose(i, typed ? status
                  : ReasonedError(absl::StatusCode::kUnavailable, Reason::kServerLost,
                                  absl::StrCat("is gone: ", status.message())));
  }
}

void SimTrainer::OnDown(const StreamPtr& stream, DownMessage message) {
  if (!alive_) return;
  for (size_t i = 0; i < servers_.size(); ++i) {
    Server& server = servers_[i];
    if (server.stream != stream || !error_.ok() || server.gave_up) continue;
    server.last_heard = Now();
    if (const absl::Status status = OnMessage(i, message); !status.ok()) Lose(i, status);
    GoOn();
    return;
  }
}

absl::Status SimTrainer::OnMessage(size_t index, const DownMessage& message) {
  Server* const server = &servers_[index];
  const bool stepping = activity_ == Activity::kStep;
  if (const auto* welcome = std::get_if<server::SlotWelcome>(&message)) {
    return OnWelcome(index, *welcome);
  }
  if (const auto* ack = std::get_if<AckMessage>(&message)) return OnAck(server, *ack);
  if (const auto* result = std::get_if<server::RoundResult>(&message)) {
    if (!stepping) return Broke("sent a result of no round");
    context_.oracle->OnResult(slot_, *result);
    return progress_->OnResult(index, ToWire(*result), Now());
  }
  if (const auto* error = std::get_if<ErrorMessage>(&message)) {
    server->gave_up = true;
    return error->status;
  }
  if (const auto* state = std::get_if<server::StateInfo>(&message)) return OnState(server, *state);
  if (const auto* refused = std::get_if<server::FrameRefused>(&message)) {
    return OnRefused(server, *refused);
  }
  if (const auto* done = std::get_if<server::RoundDone>(&message)) {
    if (!stepping) return Broke("ended a round that is not running");
    v1::RoundDone wire;
    wire.set_round(done->round);
    return progress_->OnDone(index, wire);
  }
  if (const auto* piece = std::get_if<PieceMessage>(&message)) return OnPiece(index, *piece);
  return absl::OkStatus();  // A heartbeat.
}

absl::Status SimTrainer::OnAck(Server* server, const AckMessage& ack) {
  server->plan.OnAck(ack.received_bytes, ack.round, ack.window_base);
  if (server->restoring && server->plan.all_received()) BeginRound(server);
  Kick(server);
  return absl::OkStatus();
}

absl::Status SimTrainer::OnRefused(Server* server, const server::FrameRefused& refused) {
  if (refused.reason == Reason::kStaleEpoch) {
    return ReasonedError(absl::StatusCode::kFailedPrecondition, refused.reason, refused.message);
  }
  const bool init = server->send_kind == server::FrameKind::kInit;
  if (refused.reason == Reason::kConflict && init && record_.epoch != 1) return absl::OkStatus();
  const bool sending = activity_ == Activity::kStep || activity_ == Activity::kUpload;
  if (!sending && refused.reason != Reason::kDuplicate && refused.round >= round_) {
    return Broke(absl::StrCat("refused bytes that it had acknowledged: ",
                              ReasonName(refused.reason), ": ", refused.message));
  }
  const absl::Status status = server->plan.OnRefused(refused.reason, refused.round, refused.extent,
                                                     refused.offset_bytes, refused.message);
  Kick(server);
  return status;
}

absl::Status SimTrainer::OnState(Server* server, const server::StateInfo& info) {
  if (activity_ != Activity::kFetch || server->has_info) {
    return Broke("sent state that was not asked for");
  }
  if (info.round != round_ || info.bytes != server->expected_bytes) {
    return Broke("offers another state than was asked for");
  }
  server->has_info = true;
  return absl::OkStatus();
}

absl::Status SimTrainer::OnPiece(size_t index, const PieceMessage& piece) {
  Server& server = servers_[index];
  if (activity_ == Activity::kStep) {
    BALLAST_RETURN_IF_ERROR(progress_->OnWeight(index, piece.round, piece.bytes->size(), Now()));
  } else {
    server.received_bytes += piece.bytes->size();
    if (activity_ != Activity::kFetch || !server.has_info || piece.round != round_ ||
        server.received_bytes > server.expected_bytes) {
      return Broke("sent bytes that were not asked for");
    }
  }
  if (piece.kind == server::FrameKind::kWeight) {
    context_.oracle->OnWeights(slot_, piece.round, piece.extent, *piece.bytes);
    weights_[piece.extent] = *piece.bytes;
    return absl::OkStatus();
  }
  const size_t elements = context_.layout->extents()[piece.extent].elements;
  std::memcpy(fetched_[piece.extent].data() + piece.array * elements + piece.offset_bytes / 4,
              piece.bytes->data(), piece.bytes->size());
  return absl::OkStatus();
}

void SimTrainer::Kick(Server* server) {
  const bool sending = activity_ == Activity::kStep || activity_ == Activity::kUpload;
  if (!sending || !server->welcomed || !error_.ok()) return;
  while (const std::optional<client::FrameRange> range = server->plan.Next()) {
    SendFrame(server, *range);
  }
}

void SimTrainer::SendFrame(Server* server, const client::FrameRange& range) {
  const bool init = server->send_kind == server::FrameKind::kInit;
  const std::vector<char>& from = init ? weights_[range.extent] : grads_[range.extent];
  std::string bytes(from.data() + range.offset, range.length);
  FrameMessage frame;
  frame.info = {.job = context_.plan->job,
                .epoch = record_.epoch,
                .slot = slot_,
                .round = round_,
                .extent = range.extent,
                .incarnation = who_.incarnation,
                .offset_bytes = range.offset,
                .length_bytes = range.length,
                .dtype = context_.layout->extents()[range.extent].dtype,
                .kind = server->send_kind,
                .crc32c = Crc32c(bytes.data(), bytes.size())};
  Random& random = context_.world->random();
  const bool corrupt =
      !init && !server->stream->corrupted && random.OneIn(context_.swarm->faults.corrupt_one_in);
  if (corrupt) {
    server->stream->corrupted = true;
    bytes[random.Below(bytes.size())] ^= static_cast<char>(1 << random.Below(8));
  }
  frame.payload = Payload::FromString(std::move(bytes));
  context_.network->SendUp(server->stream, std::move(frame));
  if (context_.mutant == Mutant::kFreeGradients && !init) {
    std::fill_n(grads_[range.extent].begin() + range.offset, range.length, 0);
  }
}

}  // namespace ballast::sim
