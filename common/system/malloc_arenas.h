// Free memory cached by glibc's malloc: how much a program of ours lets it cache, and how it
// returns that to the kernel. malloc_trim spares one part: the free memory at the end of a thread's
// arena (its top chunk), up to 64 MiB an arena (mtrim in malloc.c of glibc 2.36; only a free of 64
// KiB or more inside the arena cuts its end). Whether a large request lies there is chance: it
// depends on later allocations after it.
// Comes from: main programs; GenericServer, IdleTrim. Goes to: malloc.
#pragma once

#include <pthread.h>

#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"

namespace ballast {

// Makes glibc keep freed memory instead of giving it back to the kernel after every message, which
// saves 9 of 10 page faults and half the CPU of a receiver. Call first thing in main of a process
// that we own; never in a library inside another program's process.
void TuneMalloc();

// The arenas of threads that allocate for strangers. Thread-safe.
class MallocArenas {
 public:
  MallocArenas() = default;
  MallocArenas(const MallocArenas&) = delete;
  MallocArenas& operator=(const MallocArenas&) = delete;

  // Notes the arena of the calling thread until the next GiveBack: takes 128 KiB of it, never
  // touched. Short-lived threads may share a note.
  void Note();
  // Gives all free memory of the process back to the kernel that malloc_trim can, and the ends of
  // the noted arenas. Then malloc keeps as much as TuneMalloc says.
  void GiveBack();

 private:
  Mutex mu_;
  std::map<pthread_t, std::unique_ptr<char[]>> notes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast
