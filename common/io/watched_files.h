// WatchedFileSystem: a file system that says when its disk is slow: rounds wait for flushes and
// writes, and nothing else says why. All is done by the file system below.
// Comes from: server (start). Goes to: server/durability and server/tier, as file.h's FileSystem.
// Thread safety: as file.h says.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/io/file.h"

namespace ballast {

struct WatchOptions {
  std::chrono::nanoseconds slow = std::chrono::seconds(1);    // a longer call is reported
  std::chrono::nanoseconds quiet = std::chrono::seconds(30);  // and then nothing for this time
};

// `below` and `clock` outlive the result and all its files. `warn` gets a sentence that names the
// file, what was done to it and how long it took, and how many such calls were not told since the
// last sentence. It runs on the thread of the call's end and must not block.
std::unique_ptr<FileSystem> WatchedFileSystem(FileSystem* below, const Clock* clock,
                                              const WatchOptions& options,
                                              std::function<void(const std::string&)> warn);

}  // namespace ballast
