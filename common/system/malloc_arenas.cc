#include "common/system/malloc_arenas.h"

#include <malloc.h>

#include <cstddef>
#include <utility>

namespace ballast {
namespace {

// The free of as much makes glibc look at the end of the arena (FASTBIN_CONSOLIDATION_THRESHOLD is
// 64 KiB).
constexpr size_t kNoteBytes = 128 << 10;

void KeepAtTheEnd(int threshold_bytes, int pad_bytes) {
  mallopt(M_TRIM_THRESHOLD, threshold_bytes);
  mallopt(M_TOP_PAD, pad_bytes);
}

void KeepMuchAtTheEnd() { KeepAtTheEnd(2000 << 20, 64 << 20); }

}  // namespace

void TuneMalloc() {
  KeepMuchAtTheEnd();
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // The largest that glibc accepts.
}

void MallocArenas::Note() {
  MutexLock lock(&mu_);
  std::unique_ptr<char[]>& note = notes_[pthread_self()];
  if (note == nullptr) note.reset(new char[kNoteBytes]);
}

void MallocArenas::GiveBack() {
  std::map<pthread_t, std::unique_ptr<char[]>> notes;
  {
    MutexLock lock(&mu_);
    notes = std::exchange(notes_, {});
  }
  // Other threads may free meanwhile, and cut the ends of their arenas too: they grow again.
  KeepAtTheEnd(0, 0);
  notes.clear();
  KeepMuchAtTheEnd();
  malloc_trim(0);
}

}  // namespace ballast
