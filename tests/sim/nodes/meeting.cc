#include "tests/sim/nodes/meeting.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "proto/convert/channel.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/methods.h"

namespace ballast::sim {
namespace {

using std::chrono::milliseconds;

constexpr Tick kAgain = 100 * kMillisecond;
constexpr Tick kWatch = 1 * kSecond;
constexpr Tick kMakingMax = 200 * kMillisecond;
constexpr milliseconds kTimeout{5000};
constexpr Tick kLate = 10 * kSecond;
constexpr milliseconds kAnswerWithin{2400};

absl::Status ProcessEnded() { return absl::CancelledError("the process has ended"); }

// As the home would say it.
absl::Status GenerationOver() {
  return ReasonedError(absl::StatusCode::kAborted, Reason::kRendezvousEnded, "a rank has ended it");
}

}  // namespace

// --- What must hold -----------------------------------------------------------------------------

void MeetingBook::OnId(const Key& key, const std::string& id) {
  if (ids_.emplace(key, id).first->second != id) {
    world_->Red(absl::StrCat("two ids in generation ", key.second, " of epoch ", key.first));
  }
  if (keys_.emplace(id, key).first->second != key) world_->Red("an id is used twice");
}

void MeetingBook::OnReady(const Key& key, const server::Member& rank, const std::string& id) {
  ready_[key][rank.incarnation] = id;
}

void MeetingBook::OnOpen(const Key& key, const std::string& id) {
  const server::EpochRecord* const record = oracle_->Record(key.first);
  if (record == nullptr) return world_->Red("a communicator opens in an epoch that is none");
  for (const server::Member& member : record->members) {
    const auto said = ready_[key].find(member.incarnation);
    if (said != ready_[key].end() && said->second == id) continue;
    world_->Red(absl::StrCat("generation ", key.second, " of epoch ", key.first,
                             " opens, and rank ", member.slot, " is not ready with its id"));
  }
}

void MeetingBook::OnMissing(const Key& key, int slot) {
  const server::EpochRecord* const record = oracle_->Record(key.first);
  const bool member =
      record != nullptr && slot >= 0 && record->Find(static_cast<uint32_t>(slot)) != nullptr;
  if (!member) world_->Red(absl::StrCat("rank ", slot, " is missed, and is none of the epoch"));
}

void MeetingBook::OnRollCall(uint32_t epoch, const client::RollCallReport& report) {
  const server::EpochRecord* const record = oracle_->Record(epoch);
  const bool same = record != nullptr &&
                    std::equal(report.ranks.begin(), report.ranks.end(), record->members.begin(),
                               record->members.end(), [](const auto& rank, const auto& member) {
                                 return rank.slot == member.slot;
                               });
  if (!same) world_->Red(absl::StrCat("a roll call of epoch ", epoch, " names other ranks"));
}

// --- A rank -------------------------------------------------------------------------------------

SimMeeting::SimMeeting(const Context& context, uint32_t process, const server::Member& who,
                       uint64_t job, SimTransport* transport, const client::SessionCore* core)
    : context_(context),
      who_(who),
      transport_(transport),
      core_(core),
      random_(Mix(context.swarm->seed) ^ Mix(0x3EE7 + process)),
      rendezvous_(Deps(job)),
      program_(context.world, context.network->TrainerNode(process), [this] { Run(); }) {
  meeting_.tag = "main";
  meeting_.timeout = kTimeout;
}

client::HomeRendezvous::Deps SimMeeting::Deps(uint64_t job) {
  client::HomeRendezvous::Deps deps{job, who_.slot, who_.incarnation};
  deps.reconnect_timeout = core_->job().options.reconnect_timeout;
  deps.call = [this](const v1::RendezvousRequest& request, milliseconds timeout,
                     v1::RendezvousReply* reply) { return CallHome(request, timeout, reply); };
  deps.wait = [this](milliseconds time) {
    return WaitFor(static_cast<Tick>(time.count()) * kMillisecond);
  };
  deps.now = [this] { return transport_->Now(); };
  deps.epoch = [this] { return core_->job().epoch; };
  return deps;
}

absl::Status SimMeeting::CallHome(const v1::RendezvousRequest& request, milliseconds timeout,
                                  v1::RendezvousReply* reply) {
  std::optional<absl::StatusOr<Payload>> answer;
  const std::unique_ptr<client::CallHandle> call =
      transport_->Start({core_->servers().front()->address(), method::kRendezvous, timeout},
                        request, [this, &answer](absl::StatusOr<Payload> arrived) {
                          answer.emplace(std::move(arrived));
                          program_.Wake();
                        });
  while (!answer.has_value()) {
    if (!core_->error().ok()) return core_->error();
    if (!program_.Wait()) return ProcessEnded();
  }
  return answer->ok() ? ParseMessage(**answer, kMaxMessageBytes, reply) : answer->status();
}

// Or until it is poked.
absl::Status SimMeeting::WaitFor(Tick time) {
  return program_.WaitFor(time) ? core_->error() : ProcessEnded();
}

void SimMeeting::Poke() {
  if (core_->job().epoch != meeting_.epoch || !core_->error().ok()) program_.Wake();
}

void SimMeeting::Run() {
  while (true) {
    if (core_->job().epoch != meeting_.epoch) {
      meeting_.epoch = core_->job().epoch;
      meeting_.generation = 1;
    }
    const absl::Status ended = Meet();
    open_ = false;
    switch (ReasonOf(ended)) {
      case Reason::kTrainerLost:
        book()->OnMissing(key(), FieldsOf(ended).slot);
        ++meeting_.generation;
        break;
      case Reason::kRendezvousEnded:
        ++meeting_.generation;
        break;
      case Reason::kConflict:
      case Reason::kBadArgument:
      case Reason::kOverBudget:
      case Reason::kBadFrame:
        return context_.world->Red(absl::StrCat("a rank is refused: ", ended.ToString()));
      default:
        break;  // The epoch is over.
    }
    // Another process has the seat, or the session has failed.
    if (ReasonOf(ended) == Reason::kWrongIncarnation || !WaitFor(kAgain).ok()) return;
  }
}

absl::Status SimMeeting::Meet() {
  const std::string own =
      absl::StrCat("id ", meeting_.epoch, "/", meeting_.generation, "/", who_.incarnation);
  BALLAST_ASSIGN_OR_RETURN(
      const std::string id,
      rendezvous_.Exchange(meeting_, core_->job().IsLeadTrainer() ? own : std::string()));
  book()->OnId(key(), id);
  BALLAST_RETURN_IF_ERROR(Make(id));
  book()->OnReady(key(), who_, id);
  BALLAST_RETURN_IF_ERROR(rendezvous_.Ready(meeting_, id));
  book()->OnOpen(key(), id);
  open_ = true;
  return Watch();
}

absl::Status SimMeeting::Make(const std::string& id) {
  if (wrongs_left_ > 0 && !book()->calm() && random_.OneIn(2)) {
    --wrongs_left_;
    if (random_.OneIn(4)) return GiveUp();
    if (random_.OneIn(4)) {
      context_.world->Met(Cover::kRankLate);
      BALLAST_RETURN_IF_ERROR(WaitFor(kLate));
    } else {
      DoWrong(id);
    }
  }
  return WaitFor(random_.Below(kMakingMax));
}

// When others may be ready already.
absl::Status SimMeeting::GiveUp() {
  BALLAST_RETURN_IF_ERROR(WaitFor(random_.Below(kMakingMax)));
  BALLAST_RETURN_IF_ERROR(rendezvous_.GiveUp(meeting_, "its library failed"));
  return GenerationOver();
}

// The others may have begun anew: a home that has started again does not know that it was open.
absl::Status SimMeeting::Watch() {
  while (core_->job().epoch == meeting_.epoch) {
    BALLAST_RETURN_IF_ERROR(WaitFor(kWatch));
    const absl::StatusOr<client::RollCallReport> report = rendezvous_.RollCall();
    if (!report.ok() || core_->job().epoch != meeting_.epoch) continue;
    book()->OnRollCall(meeting_.epoch, *report);
    const bool same = report->generation == meeting_.generation;
    if (report->generation < meeting_.generation || (same && report->ended.empty())) continue;
    meeting_.generation = std::max(meeting_.generation, report->generation - 1);
    return GenerationOver();
  }
  return absl::OkStatus();
}

v1::RendezvousRequest SimMeeting::Request(v1::RendezvousAct act) const {
  v1::RendezvousRequest request;
  request.set_job(*context_.job);
  request.set_epoch(meeting_.epoch);
  request.set_slot(who_.slot);
  request.set_incarnation(who_.incarnation);
  request.set_act(act);
  request.set_generation(meeting_.generation);
  request.set_tag(meeting_.tag);
  request.set_timeout_ms(static_cast<uint64_t>(kTimeout.count()));
  request.set_wait_ms(static_cast<uint64_t>(kAnswerWithin.count()));
  return request;
}

// The lowest rank gives the id, so a home that has forgotten everything takes that rank's id.
void SimMeeting::DoWrong(const std::string& id) {
  const uint64_t kind = core_->job().IsLeadTrainer() ? 0 : random_.Below(4);
  v1::RendezvousRequest request =
      Request(kind < 2 ? v1::RENDEZVOUS_ACT_READY : v1::RENDEZVOUS_ACT_EXCHANGE);
  if (kind == 0) {
    request.set_id(id);
    request.set_incarnation(who_.incarnation + 1);
    return SendWrong(request, Reason::kWrongIncarnation);
  }
  if (kind == 3 && meeting_.generation > 1) {
    request.set_generation(meeting_.generation - 1);
    return SendWrong(request, Reason::kRendezvousEnded);
  }
  request.set_id(absl::StrCat("of another job: ", id));
  SendWrong(request, Reason::kConflict);
}

// A home that is new or away may answer otherwise, but never as if all were well.
void SimMeeting::SendWrong(const v1::RendezvousRequest& request, Reason expected) {
  context_.world->Met(Cover::kRankWrong);
  wrong_calls_.push_back(transport_->Start(
      {Network::Address(0), method::kRendezvous, kAnswerWithin}, request,
      [this, expected](const absl::StatusOr<Payload>& answer) {
        v1::RendezvousReply reply;
        if (answer.ok() && ParseMessage(*answer, kMaxMessageBytes, &reply).ok() && reply.over()) {
          context_.world->Red(
              absl::StrCat("a call is answered that must be refused: ", ReasonName(expected)));
        }
      }));
}

std::string SimMeeting::Waiting() const {
  return absl::StrCat("meeting of epoch ", meeting_.epoch, " generation ", meeting_.generation,
                      open_ ? " open" : "");
}

}  // namespace ballast::sim
