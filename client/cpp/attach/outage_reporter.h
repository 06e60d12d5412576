// Reports which server keeps an attach waiting: after 3 s, every 5 s, and at the end of the wait.
// Comes from: attach.cc, which passes the time in. Goes to: JobOptions::on_pause, or the log.
// Thread safety: none; lives on the attaching thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "ballast/client.h"

namespace ballast::client {

class OutageReporter {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Uses `options`, whose time_scale stretches the times, as long as it lives.
  explicit OutageReporter(const JobOptions& options) : options_(options) {}

  bool away() const { return away_; }

  // The attach waits for `server` (kServerUnknown: only its address is known so far), because of
  // `why`. The wait counts from `since`, or from its beginning when it was for another server
  // first.
  void OnAway(Time since, uint32_t server, const std::string& address, const std::string& why);
  // The attach waits for no server any more.
  void OnBack(Time now);
  // Reports a wait when due. To be called often.
  void ReportIfDue(Time now);

 private:
  void Tell(Pause::Kind kind, Time now) const;
  Time::duration Scaled(std::chrono::milliseconds time) const;

  const JobOptions& options_;
  bool away_ = false;
  bool told_ = false;
  Time since_;
  Time tell_at_;
  uint32_t server_ = kServerUnknown;
  std::string address_;
  std::string why_;
};

}  // namespace ballast::client
