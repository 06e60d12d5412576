#include "server/service/refused_trainers.h"

#include <utility>

#include "common/base/log.h"
#include "common/base/reason.h"

namespace ballast::server {

void RefusedTrainers::Add(const std::string& call, const std::string& job, const std::string& peer,
                          const absl::Status& why) {
  if (absl::IsUnavailable(why) || ReasonOf(why) == Reason::kNotHome) return;
  const int64_t left_out = Allow();
  if (left_out < 0) return;
  // A refused trainer may send any name.
  BALLAST_LOG(WARN, LogField("run", job.substr(0, kNameBytesMax)),
              LogField("reason", ReasonName(ReasonOf(why))), LogField("peer", peer),
              LogField("suppressed", left_out))
      << "refused to " << call << ": " << why.message().substr(0, kTextBytesMax);
}

int64_t RefusedTrainers::Allow() {
  const std::chrono::nanoseconds now = clock_->Now();
  MutexLock lock(&mu_);
  if (lines_ == 0 || now - begin_ >= kInterval) {
    begin_ = now;
    lines_ = 0;
  }
  if (lines_ == kLinesMax) {
    ++left_out_;
    return -1;
  }
  ++lines_;
  return std::exchange(left_out_, 0);
}

}  // namespace ballast::server
