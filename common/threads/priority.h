// Priority of threads that should not hold others up.
// Comes from: WorkerPool, and work outside rounds. Goes to: the kernel's scheduler.
// Thread safety: each call is about the calling thread, and those that it starts afterwards.
#pragma once

namespace ballast {

// Work outside the rounds, such as a snapshot, has this niceness: about a tenth of a core's time
// where others want all of it.
inline constexpr int kBesideRounds = 10;

// Adds `niceness` (0 to 19) to that of the calling thread: nice(7).
void LowerPriority(int niceness);
// The calling thread has at least `niceness` from now on.
void GiveWay(int niceness);

}  // namespace ballast
