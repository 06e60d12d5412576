// DiskWatch: how full the disks of the configured directories are, and whether they hang. A mount
// that does not answer (a network file system without its server) blocks only a thread of this
// watch: a scrape reads the last answers. A hung device may still answer, so the age of the
// server's own oldest call counts, too.
// Comes from: server.cc. Goes to: ballast_disk_* of MetricRegistry. Thread safety: Start and Stop
// from one thread; the rest runs on the watch's own threads and on those that scrape.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/sync.h"
#include "common/io/watched_files.h"
#include "common/metrics/registry.h"
#include "common/threads/thread_executor.h"
#include "server/host/disk_state.h"

namespace ballast::server {

struct DiskBytes {
  double free = 0;
  double size = 0;
  bool read_only = false;  // the file system takes no writes
};

// Reads the disk of `path`. A directory not yet created is on the disk of its nearest existing
// ancestor. Zeros if the disk refuses the question.
DiskBytes ReadDisk(std::string path);

// A disk with a call unfinished for this long hangs.
inline constexpr std::chrono::seconds kDiskHangs(10);

struct DiskWatchOptions {
  const Clock* clock = RealClock::Get();
  std::chrono::nanoseconds interval = std::chrono::seconds(1);
  // A slower answer counts as none.
  std::chrono::nanoseconds patience = std::chrono::seconds(30);
  // How long Stop waits for an answer still due.
  std::chrono::nanoseconds stop_grace = std::chrono::seconds(1);
  std::function<DiskBytes(const std::string& path)> read = ReadDisk;
  // The server's oldest call to the disk with that label; empty: it makes none.
  std::function<std::optional<CallsUnderWay::Call>(const std::string& label)> oldest;
  // How often the watch checks for hung disks, and the receiver of its reports.
  std::chrono::nanoseconds look_interval = std::chrono::seconds(1);
  std::function<void(const std::string&)> say;
};

class DiskWatch {
 public:
  struct Directory {
    std::string label;  // as in ballast_disk_free_bytes{directory}
    std::string path;
    const char* waiting = "";  // as in a sentence: "Rounds wait"
  };

  // Queries each disk at once and then every `interval`. Adds ballast_disk_answers and
  // ballast_disk_wait_seconds; reports when a disk begins to hang, and when it completes calls
  // again. A disk's first answer adds ballast_disk_free_bytes and ballast_disk_size_bytes, which
  // keep the last answer. The first directory's size is ballast_tier_capacity_bytes{tier="nvme"} as
  // well; 0 without one. `registry` outlives Stop.
  static std::unique_ptr<DiskWatch> Start(const std::vector<Directory>& directories,
                                          DiskWatchOptions options, MetricRegistry* registry);
  // As Stop().
  ~DiskWatch() { Stop(); }
  DiskWatch(const DiskWatch&) = delete;
  DiskWatch& operator=(const DiskWatch&) = delete;

  // The last answer of each disk, at most `interval` old if the disk answers. Does not wait. Any
  // thread, until Stop.
  std::vector<DiskState> Last() const;
  // UNAVAILABLE while the first directory's disk hangs: names the unfinished call and its age.
  absl::Status Health() const;

  // Stops the queries. If a disk does not answer within the grace period, its waiting thread is
  // left running until the process ends. Idempotent.
  void Stop();

 private:
  class Disk;

  DiskWatch() = default;

  std::unique_ptr<ThreadExecutor> executor_;  // null without directories
  std::vector<std::shared_ptr<Disk>> disks_;
};

}  // namespace ballast::server
