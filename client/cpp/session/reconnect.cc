#include "client/cpp/session/reconnect.h"

#include <algorithm>

#include "common/base/reason.h"

namespace ballast::client {

bool IsNotYet(const absl::Status& status, uint32_t own_slot) {
  const bool unavailable = status.code() == absl::StatusCode::kUnavailable;
  switch (ReasonOf(status)) {
    case Reason::kUnspecified:
      return unavailable || !status.GetPayload(kErrorDetailTypeUrl).has_value();
    case Reason::kUnknownJob:
    case Reason::kFutureEpoch:
      return true;
    case Reason::kServerLost:
    case Reason::kShuttingDown:
    case Reason::kStorageFailed:
    case Reason::kRecovering:
    case Reason::kUnreachable:
      return unavailable;
    case Reason::kTrainerLost:
      return unavailable && FieldsOf(status).slot == static_cast<int>(own_slot);
    default:
      return false;
  }
}

void Reconnect::OnLost(absl::string_view why, Time now, bool recovering) {
  last_error_ = std::string(why.data(), why.size());
  if (away_ && !trying_) return;
  if (!away_) {
    const bool was_well = back_at_ == Time::min() || now - back_at_ > limits_.max_backoff;
    if (was_well) backoff_ = limits_.first_backoff;
    since_ = now;
    next_report_ = now + limits_.report_every;
  }
  if (recovering) backoff_ = limits_.first_backoff;
  away_ = true;
  trying_ = false;
  next_try_ = now + backoff_;
  backoff_ = std::min(backoff_ * 2, limits_.max_backoff);
}

void Reconnect::OnBack(Time now) {
  away_ = false;
  trying_ = false;
  back_at_ = now;
}

Reconnect::Action Reconnect::Next(Time now) {
  if (!away_) return Action::kNothing;
  if (now - since_ >= limits_.timeout) return Action::kGiveUp;
  if (!trying_ && now >= next_try_) {
    trying_ = true;
    return Action::kOpen;
  }
  if (now >= next_report_) {
    next_report_ = now + limits_.report_every;
    return Action::kReport;
  }
  return Action::kNothing;
}

Reconnect::Time Reconnect::due() const {
  if (!away_) return Time::max();
  const Time due = std::min(next_report_, since_ + limits_.timeout);
  return trying_ ? due : std::min(due, next_try_);
}

void PauseMeter::OnLost(Time now) {
  if (away_++ == 0) since_ = now;
}

void PauseMeter::OnBack(Time now) {
  ++reconnects_;
  OnPassed(now);
}

void PauseMeter::OnPassed(Time now) {
  if (--away_ == 0) paused_ += now - since_;
}

void PauseMeter::StartRound(Time now) {
  paused_ = Duration(0);
  since_ = now;
}

PauseMeter::Duration PauseMeter::paused(Time now) const {
  return away_ == 0 ? paused_ : paused_ + (now - since_);
}

}  // namespace ballast::client
