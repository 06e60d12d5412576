// Reports outages of servers and trainers to the caller's observer or the log, and counts them as
// the round's pauses. Comes from: SessionCore, EpochTransition. Goes to: JobOptions::on_pause
// through Session, or the log. Thread safety: none; lives under the session's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "ballast/client.h"
#include "client/cpp/job/job_view.h"
#include "client/cpp/session/reconnect.h"
#include "client/cpp/transport/link.h"

namespace ballast::client {

class PauseReporter {
 public:
  // `on_news` runs when an observer has news to take. `job` outlives the reporter.
  PauseReporter(const JobView* job, std::function<void()> on_news)
      : job_(job), on_news_(std::move(on_news)) {}

  // Logs `pause`, or keeps it for Take; sets its round.
  void Tell(Pause pause);
  bool has_news() const { return !news_.empty(); }
  // The oldest news not yet given to the observer.
  std::optional<Pause> Take();

  // The home reports that the trainer in `slot` left, and `why`, or returned. Repeated reports are
  // ignored. `home` names the home.
  struct TrainerNews {
    uint32_t slot = 0;
    bool away = false;
    std::string why;
  };
  void OnTrainer(const TrainerNews& trainer, Pause home, Time now);
  // Forgets absent trainers; the home reports them again in the new epoch.
  void ForgetTrainers(Time now);

  PauseMeter& meter() { return meter_; }

 private:
  const JobView* const job_;
  const std::function<void()> on_news_;
  std::deque<Pause> news_;
  PauseMeter meter_;
  std::map<uint32_t, Time> trainers_away_;  // slot -> since when
};

// Whole seconds, or milliseconds below 10 s.
std::string RoundedText(std::chrono::nanoseconds duration);

}  // namespace ballast::client
