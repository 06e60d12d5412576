#include "client/cpp/attach/outage_reporter.h"

#include <utility>

#include "common/base/log.h"

namespace ballast::client {
namespace {

constexpr std::chrono::milliseconds kTellAfter{3000};
constexpr std::chrono::milliseconds kTellInterval{5000};

}  // namespace

void OutageReporter::OnAway(Time since, uint32_t server, const std::string& address,
                            const std::string& why) {
  if (!std::exchange(away_, true)) {
    since_ = since;
    tell_at_ = since + Scaled(kTellAfter);
  }
  server_ = server;
  address_ = address;
  why_ = why;
}

void OutageReporter::OnBack(Time now) {
  if (std::exchange(away_, false) && std::exchange(told_, false)) Tell(Pause::Kind::kBack, now);
}

void OutageReporter::ReportIfDue(Time now) {
  if (!away_ || now < tell_at_) return;
  tell_at_ = now + Scaled(kTellInterval);
  Tell(std::exchange(told_, true) ? Pause::Kind::kWaiting : Pause::Kind::kLost, now);
}

void OutageReporter::Tell(Pause::Kind kind, Time now) const {
  Pause pause;
  pause.kind = kind;
  pause.server = server_;
  pause.address = address_;
  pause.away = now - since_;
  pause.error = why_;
  if (options_.on_pause) return options_.on_pause(pause);
  BALLAST_LOG(WARN, LogField("job", options_.job), LogField("slot", options_.slot))
      << "attaching " << (kind == Pause::Kind::kBack ? "continues; it waited" : "waits")
      << " for the state server at " << address_ << ": " << why_;
}

OutageReporter::Time::duration OutageReporter::Scaled(std::chrono::milliseconds time) const {
  return std::chrono::duration_cast<Time::duration>(time * options_.time_scale);
}

}  // namespace ballast::client
