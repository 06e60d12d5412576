// WatchedFileSystem: a file system that reports a slow disk and calls still under way: rounds wait
// for flushes and writes, and nothing else says why. All is done by the file system below. Comes
// from: server (start). Goes to: server/durability and server/tier, as file.h's FileSystem. Thread
// safety: CallsUnderWay is thread-safe; the rest as file.h says.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "common/base/clock.h"
#include "common/base/sync.h"
#include "common/io/file.h"

namespace ballast {

struct WatchOptions {
  std::chrono::nanoseconds slow = std::chrono::seconds(1);    // a longer call is reported
  std::chrono::nanoseconds quiet = std::chrono::seconds(30);  // and then nothing for this time
};

// Calls begun and not ended. A hung disk ends none, so only their age tells.
class CallsUnderWay {
 public:
  struct Call {
    const char* what = "";  // "a flush", of static storage
    std::string path;
    std::chrono::nanoseconds age{0};
  };

  // `clock` outlives this.
  explicit CallsUnderWay(const Clock* clock) : clock_(clock) {}

  // A call for `path` begins: its number, for End. `what` as Call's.
  uint64_t Begin(const char* what, std::string path);
  // How long the call of that number took.
  std::chrono::nanoseconds End(uint64_t number);
  // The oldest call for a path that `counts`, which must not come back here; nothing: none.
  std::optional<Call> Oldest(const std::function<bool(const std::string& path)>& counts) const;

 private:
  struct Begun {
    const char* what;
    std::string path;
    std::chrono::nanoseconds at;
  };

  const Clock* const clock_;
  mutable Mutex mu_;
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, Begun> begun_ ABSL_GUARDED_BY(mu_);  // the oldest first
};

// `below` and `clock` outlive the result and all its files. `warn` gets a sentence with the file,
// the operation and its duration, and the number of such calls left out since the last sentence. It
// runs on the thread of the call's end and must not block. `calls` learns of the calls that a round
// or a snapshot waits for: all but those that take as long as files are large (Allocate,
// RemoveAll), and questions.
std::unique_ptr<FileSystem> WatchedFileSystem(FileSystem* below, const Clock* clock,
                                              const WatchOptions& options,
                                              std::function<void(const std::string&)> warn,
                                              std::shared_ptr<CallsUnderWay> calls);

}  // namespace ballast
