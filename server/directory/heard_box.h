// HeardBox: the latest activity report of each trainer, until the directory's strand reads it.
// Trainers may report faster than the strand reads, so an unread report is replaced by a newer one
// of the same process.
// Comes from: TrainerDoor. Goes to: Home. Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"
#include "common/rendezvous/doing.h"
#include "server/round/round_types.h"

namespace ballast::server {

class HeardBox {
 public:
  struct Word {
    uint64_t job = 0;
    Member rank;
    Doing doing;
  };

  // True when the box was empty: then it has to be taken.
  bool Put(Word word) {
    MutexLock lock(&mu_);
    const bool was_empty = words_.empty();
    const Key key{word.job, word.rank.slot, word.rank.incarnation};
    words_.insert_or_assign(key, std::move(word));
    return was_empty;
  }

  // The reports, one per process; empties the box.
  std::vector<Word> Take() {
    std::map<Key, Word> taken;
    {
      MutexLock lock(&mu_);
      taken.swap(words_);
    }
    std::vector<Word> words;
    for (auto& [key, word] : taken) words.push_back(std::move(word));
    return words;
  }

 private:
  using Key = std::tuple<uint64_t, uint32_t, uint64_t>;  // job, slot, incarnation

  Mutex mu_;
  std::map<Key, Word> words_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast::server
