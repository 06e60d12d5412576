#include "tests/sim/nodes/meeting.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/convert/channel.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/methods.h"

namespace ballast::sim {
namespace {

constexpr Tick kAgain = 100 * kMillisecond;
constexpr Tick kWatch = 1 * kSecond;
constexpr Tick kMakingMax = 200 * kMillisecond;
constexpr uint64_t kTimeoutMs = 5000;
constexpr uint64_t kWaitMs = 1000;
constexpr std::chrono::milliseconds kAnswerWithin{2400};
constexpr char kTag[] = "main";

absl::StatusOr<v1::RendezvousReply> ReplyIn(const absl::StatusOr<Payload>& answer) {
  if (!answer.ok()) return answer.status();
  v1::RendezvousReply reply;
  const absl::Status parsed = ParseMessage(*answer, kMaxMessageBytes, &reply);
  if (!parsed.ok()) return parsed;
  return reply;
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

// --- A rank -------------------------------------------------------------------------------------

SimMeeting::SimMeeting(const Context& context, uint32_t process, const server::Member& who,
                       SimTransport* transport, std::function<const client::JobView&()> job,
                       Later later)
    : context_(context),
      who_(who),
      transport_(transport),
      job_(std::move(job)),
      later_(std::move(later)),
      random_(Mix(context.swarm->seed) ^ Mix(0x3EE7 + process)) {}

void SimMeeting::Poke() {
  if (job_().epoch == epoch_ || over_) return;
  epoch_ = job_().epoch;
  BeginGeneration(1);
}

void SimMeeting::BeginGeneration(uint32_t generation) {
  generation_ = generation;
  open_ = false;
  stage_ = Stage::kExchange;
  id_.clear();
  if (job_().IsLeadTrainer()) {
    id_ = absl::StrCat("id ", epoch_, "/", generation_, "/", who_.incarnation);
  }
  Ask();
}

void SimMeeting::BeginNextLater() {
  later_(kAgain, [this, attempt = ++attempt_] {
    if (attempt == attempt_) BeginGeneration(generation_ + 1);
  });
}

v1::RendezvousRequest SimMeeting::Request(v1::RendezvousAct act) const {
  v1::RendezvousRequest request;
  request.set_job(context_.plan->job);
  request.set_epoch(epoch_);
  request.set_slot(who_.slot);
  request.set_incarnation(who_.incarnation);
  request.set_act(act);
  request.set_generation(generation_);
  request.set_tag(kTag);
  request.set_timeout_ms(kTimeoutMs);
  request.set_wait_ms(kWaitMs);
  return request;
}

void SimMeeting::Ask() {
  const bool ready = stage_ == Stage::kReady;
  v1::RendezvousRequest request =
      Request(ready ? v1::RENDEZVOUS_ACT_READY : v1::RENDEZVOUS_ACT_EXCHANGE);
  request.set_id(id_);
  if (ready) book()->OnReady(key(), who_, id_);
  ++attempt_;
  call_ = transport_->Start({Network::Address(0), method::kRendezvous, kAnswerWithin}, request,
                            [this](const absl::StatusOr<Payload>& answer) { OnAnswer(answer); });
}

void SimMeeting::AskLater() {
  later_(kAgain, [this, attempt = ++attempt_] {
    if (attempt != attempt_) return;
    job_().epoch == epoch_ ? Ask() : Poke();
  });
}

void SimMeeting::OnAnswer(const absl::StatusOr<Payload>& answer) {
  const absl::StatusOr<v1::RendezvousReply> reply = ReplyIn(answer);
  if (!reply.ok()) return OnRefused(reply.status());
  if (!reply->over()) return AskLater();
  if (stage_ == Stage::kExchange) return OnId(reply->id());
  book()->OnOpen(key(), id_);
  open_ = true;
  WatchLater();
}

// The others may have begun anew: a home that has started again does not know that it was open.
void SimMeeting::WatchLater() {
  later_(kWatch, [this, attempt = ++attempt_] {
    if (attempt != attempt_ || job_().epoch != epoch_) return;
    call_ = transport_->Start({Network::Address(0), method::kRendezvous, kAnswerWithin},
                              Request(v1::RENDEZVOUS_ACT_ROLL_CALL),
                              [this](const absl::StatusOr<Payload>& answer) { OnNews(answer); });
  });
}

void SimMeeting::OnNews(const absl::StatusOr<Payload>& answer) {
  const absl::StatusOr<v1::RendezvousReply> reply = ReplyIn(answer);
  if (!reply.ok() || reply->generation() < generation_) return WatchLater();
  if (reply->generation() > generation_) return BeginGeneration(reply->generation());
  reply->ended().empty() ? WatchLater() : BeginNextLater();
}

void SimMeeting::OnRefused(const absl::Status& status) {
  switch (ReasonOf(status)) {
    case Reason::kTrainerLost:
      book()->OnMissing(key(), FieldsOf(status).slot);
      return BeginNextLater();
    case Reason::kRendezvousEnded:
      return BeginNextLater();
    case Reason::kWrongIncarnation:
      over_ = true;
      return;
    case Reason::kConflict:
    case Reason::kBadArgument:
    case Reason::kOverBudget:
    case Reason::kBadFrame:
      return context_.world->Red(absl::StrCat("a rank is refused: ", status.ToString()));
    default:
      return AskLater();  // The epoch is over, or the home is away.
  }
}

void SimMeeting::OnId(const std::string& id) {
  book()->OnId(key(), id);
  id_ = id;
  stage_ = Stage::kMaking;
  if (wrongs_left_ == 0 || book()->calm() || !random_.OneIn(2)) return Make();
  --wrongs_left_;
  if (random_.OneIn(4)) return GiveUpLater();
  if (random_.OneIn(4)) {
    context_.world->Met(Cover::kRankLate);
    later_(2 * kTimeoutMs * kMillisecond, [this, attempt = ++attempt_] {
      if (attempt == attempt_) Make();
    });
    return;
  }
  DoWrong();
  Make();
}

void SimMeeting::Make() {
  later_(random_.Below(kMakingMax), [this, attempt = ++attempt_] {
    if (attempt != attempt_) return;
    stage_ = Stage::kReady;
    Ask();
  });
}

// When others may be ready already.
void SimMeeting::GiveUpLater() {
  later_(random_.Below(kMakingMax), [this, attempt = ++attempt_] {
    if (attempt != attempt_) return;
    v1::RendezvousRequest request = Request(v1::RENDEZVOUS_ACT_GIVE_UP);
    request.set_why("its library failed");
    call_ = transport_->Start({Network::Address(0), method::kRendezvous, kAnswerWithin}, request,
                              [this](const absl::StatusOr<Payload>&) { BeginNextLater(); });
  });
}

// The lowest rank gives the id, so a home that has forgotten everything takes that rank's id.
void SimMeeting::DoWrong() {
  const uint64_t kind = job_().IsLeadTrainer() ? 0 : random_.Below(4);
  v1::RendezvousRequest request =
      Request(kind < 2 ? v1::RENDEZVOUS_ACT_READY : v1::RENDEZVOUS_ACT_EXCHANGE);
  if (kind == 0) {
    request.set_id(id_);
    request.set_incarnation(who_.incarnation + 1);
    return SendWrong(request, Reason::kWrongIncarnation);
  }
  if (kind == 3 && generation_ > 1) {
    request.set_generation(generation_ - 1);
    return SendWrong(request, Reason::kRendezvousEnded);
  }
  request.set_id(absl::StrCat("of another job: ", id_));
  SendWrong(request, Reason::kConflict);
}

// A home that is new or away may answer otherwise, but never as if all were well.
void SimMeeting::SendWrong(const v1::RendezvousRequest& request, Reason expected) {
  context_.world->Met(Cover::kRankWrong);
  wrong_calls_.push_back(
      transport_->Start({Network::Address(0), method::kRendezvous, kAnswerWithin}, request,
                        [this, expected](const absl::StatusOr<Payload>& answer) {
                          const absl::StatusOr<v1::RendezvousReply> reply = ReplyIn(answer);
                          if (reply.ok() && reply->over()) {
                            context_.world->Red(absl::StrCat(
                                "a call is answered that must be refused: ", ReasonName(expected)));
                          }
                        }));
}

std::string SimMeeting::Waiting() const {
  return absl::StrCat("meeting of epoch ", epoch_, " generation ", generation_, " stage ",
                      static_cast<int>(stage_), open_ ? " open" : "", over_ ? " over" : "");
}

}  // namespace ballast::sim
