// A trainer's activity on a communicator among the trainers, and when it was last heard from.
// Comes from: heartbeats, calls of the rendezvous. Goes to: texts about a missing rank. Thread
// safety: plain values.
#pragma once

#include <chrono>

#include "ballast/types.h"

namespace ballast {

// A sign of life of a rank.
struct Heard {
  std::chrono::nanoseconds at{0};  // of the clock of the process that heard it
  Doing doing;
};

}  // namespace ballast
