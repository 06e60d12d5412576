// Decides when a trainer's stream is old enough to end: between two rounds, where nothing has to be
// sent again, or after a grace at any point. Comes from: TrainerStream (times, messages). Goes to:
// TrainerStream, which ends itself. Thread safety: none; lives under the stream's lock.
#pragma once

#include <chrono>
#include <cstdint>

namespace ballast::server {

class StreamAge {
 public:
  using Time = std::chrono::nanoseconds;

  // A stream opened at `born`, which ends at the age of `max`, up to 10 % earlier or later by
  // `chance`, a random number. max = 0: never. `grace`: the delay within a round.
  StreamAge(Time max, Time grace, Time born, uint64_t chance);

  // The trainer takes part in something: a round, an upload or a fetch.
  void OnWork() { between_rounds_ = false; }
  // The end of a round goes out to the trainer.
  void OnRoundDone() { between_rounds_ = true; }

  bool Over(Time now) const;

 private:
  Time soft_end_;
  Time hard_end_;
  bool between_rounds_ = true;
};

}  // namespace ballast::server
