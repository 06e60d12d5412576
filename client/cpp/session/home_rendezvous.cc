#include "client/cpp/session/home_rendezvous.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/session/retry.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/rendezvous/rendezvous_types.h"
#include "common/types/enum_names.h"

namespace ballast::client {
namespace {

using std::chrono::milliseconds;

// A call without an answer within its wait and this time is made again.
constexpr milliseconds kWait{10'000};
constexpr milliseconds kAnswerWithin{10'000};
constexpr milliseconds kAskAgainInterval{100};
// Short, because a caller that lost a rank has its own deadline to keep.
constexpr milliseconds kAtOnce{1'000};

// No answer came, or the home is not ready: another try may help.
bool MayAskAgain(const absl::Status& status) {
  const bool silent = status.code() == absl::StatusCode::kDeadlineExceeded &&
                      ReasonOf(status) == Reason::kUnspecified;
  return silent || IsAway(status);
}

// A phase of a newer home is none that this build knows.
Doing DoingOf(const v1::Doing& doing) {
  return {FromNumber<CollectivePhase>(doing.phase()).value_or(CollectivePhase::kNone),
          doing.bucket(), doing.round()};
}

}  // namespace

void ToProto(const Doing& doing, v1::Doing* out) {
  out->set_phase(static_cast<v1::CollectivePhase>(doing.phase));
  out->set_bucket(doing.bucket);
  out->set_round(doing.round);
}

absl::StatusOr<std::string> HomeRendezvous::Exchange(const Meeting& meeting,
                                                     const std::string& id) {
  BeginDoing();
  v1::RendezvousRequest request = Request(v1::RENDEZVOUS_ACT_EXCHANGE, meeting);
  request.set_id(id);
  BALLAST_ASSIGN_OR_RETURN(const v1::RendezvousReply reply, Ask(request));
  return reply.id();
}

absl::Status HomeRendezvous::Ready(const Meeting& meeting, const std::string& id) {
  BeginDoing();
  v1::RendezvousRequest request = Request(v1::RENDEZVOUS_ACT_READY, meeting);
  request.set_id(id);
  return Ask(request).status();
}

absl::Status HomeRendezvous::GiveUp(const Meeting& meeting, const std::string& why) {
  v1::RendezvousRequest request = Request(v1::RENDEZVOUS_ACT_GIVE_UP, meeting);
  request.set_why(why.substr(0, rendezvous::kWhyBytesMax));
  return AskAtOnce(request).status();
}

absl::StatusOr<RollCallReport> HomeRendezvous::RollCall() {
  Meeting present;
  present.epoch = deps_.epoch();
  BALLAST_ASSIGN_OR_RETURN(const v1::RendezvousReply reply,
                           AskAtOnce(Request(v1::RENDEZVOUS_ACT_ROLL_CALL, present)));
  RollCallReport report;
  report.generation = reply.generation();
  report.ended = reply.ended();
  report.lease = milliseconds(reply.lease_ms());
  for (const v1::RankHeard& rank : reply.ranks()) {
    report.ranks.push_back({rank.slot(), rank.heard(), milliseconds(rank.ago_ms()),
                            DoingOf(rank.doing()), rank.since_epoch()});
  }
  return report;
}

void HomeRendezvous::SetDoing(const Doing& doing) {
  MutexLock lock(&mu_);
  doing_ = doing;
}

void HomeRendezvous::BeginDoing() {
  MutexLock lock(&mu_);
  if (doing_.phase == CollectivePhase::kNone) doing_.phase = CollectivePhase::kInit;
}

Doing HomeRendezvous::doing() const {
  MutexLock lock(&mu_);
  return doing_;
}

v1::RendezvousRequest HomeRendezvous::Request(v1::RendezvousAct act, const Meeting& meeting) const {
  v1::RendezvousRequest request;
  request.set_job(deps_.job);
  request.set_epoch(meeting.epoch);
  request.set_slot(deps_.slot);
  request.set_incarnation(deps_.incarnation);
  request.set_act(act);
  request.set_generation(meeting.generation);
  request.set_tag(meeting.tag);
  const double timeout_ms = static_cast<double>(meeting.timeout.count()) * deps_.time_scale;
  request.set_timeout_ms(timeout_ms < 0 ? 0 : static_cast<uint64_t>(timeout_ms));
  request.set_wait_ms(static_cast<uint64_t>(kWait.count()));
  ToProto(doing(), request.mutable_doing());
  return request;
}

absl::StatusOr<v1::RendezvousReply> HomeRendezvous::Ask(
    const v1::RendezvousRequest& request) const {
  auto give_up = deps_.now() + deps_.reconnect_timeout;
  while (true) {
    v1::RendezvousReply reply;
    const absl::Status status = deps_.call(request, kWait + kAnswerWithin, &reply);
    if (status.ok() && reply.over()) return reply;
    if (status.ok()) {
      give_up = deps_.now() + deps_.reconnect_timeout;
      continue;
    }
    if (!MayAskAgain(status) || deps_.now() >= give_up) return status;
    BALLAST_RETURN_IF_ERROR(deps_.wait(kAskAgainInterval));
  }
}

absl::StatusOr<v1::RendezvousReply> HomeRendezvous::AskAtOnce(
    const v1::RendezvousRequest& request) const {
  const auto within = std::chrono::duration_cast<milliseconds>(kAtOnce * deps_.time_scale);
  const auto give_up = deps_.now() + within;
  while (true) {
    v1::RendezvousReply reply;
    const auto left = std::chrono::ceil<milliseconds>(give_up - deps_.now());
    const absl::Status status = deps_.call(request, std::max(left, kAskAgainInterval), &reply);
    if (status.ok()) return reply;
    if (!MayAskAgain(status)) return status;
    if (deps_.now() + kAskAgainInterval >= give_up) {
      return absl::UnavailableError(absl::StrCat("the job's home is away: ", status.message()));
    }
    BALLAST_RETURN_IF_ERROR(deps_.wait(kAskAgainInterval));
  }
}

}  // namespace ballast::client
