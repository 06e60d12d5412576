#include "client/cpp/session/pause_reporter.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/log.h"
#include "common/text/units.h"

namespace ballast::client {
namespace {

constexpr size_t kNewsMax = 64;

// News of a server, not of trainers that change.
bool OfServer(const Pause& pause) { return pause.kind <= Pause::Kind::kBack; }

std::string Slots(const std::vector<uint32_t>& slots) {
  return absl::StrCat(slots.size() == 1 ? "slot " : "slots ", absl::StrJoin(slots, ", "));
}

// The trainers that came and went, and how many there are.
std::string Changes(const Pause& pause) {
  std::string text = absl::StrCat("epoch ", pause.epoch, " with ", pause.world,
                                  pause.world == 1 ? " trainer" : " trainers");
  if (!pause.slots.empty()) absl::StrAppend(&text, "; new in ", Slots(pause.slots));
  if (!pause.left.empty()) absl::StrAppend(&text, "; gone from ", Slots(pause.left));
  return text;
}

std::string Describe(const Pause& pause) {
  switch (pause.kind) {
    case Pause::Kind::kReplacing:
      if (pause.epoch == 0) {
        return absl::StrCat("trainers change; the job's home has not named them for ",
                            RoundedText(pause.away), ", last error: ", pause.error);
      }
      return absl::StrCat("going over to ", Changes(pause));
    case Pause::Kind::kReplaced:
      return absl::StrCat("in ", Changes(pause), ", after ", RoundedText(pause.away));
    case Pause::Kind::kTrainerLost:
      return absl::StrCat(Slots(pause.slots), " is away: ", pause.error);
    case Pause::Kind::kTrainerBack:
      return absl::StrCat(Slots(pause.slots), " is back after ", RoundedText(pause.away));
    case Pause::Kind::kLost:
      return absl::StrCat(pause.error, "; trying to reach it again");
    case Pause::Kind::kWaiting:
      return absl::StrCat("away for ", RoundedText(pause.away), ", last error: ", pause.error);
    case Pause::Kind::kBack:
      break;
  }
  return absl::StrCat("back after ", RoundedText(pause.away));
}

}  // namespace

std::string RoundedText(std::chrono::nanoseconds duration) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(duration);
  if (seconds >= std::chrono::seconds(10)) return FormatDuration(seconds);
  return FormatDuration(std::chrono::duration_cast<std::chrono::milliseconds>(duration));
}

void PauseReporter::Tell(Pause pause) {
  pause.round = job_->round;
  if (!job_->options.on_pause) {
    BALLAST_LOG(WARN, LogField("job", job_->options.job), LogField("slot", job_->options.slot),
                LogField("round", pause.round), LogField("server", pause.server))
        << Describe(pause);
    return;
  }
  // The caller may listen late. Of one wait only the newest word counts.
  const auto stale = std::find_if(news_.begin(), news_.end(), [&pause](const Pause& waiting) {
    if (OfServer(pause) != OfServer(waiting) || waiting.server != pause.server) return false;
    return waiting.kind == Pause::Kind::kWaiting ||
           (waiting.kind == Pause::Kind::kReplacing && waiting.epoch == 0);
  });
  if (stale != news_.end()) news_.erase(stale);
  if (news_.size() == kNewsMax) news_.pop_front();
  news_.push_back(std::move(pause));
  on_news_();
}

std::optional<Pause> PauseReporter::Take() {
  if (news_.empty()) return std::nullopt;
  Pause pause = std::move(news_.front());
  news_.pop_front();
  return pause;
}

void PauseReporter::OnTrainer(const TrainerNews& trainer, Pause home, Time now) {
  const auto known = trainers_away_.find(trainer.slot);
  if (trainer.away == (known != trainers_away_.end())) return;
  Pause pause = std::move(home);
  pause.away = std::chrono::nanoseconds(0);
  pause.kind = trainer.away ? Pause::Kind::kTrainerLost : Pause::Kind::kTrainerBack;
  pause.error = trainer.why;
  pause.slots = {trainer.slot};
  if (trainer.away) {
    trainers_away_[trainer.slot] = now;
    meter_.OnLost(now);
  } else {
    pause.away = now - known->second;
    trainers_away_.erase(known);
    meter_.OnPassed(now);
  }
  Tell(std::move(pause));
}

void PauseReporter::ForgetTrainers(Time now) {
  for (size_t i = 0; i < trainers_away_.size(); ++i) meter_.OnPassed(now);
  trainers_away_.clear();
}

}  // namespace ballast::client
